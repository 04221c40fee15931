"""`attnaudit baseline`: accept a finished run as the baseline that later models are compared with."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from attnaudit import __version__
from attnaudit.command_parser import one_of
from attnaudit.errors import AuditError, ReportError, shown_error
from attnaudit.formatting import one_line, plural
from attnaudit.records import BASELINE_NAMES, Baseline, BaselineName
from attnaudit.run.baselines.baseline_acceptance import baseline_of, description, not_passed, refusals
from attnaudit.run.baselines.baseline_file import read_baseline, write_baseline
from attnaudit.run.run_choice import newest_run, require_newest, require_run_folder
from attnaudit.run.verification.integrity import read_unedited

ACCEPTED, NOT_ACCEPTED, USAGE_ERROR = 0, 1, 2
ACCEPT = "write the numbers of a finished run to a baseline file, after showing what is accepted"
STATUS = "Exit status: 0 if the baseline was written, 1 if the run was not accepted, 2 if an option is invalid."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command `accept` of `attnaudit baseline`."""
    actions = parser.add_subparsers(title="commands", metavar="COMMAND", dest="action", required=True)
    accept = actions.add_parser("accept", help=ACCEPT, description=f"{ACCEPT.capitalize()}.", epilog=STATUS)
    accept.add_argument("folder", metavar="RUN", help="the folder of a run, or reports/ for the newest run")
    accept.add_argument(
        "--out",
        required=True,
        metavar="DIR",
        help="the folder to write the baseline file to: `path` in the [baseline] table of the policy",
    )
    accept.add_argument(
        "--name",
        type=one_of(BASELINE_NAMES),
        metavar=f"{{{','.join(BASELINE_NAMES)}}}",
        default="last",
        help="the baseline to replace: the last release or the pinned release (default: last)",
    )
    accept.add_argument(
        "--allow-failed-gates",
        action="store_true",
        help="accept the run even if gates did not pass; the baseline file lists these gates",
    )
    accept.add_argument("--yes", action="store_true", help="do not ask for confirmation")


def run(options: argparse.Namespace) -> int:
    """Accept a run as a baseline.

    Returns:
        The exit status: 0 if the baseline was written, 1 if the run was not accepted, 2 if confirmation is needed.
    """
    out = Path(options.out)
    try:
        given = require_run_folder("baseline", Path(options.folder))
        folder = newest_run(given)
        record = read_unedited(folder)
        require_newest(given, folder, record)
        reasons = refusals(record, version=__version__)
        failed = [] if options.allow_failed_gates else not_passed(record)
        reasons += [
            f"{gate}. Improve the model, or add --allow-failed-gates. The baseline file then lists this gate."
            for gate in failed
        ]
        if reasons:
            return _refuse(reasons, folder)
        accepted, present = baseline_of(record, folder, options.name), _present(out, options.name)
        for line in description(accepted, present):
            print(one_line(line))
        if not options.yes:
            if not sys.stdin.isatty():
                print("attnaudit baseline accept: nothing was written. Add --yes to accept the run.", file=sys.stderr)
                return USAGE_ERROR
            if input("Accept this run? [y/N] ").strip().lower() not in ("y", "yes"):
                return _refuse(["You did not confirm."], folder)
        print(one_line(f"accepted: {write_baseline(out, accepted)}"))
    except AuditError as error:
        print(f"attnaudit baseline accept: {shown_error(error)}", file=sys.stderr)
        return NOT_ACCEPTED
    return ACCEPTED


def _present(folder: Path, name: BaselineName) -> Baseline | None:
    """Return the existing baseline; None if there is none, or if it cannot be read.

    A baseline that cannot be read is not an error, because it is about to be replaced.
    """
    try:
        return read_baseline(folder, name)
    except ReportError as error:
        print(one_line(f"the existing baseline cannot be compared: {error}"))
        return None


def _refuse(reasons: list[str], folder: Path) -> int:
    for reason in reasons:
        print(one_line(f"- {reason}"))
    print(one_line(f"not accepted: {folder}: {plural(len(reasons), 'reason')}, listed above"))
    return NOT_ACCEPTED
