"""Write the files of a report. They are in JSON, Markdown and HTML."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from attnaudit.errors import ReportError
from attnaudit.processes import replace_file
from attnaudit.report.render import environment


def not_writable(path: Path, error: OSError) -> ReportError:
    """Return the error to raise if a file or folder below --out cannot be written.

    Args:
        path: The file or folder.
        error: The error of the operating system, whose reason becomes part of the message.
    """
    return ReportError(f"{path}: cannot be written ({error.strerror}). Give --out a folder that you may write to.")


def write_files(folder: Path, texts: Mapping[str, str]) -> list[Path]:
    """Write files into a folder. An existing file is replaced atomically.

    Args:
        folder: The folder. It is created if it does not exist.
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
    """Return a record as JSON, indented so that changes are easy to review, with a line break at the end."""
    return msgspec.json.format(msgspec.json.encode(record), indent=1).decode() + "\n"


def render_page(package: str, template: str, page: object) -> str:
    """Render a template to one HTML page that opens offline. The template may extend `study_page.html.j2`.

    Args:
        package: The package with the template in its folder `templates`.
        template: The file name of the template.
        page: The data for the template. The template reads it as `page`.
    """
    return environment(package, "attnaudit.research.study").get_template(template).render(page=page)
