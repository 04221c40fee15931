"""`attnaudit explore`: open the instance explorer in the report of a run."""

from __future__ import annotations

import argparse
import webbrowser
from pathlib import Path
from urllib.parse import quote

from attnaudit.errors import ReportError, did_you_mean, invalid_input
from attnaudit.formatting import terminal_safe
from attnaudit.run.run_choice import newest_run, require_run_folder


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `attnaudit explore`."""
    parser.add_argument(
        "folder",
        metavar="RUN_DIR",
        help="the folder of a run, such as reports/<run>; for reports/ itself, the newest run is used",
    )
    parser.add_argument("--instance", metavar="ID", help="open this instance")
    parser.add_argument(
        "--print", action="store_true", dest="only_print", help="print the address without opening a browser"
    )


def run(options: argparse.Namespace) -> int:
    """Open the explorer in a browser, and print its address.

    Returns:
        The exit status, 0.

    Raises:
        ReportError: The folder does not exist or contains no run, the run has no report, no measurements or no such
            instance, or no browser could be started.
    """
    with invalid_input():
        given = require_run_folder("explore", Path(options.folder))
    report = newest_run(given) / "report.html"
    if not report.is_file():
        raise ReportError(f"{report}: the file does not exist. Build it with `attnaudit report {report.parent}`.")
    if not (report.parent / "measurements.parquet").is_file():
        raise ReportError(
            f"{report.parent}: the folder has no measurements.parquet, so its report has no instances to explore."
        )
    if options.instance is not None:
        with invalid_input():
            _require_instance(options.instance, report.parent / "measurements.parquet")
    fragment = "explorer" if options.instance is None else f"instance={quote(options.instance, safe='')}"
    address = f"{report.resolve().as_uri()}#{fragment}"
    print(terminal_safe(address))
    if options.only_print or webbrowser.open(address):
        return 0
    raise ReportError("no browser could be started. Open the address above in a browser.")


def _require_instance(name: str, measurements: Path) -> None:
    """Raise ReportError if a run did not measure an instance. The message suggests similar ones."""
    import pyarrow.parquet

    known = set(pyarrow.parquet.read_table(measurements, columns=["instance"])["instance"].to_pylist())
    if name not in known:
        question = did_you_mean(name, known)
        raise ReportError(
            f"--instance {name}: none of the {len(known):,} instances of this run has this id. "
            f"{f'{question} ' if question else ''}Expected the id of a row, as the report shows it."
        )
