"""`attnaudit report`: rebuild the report of a run from its files."""

from __future__ import annotations

import argparse
from pathlib import Path

from attnaudit.errors import invalid_input
from attnaudit.formatting import terminal_safe
from attnaudit.report import write_pages
from attnaudit.run.baselines.baseline_runs import compare_with_baselines
from attnaudit.run.run_choice import newest_run, require_run_folder
from attnaudit.run.verification.integrity import read_unedited


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `attnaudit report`."""
    parser.add_argument(
        "folder",
        metavar="RUN_DIR",
        help="the folder of a run, such as reports/<run>; for reports/ itself, the newest run is used",
    )


def run(options: argparse.Namespace) -> int:
    """Write report.html and summary.md of a run, and print the path of the report.

    If the folder contains runs but is not the folder of a run itself, the newest run in it is used.

    Returns:
        The exit status, 0.

    Raises:
        ReportError: The folder does not exist, contains no run that has ended, or cannot be written to. Or its files
            were edited after the run.
    """
    with invalid_input():
        given = require_run_folder("report", Path(options.folder))
    folder = newest_run(given)
    run = read_unedited(folder)
    write_pages(folder, run, compare_with_baselines(run, folder))
    print(terminal_safe(str(folder / "report.html")))
    return 0
