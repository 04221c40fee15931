"""Writing report.html and summary.md of a run folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnaudit import formatting
from attnaudit.errors import ReportError
from attnaudit.processes import replace_file
from attnaudit.records import RunRecord
from attnaudit.report.markdown import summary
from attnaudit.report.run_files import MeasurementsFile, read_run
from attnaudit.report.view import Page, assemble

if TYPE_CHECKING:
    from jinja2 import Environment


def build(folder: Path) -> None:
    """Write report.html and summary.md of a run into its folder.

    Args:
        folder: The folder of the run, with its audit.json and measurements.parquet.

    Raises:
        ReportError: A file is missing or corrupt, or cannot be written. The message names it and the fix.
    """
    write_pages(Path(folder), read_run(Path(folder)))


def write_pages(folder: Path, run: RunRecord) -> None:
    """Write report.html and summary.md of a run whose audit.json is not written yet.

    Args:
        folder: The folder of the run, with its measurements.parquet.
        run: The run.

    Raises:
        ReportError: measurements.parquet is corrupt, or a file cannot be written.
    """
    _write(folder / "report.html", render(assemble(run, MeasurementsFile(folder))))
    _write(folder / "summary.md", summary(run, report=_relative(folder / "report.html")))


def render(page: Page) -> str:
    """Return the report as one HTML text."""
    return environment().get_template("report.html.j2").render(page=page)


def environment(*packages: str) -> Environment:
    """Return a Jinja environment that escapes every value and makes invisible characters visible.

    Its filters `number`, `plural` and `duration` are the functions of `attnaudit.formatting`.

    Args:
        packages: Packages whose templates it finds, in addition to those of the report.
    """
    from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

    def make_visible(value: Any) -> Any:
        # Markup, a subclass of str, is text of the templates themselves.
        return formatting.visible(value) if type(value) is str else value

    result = Environment(
        loader=ChoiceLoader([PackageLoader(package, "templates") for package in (*packages, "attnaudit.report")]),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=make_visible,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    result.filters.update(number=formatting.number, plural=formatting.plural, duration=formatting.duration)
    return result


def _relative(path: Path) -> str:
    """Return the path relative to the working directory where the file is below it, otherwise as it is."""
    working_directory, absolute = Path.cwd().resolve(), path.resolve()
    below = absolute.is_relative_to(working_directory)
    return (absolute.relative_to(working_directory) if below else path).as_posix()


def _write(path: Path, text: str) -> None:
    try:
        replace_file(path, text.encode())
    except OSError as error:
        raise ReportError(
            f"{path}: cannot be written ({error.strerror}). Choose a writable folder with --audit-reports."
        ) from error
