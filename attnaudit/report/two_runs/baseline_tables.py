"""The part of a report that compares each model with the baselines of its policy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from attnaudit.formatting import number
from attnaudit.records import BASELINE_NAMES, CheckRecord, RunRecord
from attnaudit.records.comparison_records import Comparison, PairedValue
from attnaudit.report.run_files import MeasurementsFile
from attnaudit.report.two_runs.comparison_view import SubjectComparison, assemble_comparison
from attnaudit.report.two_runs.difference_rows import DifferenceRow, difference_row, not_comparable_row, verdict_view


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselineRun:
    """A run that was accepted as a baseline, compared with the run of the report.

    Attributes:
        run: The name of the accepted run.
        folder: Its folder.
        comparison: The comparison; None if there is none.
        reason: Why there is no comparison, as a clause; "" if there is one.
    """

    run: str
    folder: Path
    comparison: Comparison | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselineTable:
    """A model on a data set, compared with one baseline.

    Attributes:
        name: The baseline, such as "last release".
        subject: The model, the data set, and the accepted run that is the baseline.
        rows: One row per paired gate.
        details: All checks, accuracy and F1, and the instances that changed most; None if they are not shown.
        policy: A sentence about the policies of both runs; "" if no details are shown.
        note: Why the details are not shown, as a sentence; "" if they are.
    """

    name: str
    subject: str
    rows: tuple[DifferenceRow, ...]
    details: SubjectComparison | None
    policy: str
    note: str


def baseline_tables(
    run: RunRecord, measurements: MeasurementsFile, baseline_runs: Sequence[BaselineRun]
) -> tuple[BaselineTable, ...]:
    """Return one table for each baseline, model and data set; none without paired gates.

    Args:
        run: The record of the run.
        measurements: The measurements of the run.
        baseline_runs: The comparisons with the accepted runs. If two baselines are the same run, its details are
            shown once.
    """
    grouped: dict[tuple[str, str, str, str], list[CheckRecord]] = {}
    for record in run.checks:
        if record.comparison is not None:
            key = (record.comparison.baseline_name, record.comparison.baseline_run, record.model, record.data)
            grouped.setdefault(key, []).append(record)
    details = _details(measurements, baseline_runs)
    shown: dict[tuple[str, str, str], str] = {}
    tables = []
    for (baseline_name, accepted, model, data), records in grouped.items():
        name = next((long for short, long in BASELINE_NAMES.items() if short == baseline_name), baseline_name)
        found, policy, note = details.get((accepted, model, data)), "", ""
        if earlier := shown.get((accepted, model, data)):
            found, note = None, f"The {name} is the same run as the {earlier}: see above."
        elif found is not None:
            shown[accepted, model, data] = name
            policy = found[1]
        elif accepted:
            reason = next((one.reason for one in baseline_runs if one.run == accepted and one.reason), "")
            note = f"Accuracy, the other checks and the texts of the {name} are not shown: " + (
                reason or f"run {accepted} cannot be compared with this model"
            )
            note = f"{note}."
        tables.append(
            BaselineTable(
                name=name,
                subject=f"{model} on {data}" + (f", compared with run {accepted}" if accepted else ""),
                rows=tuple(map(_row, records)),
                details=found[0] if found else None,
                policy=policy,
                note=note,
            )
        )
    return tuple(tables)


def _details(
    measurements: MeasurementsFile, baseline_runs: Sequence[BaselineRun]
) -> dict[tuple[str, str, str], tuple[SubjectComparison, str]]:
    """Return the accepted run, the model and the data set -> their comparison, and a sentence about the policies."""
    found = {}
    position = 0
    for one in baseline_runs:
        if one.comparison is None:
            continue
        page = assemble_comparison(one.comparison, MeasurementsFile(one.folder), measurements, first_position=position)
        position += len(page.subjects)
        for subject, records in zip(page.subjects, one.comparison.subjects, strict=True):
            found[one.run, records.candidate_model, records.candidate_data] = (subject, page.policy)
    return found


def _row(record: CheckRecord) -> DifferenceRow:
    """Return the row of a paired gate."""
    compared = record.comparison
    if compared is None or record.value is None:
        values = (compared.baseline, compared.candidate) if compared else (None, None)
        row = not_comparable_row(record.title, *values)
        reason = record.reason
    else:
        row = difference_row(
            PairedValue(
                name=record.title,
                base=compared.baseline,
                candidate=compared.candidate,
                difference=record.value,
                interval=record.interval,
                detectable=None,
                n=record.n_defined,
                changed=int(record.value != 0 or record.interval is None or record.interval.low < record.interval.high),
                direction=record.requirement.direction if record.requirement else None,
            )
        )
        reason = "" if record.interval else record.reason
    return replace(
        row,
        title=record.title,
        id=record.check,
        role=f"margin {number(abs(record.requirement.value))}" if record.requirement else "",
        verdicts=(verdict_view(record),),
        reason=reason,
    )
