"""Write the files of a report: its JSON, its Markdown and its HTML page."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from attnaudit.errors import ReportError
from attnaudit.processes import replace_file
from attnaudit.report.render import environment


def not_writable(path: Path, error: OSError) -> ReportError:
    """Return the error for a file or folder below --out that cannot be written."""
    return ReportError(f"{path}: cannot be written ({error.strerror}). Give --out a folder that you may write to.")


def write_files(folder: Path, texts: Mapping[str, str]) -> list[Path]:
    """Write file name -> text into a folder, which is created if need be.

    Each file is replaced as a whole. Returns the paths in order. Raises ReportError if a file cannot be written.
    """
    for name, text in texts.items():
        try:
            replace_file(folder / name, text.encode())
        except OSError as error:
            raise not_writable(folder / name, error) from error
    return [folder / name for name in texts]


def record_json(record: msgspec.Struct) -> str:
    """Return a record as indented JSON, in which changes are easy to review."""
    return msgspec.json.format(msgspec.json.encode(record), indent=1).decode() + "\n"


def render_page(package: str, template: str, page: object) -> str:
    """Render a template of a research package, which may extend `study_page.html.j2`, to one offline HTML page.

    Args:
        package: The package whose folder `templates` holds the template.
        template: The file name of the template.
        page: What the template shows; it is called `page` there.
    """
    return environment(package, "attnaudit.research.study").get_template(template).render(page=page)
