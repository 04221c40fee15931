"""A hook of MkDocs that gives each file of the site its path in the repository, and adds the files that pages link to.

Links between the documentation, README and the results in benchmarks/ and reports/ therefore work on the site as they
do in a checkout. mkdocs.yml names this file.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

#: Pages outside the documentation's folder that are on the site even if no other page links to them.
FIRST = ("README.md", "CHANGELOG.md")
LINK = re.compile(r"\]\(([^)\s#:]+)(?:#[^)\s]*)?\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Return the files of the site. MkDocs calls this with the files of the documentation and of the theme."""
    root = Path(config.config_file_path).parent
    folder = Path(config.docs_dir).relative_to(root).as_posix()
    placed = Files([])
    for file in files:
        if file.src_dir == config.docs_dir:
            placed.append(_at(f"{folder}/{file.src_uri}", root, config, dest_uri=file.dest_uri))
        else:
            placed.append(file)
    waiting = [*FIRST, *(uri for uri in placed.src_uris if uri.startswith(f"{folder}/"))]
    while waiting:
        uri = waiting.pop()
        if placed.get_file_from_path(uri) is None:
            # A browser shows the source of a module as text, and would offer to save a file that ends in .py.
            placed.append(_at(uri, root, config, dest_uri=f"{uri}.txt" if uri.endswith(".py") else None))
        if uri.endswith(".md"):
            waiting += [linked for linked in _links(uri, root) if placed.get_file_from_path(linked) is None]
    return placed


def _at(uri: str, root: Path, config: MkDocsConfig, *, dest_uri: str | None) -> File:
    """Return the file at a path of the repository. Without a `dest_uri`, it has the same path in the site."""
    return File(uri, str(root), config.site_dir, config.use_directory_urls, dest_uri=dest_uri)


def _links(uri: str, root: Path) -> list[str]:
    """Return the repository paths of the files that a page links to. MkDocs reports links to missing files."""
    text = (root / uri).read_text(encoding="utf-8")
    paths = {posixpath.normpath(posixpath.join(posixpath.dirname(uri), link)) for link in LINK.findall(text)}
    return sorted(path for path in paths if not path.startswith("..") and (root / path).is_file())
