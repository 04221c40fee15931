"""Write report.html and summary.md of a run."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnaudit import formatting
from attnaudit.errors import ReportError
from attnaudit.processes import replace_file, return_free_memory
from attnaudit.records import RunRecord
from attnaudit.report.audited_rows import audited_rows, row_count
from attnaudit.report.explorer.explorer_page import ExplorerView, write_explorer
from attnaudit.report.gate_text import device_text
from attnaudit.report.markdown import summary
from attnaudit.report.run_files import MeasurementsFile, read_run
from attnaudit.report.two_runs.baseline_tables import BaselineRun
from attnaudit.report.view import Page, assemble

if TYPE_CHECKING:
    from jinja2 import Environment


def build(folder: Path) -> None:
    """Write report.html and summary.md of a run into its folder, without comparisons with accepted runs.

    Args:
        folder: The folder of the run, with audit.json and, usually, measurements.parquet. Without the latter, the
            report shows no tokens.

    Raises:
        ReportError: A file is missing or corrupt, or cannot be written. The message names the file and the fix.
    """
    write_pages(Path(folder), read_run(Path(folder)))


def write_pages(folder: Path, run: RunRecord, baseline_runs: Sequence[BaselineRun] = ()) -> None:
    """Write report.html and summary.md of a run from its record. audit.json need not exist yet.

    If the measurements are too large for the page, they are written to files in the folder explorer/, next to it.

    Args:
        folder: The folder of the run, with measurements.parquet.
        run: The record of the run.
        baseline_runs: The comparisons with the runs that were accepted as baselines.

    Raises:
        ReportError: measurements.parquet is corrupt, or a file cannot be written.
    """
    measurements = MeasurementsFile(folder)
    return_free_memory()
    try:
        explorer = write_explorer(folder, run, measurements)
    except OSError as error:
        raise _cannot_be_written(Path(error.filename or folder), error) from error
    return_free_memory()
    _write(folder / "report.html", render(assemble(run, measurements, baseline_runs), explorer))
    _write(folder / "summary.md", summary(run, report=_relative(folder / "report.html")))


def render(page: Page, explorer: ExplorerView | None = None) -> str:
    """Return the report as HTML.

    Args:
        page: The content of the report.
        explorer: The instance explorer; None to leave it out.
    """
    return environment().get_template("report.html.j2").render(page=page, explorer=explorer)


@cache
def environment(*packages: str) -> Environment:
    """Return a Jinja environment that escapes every value and makes invisible characters visible.

    Each environment is made once in a process, because it keeps the compiled templates.

    Templates can use these functions as filters: `number`, `plural`, `duration` and `moment` of `attnaudit.formatting`,
    `device_text` of `attnaudit.report.gate_text`, and the functions of `attnaudit.report.audited_rows`.

    Args:
        *packages: Names of packages with further templates. They take precedence over the templates of the report.
    """
    from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

    def make_visible(value: Any) -> Any:
        # Markup is a subclass of str. It comes from the templates themselves, so it is left unchanged.
        return formatting.visible(value) if type(value) is str else value

    result = Environment(
        loader=ChoiceLoader([PackageLoader(package, "templates") for package in (*packages, "attnaudit.report")]),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=make_visible,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    result.filters.update(
        number=formatting.number, plural=formatting.plural, duration=formatting.duration, moment=formatting.moment
    )
    result.filters.update(audited_rows=audited_rows, row_count=row_count, device_text=device_text)
    return result


def _relative(path: Path) -> str:
    """Return a path relative to the working directory. If the file is not below this directory, return it unchanged."""
    working_directory, absolute = Path.cwd().resolve(), path.resolve()
    below = absolute.is_relative_to(working_directory)
    return (absolute.relative_to(working_directory) if below else path).as_posix()


def _write(path: Path, text: str) -> None:
    try:
        replace_file(path, text.encode())
    except OSError as error:
        raise _cannot_be_written(path, error) from error


def _cannot_be_written(path: Path, error: OSError) -> ReportError:
    return ReportError(
        f"{path}: cannot be written ({error.strerror}). Free some space, or choose another folder with --audit-reports."
    )
