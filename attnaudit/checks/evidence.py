"""What a check found, before a verdict is drawn from it."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec
import numpy as np
from numpy.typing import NDArray

from attnaudit.arrays import Floats
from attnaudit.engine.measurements import Measurements
from attnaudit.formatting import marked_tokens
from attnaudit.records import Chart, CheckRecord, Histogram, RankedInstance, Reference
from attnaudit.statistics.interval_estimate import IntervalEstimate

Detail = str | float | int | None
SHOWN = 10


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """value: the statistic, None where it is undefined. values: (n,) what is drawn and ranked, NaN where undefined, or
    None for a statistic of the whole data set. defined: (n,) which instances the statistic counts. undefined: reason ->
    how many instances. ranked: (n,) which instances may be shown as the worst; all defined ones by default.
    reference_values: (n,) per instance, of the references whose mean a threshold can be relative to. upper: (n,) where
    the values are only known to lie between `values` and it. no_interval: why there is no interval, where it is not
    for want of sources."""

    value: float | None
    interval: IntervalEstimate | None
    defined: NDArray[np.bool_]
    undefined: dict[str, int] = field(default_factory=dict)
    values: Floats | None = None
    values_label: str = ""
    values_range: tuple[float, float] | None = None
    ranked: NDArray[np.bool_] | None = None
    references: tuple[Reference, ...] = ()
    reference_values: dict[str, Floats] = field(default_factory=dict)
    upper: Floats | None = None
    details: dict[str, Detail] = field(default_factory=dict)
    charts: tuple[Chart, ...] = ()
    note: str = ""
    no_interval: str = ""


def mean_of(values: Floats) -> float | None:
    """Mean of the defined values; None when there is none."""
    kept = values[~np.isnan(values)]
    return float(kept.mean()) if len(kept) else None


def reference(name: str, values: Floats, meaning: str) -> Reference:
    return Reference(name=name, value=mean_of(values), meaning=meaning, n=int((~np.isnan(values)).sum()))


def reasons(*pairs: tuple[str, NDArray[np.bool_]]) -> dict[str, int]:
    """Counts by the first reason that holds; reasons that hold nowhere are left out."""
    counts: dict[str, int] = {}
    taken: NDArray[np.bool_] | None = None
    for reason, holds in pairs:
        fresh = holds if taken is None else holds & ~taken
        taken = fresh if taken is None else taken | fresh
        if fresh.any():
            counts[reason] = int(fresh.sum())
    return counts


def not_shown(measurements: Measurements, missing: NDArray[np.bool_]) -> tuple[str, NDArray[np.bool_]]:
    """The reason of those of the missing instances whose attention is all on special tokens, or nowhere."""
    return "no attention on real tokens", missing & np.isnan(measurements.scalar("attention.max"))


def histogram(values: Floats, label: str, span: tuple[float, float] | None, bins: int = 24) -> Histogram | None:
    """Counts of the defined values over `span`, or over their own range."""
    kept = values[~np.isnan(values)]
    if not len(kept):
        return None
    low, high = span or (float(kept.min()), float(kept.max()))
    size = max(abs(low), abs(high))
    if high - low < 1e-9 * max(1.0, size):
        half = max(0.5, 1e-6 * size)
        low, high = low - half, high + half
    counts, edges = np.histogram(np.clip(kept, low, high), bins=bins, range=(low, high))
    return Histogram(edges=[float(e) for e in edges], counts=[int(c) for c in counts], label=label)


def worst_instances(measurements: Measurements, evidence: Evidence, *, lowest: bool) -> list[RankedInstance]:
    """Return the instances with the worst values; among equals those with the most peaked attention, then by id."""
    if evidence.values is None:
        return []
    allowed = ~np.isnan(evidence.values)
    if evidence.ranked is not None:
        allowed &= evidence.ranked
    peak = measurements.scalars.get("attention.max")
    sign = 1.0 if lowest else -1.0
    ids, values = measurements.ids, evidence.values

    def key(row: int) -> tuple[float, float, str]:
        top = 0.0 if peak is None or np.isnan(peak[row]) else float(peak[row])
        return (sign * float(values[row]), -top, ids[row])

    rows = sorted(np.flatnonzero(allowed).tolist(), key=key)[:SHOWN]
    return [
        RankedInstance(instance=ids[row], value=float(values[row]), tokens=_tokens(measurements, row)) for row in rows
    ]


def _tokens(measurements: Measurements, row: int) -> str:
    """The tokens of an instance, with the most attended one marked."""
    attention = measurements.vectors.get("attention")
    top = None if attention is None or not len(attention[row]) else int(np.argmax(attention[row]))
    return marked_tokens(measurements.tokens[row], top)


def with_note(record: CheckRecord, remark: str) -> CheckRecord:
    """Return the record with one more remark in its note."""
    return msgspec.structs.replace(record, note=joined(record.note, remark))


def joined(*remarks: str) -> str:
    """Join the remarks that are not empty."""
    return "; ".join(remark for remark in remarks if remark)


def by_predicted_class(measurements: Measurements, values: Floats) -> dict[str, Detail]:
    """Mean of the defined values among the instances predicted as each class."""
    return {
        f"mean where '{name}' is predicted": mean_of(values[measurements.predicted == index])
        for index, name in enumerate(measurements.classes)
    }
