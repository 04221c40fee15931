"""The documentation: links hold on GitHub and on the site, which needs no network and lists the public API."""

from __future__ import annotations

import importlib
import inspect
import os
import re
import shutil
import subprocess
import sys
import zlib
from collections import Counter
from collections.abc import Iterator
from functools import cache
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from markdown_it import MarkdownIt

from attnaudit.registry import checks

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    path.relative_to(ROOT).as_posix()
    for pattern in ("*.md", "benchmarks/*.md", "docs/**/*.md", "reports/papers/*.md")
    for path in ROOT.glob(pattern)
)
PUBLIC = ("adapters", "checks", "conformance", "errors", "measures", "metrics", "records")
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


class Links(HTMLParser):
    """The ids and the links of a page, and what it loads."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.ids |= {given[name] for name in ("id", "name") if name in given}
        if "href" in given:
            (self.loaded if tag == "link" and given.get("rel") != "canonical" else self.links).append(given["href"])
        if "src" in given:
            self.loaded.append(given["src"])


@cache
def github_page(path: Path) -> tuple[set[str], list[str]]:
    """Return the anchors that GitHub gives the headings of a Markdown page, and the page's links."""
    tokens = MarkdownIt("commonmark").enable("table").parse(path.read_text(encoding="utf-8"))
    seen: Counter[str] = Counter()
    anchors, links = set(), []
    for before, token in pairwise(tokens):
        for child in token.children or ():
            links += [str(child.attrs[name]) for name in ("href", "src") if name in child.attrs]
        if before.type == "heading_open":
            shown = "".join(child.content for child in token.children or ())
            slug = re.sub(r"[^\w\- ]", "", shown.lower()).replace(" ", "-")
            anchors.add(f"{slug}-{seen[slug]}" if seen[slug] else slug)
            seen[slug] += 1
    return anchors, links


@pytest.mark.parametrize("page", PAGES)
def test_links_hold_in_the_repository(page: str) -> None:
    broken = []
    for link in github_page(ROOT / page)[1]:
        parts = urlsplit(link)
        target = (ROOT / page).parent / unquote(parts.path) if parts.path else ROOT / page
        if parts.scheme:
            continue
        if not target.is_file() or (parts.fragment and parts.fragment not in github_page(target.resolve())[0]):
            broken.append(link)
    assert broken == []


def test_every_page_of_the_documentation_is_in_the_navigation() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2]
    listed = re.findall(r"(\S+\.md)$", navigation, re.MULTILINE)
    own = [page for page in PAGES if page.startswith("docs/") and not page.startswith("docs/gallery/")]
    assert [page for page in own if page not in listed] == []
    assert "docs/gallery/index.md" in listed  # links to the other pages of the gallery
    assert len(listed) == len(set(listed))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built with warnings as errors."""
    pytest.importorskip("material", reason='the site needs the extra "docs"')
    folder = tmp_path_factory.mktemp("documentation") / "site"
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return folder


def built_pages(site: Path) -> Iterator[tuple[Path, Links]]:
    for path in site.rglob("*.html"):
        if path.name != "404.html":  # its links begin at the address of the site
            yield path, Links(path.read_text(encoding="utf-8"))


@pytest.mark.slow
def test_every_link_of_the_site_leads_somewhere_and_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    pages = dict(built_pages(site))
    assert len(pages) > 30
    broken = []
    for path, page in pages.items():
        for link in (*page.links, *page.loaded):
            parts = urlsplit(link)
            if parts.scheme:
                if link in page.loaded and parts.scheme != "data":
                    broken.append(f"{path.name} loads {link}")
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            known = pages[target].ids if target in pages else set()
            if not target.is_file() or (parts.fragment and unquote(parts.fragment) not in known):
                broken.append(f"{path.name} links to {link}")
    assert broken == []


@pytest.mark.slow
def test_pages_have_the_structure_that_they_have_on_github(site: Path) -> None:
    """MkDocs and GitHub read nested lists and lists after paragraphs differently."""
    render = MarkdownIt("commonmark").enable("table").render
    for page in PAGES:
        built = site / re.sub(r"(README|index)\.md$|\.md$", lambda m: "index.html" if m[1] else ".html", page[5:])
        if page.startswith("docs/"):
            shown = built.read_text(encoding="utf-8").partition("<article")[2].partition("</article>")[0]
            if "doc-object" in shown:  # a page of the API reference holds docstrings as well
                continue
            text = render((ROOT / page).read_text(encoding="utf-8"))
            for tag in ("<li>", "<ol>", "<table>", "<td", "<blockquote>", "<img ", "<strong>", "<em>"):
                assert shown.count(tag) == text.count(tag), f"{page}: {tag}"


@pytest.mark.slow
def test_the_reference_has_every_public_class_and_function(site: Path) -> None:
    inventory = (site / "objects.inv").read_bytes().partition(b"zlib.\n")[2]
    listed = {line.split(" ")[0] for line in zlib.decompress(inventory).decode().splitlines()}
    missing = []
    for folder in PUBLIC:
        module = importlib.import_module(f"attnaudit.{folder}")
        for name in getattr(module, "__all__", ()):
            item = getattr(module, name)
            if inspect.isclass(item) or inspect.isfunction(item):
                paths = {f"{module.__name__}.{name}", f"{item.__module__}.{item.__name__}"}
                if not paths & listed:
                    missing.append(f"{module.__name__}.{name}")
    built_in = [kind for kind in map(checks.get, checks.names()) if inspect.isclass(kind)]
    missing += [kind.__name__ for kind in built_in if f"{kind.__module__}.{kind.__name__}" not in listed]
    assert missing == []


@pytest.mark.slow
@pytest.mark.browser
@pytest.mark.skipif(BROWSER is None, reason="Chromium is not installed")
def test_search_works_in_pages_opened_without_a_server(site: Path) -> None:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=BROWSER, args=["--no-sandbox", "--disable-gpu"])
        page = chromium.new_page()
        requested: list[str] = []
        page.on("request", lambda request: requested.append(request.url))
        page.goto((site / "policies.html").as_uri())
        page.keyboard.press("s")
        page.locator(".md-search__input").press_sequentially("exact_adversarial_attention")
        found = page.locator(".md-search-result__item a", has_text="exact_adversarial_attention").first
        found.wait_for(timeout=20_000)
        found.click()
        page.wait_for_url("**/api/metrics.html**")
        assert [url for url in requested if not url.startswith(("file:", "data:", "blob:", "about:"))] == []
        chromium.close()
