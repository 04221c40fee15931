"""Writes report.html and summary.md of a run folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnaudit.errors import ReportError
from attnaudit.formatting import visible
from attnaudit.report.markdown import summary
from attnaudit.report.run_files import MeasurementsFile, read_run
from attnaudit.report.view import Page, assemble

if TYPE_CHECKING:
    from jinja2 import Environment


def build(folder: Path) -> None:
    """Write report.html and summary.md beside the audit.json and measurements.parquet of `folder`.

    Raises ReportError, naming the file and the mend, when a file is missing, corrupt or cannot be written.
    """
    folder = Path(folder)
    run = read_run(folder)
    html = render(assemble(run, MeasurementsFile(folder)))
    _write(folder / "report.html", html)
    _write(folder / "summary.md", summary(run, report=_from_here(folder / "report.html")))


def render(page: Page) -> str:
    """The report as one HTML text."""
    return environment().get_template("report.html.j2").render(page=page)


def environment(*packages: str) -> Environment:
    """Templates of these packages and of the report. Every value is escaped, and what cannot be seen is shown."""
    from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

    def shown(value: Any) -> Any:
        return visible(value) if type(value) is str else value

    return Environment(
        loader=ChoiceLoader([PackageLoader(package, "templates") for package in (*packages, "attnaudit.report")]),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=shown,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _from_here(path: Path) -> str:
    """The path as it is typed in the working directory, where the file lies below it."""
    here, there = Path.cwd().resolve(), path.resolve()
    return (there.relative_to(here) if there.is_relative_to(here) else path).as_posix()


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8", newline="\n")
    except OSError as error:
        raise ReportError(
            f"{path}: cannot be written ({error.strerror}). Choose a folder that can be, with --audit-reports."
        ) from error
