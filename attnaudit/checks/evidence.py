"""What a check reads off the measurements: its value, interval and references, before a verdict is reached."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import msgspec
import numpy as np
from numpy.typing import NDArray

from attnaudit.arrays import Floats
from attnaudit.engine.measurements import Measurements
from attnaudit.formatting import marked_tokens
from attnaudit.records import Chart, CheckRecord, Histogram, RankedInstance, Reference, WorstOrder
from attnaudit.statistics.interval_estimate import IntervalEstimate

Detail = str | float | int | None
Mask = NDArray[np.bool_]
#: How many of the worst instances a record names.
WORST_INSTANCES = 10
HISTOGRAM_BINS = 24


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """What a check found on n instances.

    Attributes:
        value: the statistic; None where it is undefined.
        interval: its interval; None where there is none.
        defined: (n,) mask, True at the instances that the statistic counts.
        undefined: why instances do not count -> how many.
        values: (n,) values per instance, NaN where undefined, for the histogram and the worst instances; None for a
            statistic of one whole data set.
        values_label: what the values per instance are, under the histogram.
        values_range: the range of the histogram; by default that of the values.
        rankable: (n,) mask, True at instances that may be shown among the worst; by default all that have a value.
        references: values to compare with.
        reference_values: name -> (n,) values per instance of the references that a threshold may be relative to.
        upper_bounds: (n,) certified upper bounds, where `values` are only lower bounds of the true values.
        details: further numbers, by name.
        charts: further charts.
        note: remarks on the value.
        no_interval: why there is no interval, where that is not for want of sources.
    """

    value: float | None
    interval: IntervalEstimate | None
    defined: Mask
    undefined: dict[str, int] = field(default_factory=dict)
    values: Floats | None = None
    values_label: str = ""
    values_range: tuple[float, float] | None = None
    rankable: Mask | None = None
    references: tuple[Reference, ...] = ()
    reference_values: dict[str, Floats] = field(default_factory=dict)
    upper_bounds: Floats | None = None
    details: dict[str, Detail] = field(default_factory=dict)
    charts: tuple[Chart, ...] = ()
    note: str = ""
    no_interval: str = ""


@dataclass(frozen=True, slots=True)
class ReferenceValues:
    """A reference that has a value for every instance. Its value in the record is their mean.

    Attributes:
        name: an identifier, which threshold expressions may use.
        values: (n,) values, NaN where undefined.
        meaning: what it is, in words.
    """

    name: str
    values: Floats
    meaning: str

    @property
    def record(self) -> Reference:
        """The reference as a record shows it."""
        defined = int((~np.isnan(self.values)).sum())
        return Reference(name=self.name, value=mean_of(self.values), meaning=self.meaning, n=defined)


def number_or_none(value: float) -> float | None:
    """Return the value as a record holds it: None in place of NaN."""
    return None if np.isnan(value) else float(value)


def mean_of(values: Floats) -> float | None:
    """Return the mean of the values that are not NaN; None where there are none."""
    defined = values[~np.isnan(values)]
    return float(defined.mean()) if len(defined) else None


def standard_deviation(values: Floats) -> float | None:
    """Return the sample standard deviation of the values that are not NaN; None for fewer than two."""
    defined = values[~np.isnan(values)]
    return float(defined.std(ddof=1)) if len(defined) > 1 else None


def count_reasons(*reasons: tuple[str, Mask]) -> dict[str, int]:
    """Count instances by the first reason whose mask holds for them.

    Args:
        reasons: (reason, (n,) mask) in order of precedence.

    Returns:
        reason -> number of instances; reasons that count none are left out.
    """
    counts: dict[str, int] = {}
    counted: Mask | None = None
    for reason, holds in reasons:
        new = holds if counted is None else holds & ~counted
        counted = new if counted is None else counted | new
        if new.any():
            counts[reason] = int(new.sum())
    return counts


def single_token(measurements: Measurements) -> tuple[str, Mask]:
    """Return the reason for instances with fewer than two tokens."""
    return "a single token", measurements.lengths < 2


def no_real_attention(measurements: Measurements) -> tuple[str, Mask]:
    """Return the reason for instances whose attention is all on special tokens, or nowhere."""
    return "no attention on real tokens", np.isnan(measurements.scalar("attention.max"))


def means_by_predicted_class(measurements: Measurements, values: Floats) -> dict[str, Detail]:
    """Return the mean value of the instances that are predicted as each class."""
    return {
        f"mean where '{name}' is predicted": mean_of(values[measurements.predicted == index])
        for index, name in enumerate(measurements.classes)
    }


def histogram(values: Floats, label: str, span: tuple[float, float] | None) -> Histogram | None:
    """Count the values that are not NaN over `span`, or over their own range; None where there are none."""
    defined = values[~np.isnan(values)]
    if not len(defined):
        return None
    low, high = span or (float(defined.min()), float(defined.max()))
    size = max(abs(low), abs(high))
    if high - low < 1e-9 * max(1.0, size):
        half = max(0.5, 1e-6 * size)
        low, high = low - half, high + half
    counts, edges = np.histogram(np.clip(defined, low, high), bins=HISTOGRAM_BINS, range=(low, high))
    return Histogram(edges=[float(e) for e in edges], counts=[int(c) for c in counts], label=label)


def worst_instances(measurements: Measurements, evidence: Evidence, worst: WorstOrder) -> list[RankedInstance]:
    """Return the instances with the worst values; among equals those with the most peaked attention, then by id."""
    if evidence.values is None:
        return []
    allowed = ~np.isnan(evidence.values)
    if evidence.rankable is not None:
        allowed &= evidence.rankable
    peak = measurements.scalars.get("attention.max")
    sign = 1.0 if worst == "lowest" else -1.0
    ids, values = measurements.ids, evidence.values

    def key(row: int) -> tuple[float, float, str]:
        top = 0.0 if peak is None or np.isnan(peak[row]) else float(peak[row])
        return (sign * float(values[row]), -top, ids[row])

    rows = sorted(np.flatnonzero(allowed).tolist(), key=key)[:WORST_INSTANCES]
    return [
        RankedInstance(instance=ids[row], value=float(values[row]), tokens=_tokens(measurements, row)) for row in rows
    ]


def _tokens(measurements: Measurements, row: int) -> str:
    """The tokens of an instance as text, the most attended one marked."""
    attention = measurements.vectors.get("attention")
    top = None if attention is None or not len(attention[row]) else int(np.argmax(attention[row]))
    return marked_tokens(measurements.tokens[row], top)


def with_note(record: CheckRecord, remark: str) -> CheckRecord:
    """Return the record with one more remark in its note."""
    return msgspec.structs.replace(record, note=join_remarks([record.note, remark]))


def join_remarks(remarks: Iterable[str]) -> str:
    """Join the remarks that are not empty, by semicolons."""
    return "; ".join(remark for remark in remarks if remark)
