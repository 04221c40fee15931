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
    """Write files into a folder, which is created if it does not exist. Each file is replaced atomically.

    Args:
        folder: The folder.
        texts: File name -> content.

    Returns:
        The paths of the files, in the order of `texts`.

    Raises:
        ReportError: A file cannot be written.
    """
    for name, text in texts.items():
        try:
            replace_file(folder / name, text.encode())
        except OSError as error:
            raise not_writable(folder / name, error) from error
    return [folder / name for name in texts]


def record_json(record: msgspec.Struct) -> str:
    """Return a record as indented JSON, so that changes are easy to review."""
    return msgspec.json.format(msgspec.json.encode(record), indent=1).decode() + "\n"


def render_page(package: str, template: str, page: object) -> str:
    """Render a template to one HTML page that opens offline. The template may extend `study_page.html.j2`.

    Args:
        package: The package with the template in its folder `templates`.
        template: The file name of the template.
        page: The data for the template, available there as `page`.
    """
    return environment(package, "attnaudit.research.study").get_template(template).render(page=page)
