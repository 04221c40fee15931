"""The effect of rounding on the gates of a model that is audited in half precision.

Some rows are measured a second time in float32. The difference between the two values of a check shows how much
rounding changes it. Differences between batch sizes are rounding errors, too.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import msgspec
import numpy as np

from attnaudit.checks.paired_gate import PairedGate
from attnaudit.engine.measurements import Measurements
from attnaudit.errors import AuditError
from attnaudit.formatting import plural
from attnaudit.instances import Dataset
from attnaudit.precision import FLOAT32
from attnaudit.records import CheckRecord, Rounding
from attnaudit.run.audit_options import AuditOptions
from attnaudit.statistics.verdict import blocks, decide_again

if TYPE_CHECKING:
    from attnaudit.adapters.optional_methods import HalfPrecisionAdapter
    from attnaudit.adapters.protocol import ModelAdapter


@dataclass(frozen=True, slots=True)
class Float32Rows:
    """Rows that were measured a second time in float32.

    Attributes:
        precision: The type in which the model is audited, such as "bfloat16".
        measurements: The measurements in float32.
    """

    precision: str
    measurements: Measurements


def measured_in_float32(
    adapter: ModelAdapter, measurements: Measurements, needs: Iterable[str], options: AuditOptions
) -> Float32Rows | None:
    """Measure some rows of a model in half precision again, in float32. For other models, return None.

    Args:
        adapter: The model.
        measurements: The measurements of all rows in half precision.
        needs: The needs of the checks.
        options: The options of the audit.
    """
    if adapter.capabilities.precision == FLOAT32:
        return None
    from attnaudit.engine.measuring import measure
    from attnaudit.engine.repeated_pass import rows_to_repeat

    chosen = sorted(rows_to_repeat(measurements.ids, 0, measurements.seed))
    rows = [measurements.instances[i] for i in chosen]
    with cast("HalfPrecisionAdapter", adapter).in_float32():
        found, _ = measure(
            adapter,
            Dataset(name=measurements.data, source="", description="", instances=rows),
            sorted(needs),
            model=measurements.model,
            seed=measurements.seed,
            labels=measurements.labels[chosen].tolist(),
            device=options.device,
            batch_tokens=options.batch_tokens,
            unit=options.engine_unit,
        )
    return Float32Rows(adapter.capabilities.precision, found)


def with_rounding(
    record: CheckRecord, check: Any, measurements: Measurements, again: Float32Rows | None
) -> CheckRecord:
    """Add the effect of rounding to the record of a gate, and decide its verdict again.

    The record of an informational check, or of a model in float32, is returned unchanged.

    Args:
        record: The record.
        check: The check that gave it.
        measurements: The measurements in half precision.
        again: The rows that were measured again; None for a model in float32.
    """
    if again is None or record.severity != "gate":
        return record
    precision, wide = again.precision, again.measurements
    chosen = set(wide.ids)
    half = measurements.only(np.array([one in chosen for one in measurements.ids]))
    values = [_distance(check, one) for one in (half, wide)]
    change = None if None in values else abs(values[0] - values[1])  # type: ignore[operator]
    record = msgspec.structs.replace(record, rounding=Rounding(precision=precision, rows=len(wide), change=change))
    verdict, reason = decide_again(record)
    changed = verdict != record.verdict
    effect = "could not be measured" if change is None else f"is {change:.2g}"
    note = f"the effect of rounding in {precision} {effect} ({plural(len(wide), 'text')} measured again in float32)"
    return msgspec.structs.replace(
        record,
        verdict=verdict,
        reason=reason if changed else record.reason,
        blocks=blocks(verdict, severity=record.severity, inconclusive=record.inconclusive),
        planning=None if changed else record.planning,
        note="; ".join(filter(None, (record.note, note))),
    )


def _distance(check: Any, measurements: Measurements) -> float | None:
    """Return the value of a check, or its distance from a threshold that depends on the data. None if undefined."""
    if isinstance(check, PairedGate):
        check = dataclasses.replace(check.base, reading=check.reading)
    plain = dataclasses.replace(check, severity="report", sampling="all")
    try:
        record = plain.judge(measurements)
    except AuditError:  # The check needs a table of the whole data set, so it has no value on some of the rows.
        return None
    if record.value is None or not np.isfinite(record.value):
        return None
    relative = record.requirement is not None and record.requirement.expression is not None
    return float(record.value) - (record.requirement.value if relative and record.requirement else 0.0)
