"""The tables of a report that compare each model with the baselines of its policy."""

from __future__ import annotations

from dataclasses import dataclass, replace

from attnaudit.formatting import number
from attnaudit.records import CheckRecord, RunRecord
from attnaudit.records.comparison_records import PairedValue
from attnaudit.report.difference_rows import DifferenceRow, difference_row, not_comparable_row, verdict_view

BASELINE_NAMES = {"last": "last release", "pinned": "pinned release"}


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselineTable:
    """A model on a data set, compared with one baseline.

    Attributes:
        name: The baseline, such as "last release".
        subject: The model, the data set, and the accepted run that is the baseline.
        rows: One row per paired gate.
    """

    name: str
    subject: str
    rows: tuple[DifferenceRow, ...]


def baseline_tables(run: RunRecord) -> tuple[BaselineTable, ...]:
    """Return one table for each baseline, model and data set; none without paired gates."""
    found: dict[tuple[str, str], list[DifferenceRow]] = {}
    for record in run.checks:
        if record.comparison is not None:
            name = BASELINE_NAMES.get(record.comparison.anchor, record.comparison.anchor)
            accepted = f", compared with run {record.comparison.baseline_run}" if record.comparison.baseline_run else ""
            key = (name, f"{record.model} on {record.data}{accepted}")
            found.setdefault(key, []).append(_row(record))
    return tuple(BaselineTable(name=name, subject=subject, rows=tuple(rows)) for (name, subject), rows in found.items())


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
