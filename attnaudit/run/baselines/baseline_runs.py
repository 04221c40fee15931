"""Compare a run with the runs that were accepted as its baselines, so that its report can show more than the gates.

A baseline file contains only the numbers of the gated checks. The numbers of the other checks, the accuracy and the
attention weights are in the folder of the accepted run, if this folder still exists.
"""

from __future__ import annotations

import math
from pathlib import Path

from attnaudit.errors import ReportError
from attnaudit.records import RunRecord
from attnaudit.report.two_runs.baseline_tables import BaselineRun
from attnaudit.run.comparison.compare_runs import compare_records
from attnaudit.run.verification.integrity import read_unedited

#: The largest relative difference between a value in a baseline file, which is computed from numbers with six digits,
#: and the same value in the accepted run.
TOLERANCE = 1e-4


def compare_with_baselines(run: RunRecord, folder: Path) -> list[BaselineRun]:
    """Compare a run with each run that was accepted as one of its baselines.

    Args:
        run: The record of the run.
        folder: The folder of the run, with measurements.parquet. The folders of the accepted runs must be next to it.

    Returns:
        One entry for each accepted run. If the run cannot be compared with it, the entry gives the reason.
    """
    names = dict.fromkeys(
        record.comparison.baseline_run for record in run.checks if record.comparison and record.comparison.baseline_run
    )
    return [_compared(run, folder, name) for name in names]


def _compared(run: RunRecord, folder: Path, name: str) -> BaselineRun:
    base_folder = folder.resolve().parent / Path(name).name
    if not (base_folder / "audit.json").is_file():
        reason = f"the reports folder of this run does not contain run {name}"
        return BaselineRun(run=name, folder=base_folder, reason=reason)
    try:
        base = read_unedited(base_folder)
        if not _was_accepted(base, run):
            reason = f"run {name} has other values than the baseline, so it is not the run that was accepted"
            return BaselineRun(run=name, folder=base_folder, reason=reason)
        comparison = compare_records((base, base_folder), (run, folder))
    except ReportError as error:
        return BaselineRun(run=name, folder=base_folder, reason=str(error).rstrip("."))
    return BaselineRun(run=name, folder=base_folder, comparison=comparison)


def _was_accepted(base: RunRecord, run: RunRecord) -> bool:
    """Return whether a run has the values that the baseline file recorded for it."""
    recorded = {(record.model, record.data, record.check): record.value for record in base.checks}
    for record in run.checks:
        known = record.comparison
        if known is None or known.baseline_run != base.run or known.baseline is None:
            continue
        value = recorded.get((known.baseline_model, record.data, known.base))
        if value is None or not math.isclose(value, known.baseline, rel_tol=TOLERANCE, abs_tol=TOLERANCE):
            return False
    return True
