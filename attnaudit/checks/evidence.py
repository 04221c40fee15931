"""The evidence of a check: its value, interval and references. The verdict is based on it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np
from numpy.typing import NDArray

from attnaudit.arrays import Floats
from attnaudit.disk_arrays.filed_arrays import filled, first_rows
from attnaudit.engine.measurements import Measurements
from attnaudit.formatting import marked_tokens, percentage
from attnaudit.readings import named
from attnaudit.records import (
    Breakdown,
    Chart,
    CheckRecord,
    Histogram,
    Interval,
    RankedInstance,
    Reference,
    WorstOrder,
)
from attnaudit.statistics.interval_estimate import IntervalEstimate
from attnaudit.statistics.verdict import MINIMUM_DEFINED

Detail = str | float | int | None
Mask = NDArray[np.bool_]
#: How many of the worst instances a record lists.
WORST_INSTANCES = 10
#: How many typical instances a record lists.
TYPICAL_INSTANCES = 5
HISTOGRAM_BINS = 24
#: An interval that covers at least this share of all possible values gets a remark.
WIDE = 1 / 3
#: The reason that is recorded for instances without a value if the check gives no reason.
NO_REASON = "no reason given"


@dataclass(frozen=True, slots=True)
class Typical:
    """The instances that a check chose to illustrate its value in the report.

    Attributes:
        of: Which instances are chosen, as a noun phrase.
        distances: (n,) distance of each instance from a typical instance; NaN for instances that should not be shown.
    """

    of: str
    distances: Floats


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """What a check found on n instances.

    If the value or an end of its interval is not finite, there is neither a value nor an interval, because comparisons
    with NaN are meaningless. A verdict may depend on one end only.

    Attributes:
        value: The statistic; None if it is undefined.
        interval: The interval of the statistic; None if there is none.
        defined: (n,) mask, True at the instances that the statistic is computed from.
        undefined: Reason -> the number of instances that the statistic leaves out for this reason.
        values: (n,) values per instance, NaN where undefined. They are shown in the histogram and the list of the worst
            instances. None for a statistic that exists only for a whole data set.
        values_label: The label of the histogram. It describes the values per instance.
        values_range: The range of the histogram; None to use the range of the values.
        rankable: (n,) mask, True at the instances that may be listed among the worst; None for all instances with a
            value.
        references: Values to compare the statistic with.
        reference_values: Reference name -> (n,) values, NaN where undefined. It contains each reference that a
            threshold may use.
        upper_bounds: (n,) certified upper bounds, if `values` are only lower bounds of the true values; otherwise None.
        details: Further numbers by name.
        charts: Further charts.
        note: Remarks on the value.
        no_interval: Why there is no interval, as a clause. It is "" if there is an interval, or if there is none
            because of too few independent sources.
        breakdowns: The value in parts of the data.
        typical: Which instances illustrate the value; None if the check has no values per instance.
        no_decision: As in `Measurements`. `Check.in_words` needs it for outputs that are no classes.
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
    breakdowns: tuple[Breakdown, ...] = ()
    typical: Typical | None = None
    no_decision: str = ""

    def __post_init__(self) -> None:
        numbers = [] if self.value is None else [self.value]
        if self.value is not None and self.interval is not None:
            interval = self.interval.at(self.interval.confidence)
            numbers += [interval.low, interval.high]
        if not all(map(math.isfinite, numbers)):
            object.__setattr__(self, "value", None)
            object.__setattr__(self, "interval", None)


@dataclass(frozen=True, slots=True)
class ReferenceValues:
    """A reference with one value per instance. The record of the check contains the mean of these values.

    Attributes:
        name: The name by which threshold expressions refer to the reference.
        values: (n,) values, NaN where undefined.
        meaning: What the reference is, in words.
    """

    name: str
    values: Floats
    meaning: str

    @property
    def record(self) -> Reference:
        """The reference as it is stored in records, with the mean of the values."""
        return Reference(
            name=self.name, value=mean_of(self.values), meaning=self.meaning, n=number_defined(self.values)
        )


def number_or_none(value: float) -> float | None:
    """Return the value, or None for NaN."""
    return None if np.isnan(value) else float(value)


def number_defined(values: Floats) -> int:
    """Return how many of the values are not NaN."""
    return int(np.count_nonzero(~np.isnan(values)))


def undefined_values(measurements: Measurements) -> Floats:
    """Return the values (n,) of a check that is undefined on all n instances: NaN."""
    undefined: Floats = filled(len(measurements), np.nan)
    return undefined


def mean_of(values: Floats) -> float | None:
    """Return the mean of the values that are not NaN; None if all are NaN."""
    defined = values[~np.isnan(values)]
    return float(defined.mean()) if len(defined) else None


def standard_deviation(values: Floats) -> float | None:
    """Return the sample standard deviation of the values that are not NaN; None for fewer than two such values."""
    defined = values[~np.isnan(values)]
    return float(defined.std(ddof=1)) if len(defined) > 1 else None


def count_reasons(*reasons: tuple[str, Mask]) -> dict[str, int]:
    """Count the instances by reason. An instance to which several reasons apply counts only for the first one.

    Args:
        *reasons: Pairs of a reason and its (n,) mask, in order of precedence.

    Returns:
        Reason -> the number of instances. Reasons with no instance are left out.
    """
    counts: dict[str, int] = {}
    counted: Mask | None = None
    for reason, mask in reasons:
        new = mask if counted is None else mask & ~counted
        counted = new if counted is None else counted | new
        if new.any():
            counts[reason] = int(new.sum())
    return counts


def complete_counts(counts: dict[str, int], undefined: int) -> dict[str, int]:
    """Add the instances without a value for which a check gave no reason.

    Args:
        counts: Reason -> the number of instances that have no value for this reason.
        undefined: The number of instances that have no value.

    Returns:
        The counts, which add up to `undefined`.
    """
    rest = undefined - sum(counts.values())
    return {**counts, NO_REASON: counts.get(NO_REASON, 0) + rest} if rest > 0 else counts


def too_few_different(measurements: Measurements, defined: Mask) -> int | None:
    """Count the different instances that have a value, if there are too few of them only because instances repeat.

    Args:
        measurements: The measurements of n instances.
        defined: (n,) True at the instances that have a value.

    Returns:
        The number; None if it is at least 30, or if fewer than 30 instances have a value.
    """
    if np.count_nonzero(defined) < MINIMUM_DEFINED:
        return None
    different = measurements.different(defined, MINIMUM_DEFINED)
    return different if different < MINIMUM_DEFINED else None


def single_token(measurements: Measurements) -> tuple[str, Mask]:
    """Return the reason "a single token", and the (n,) mask of instances with fewer than two tokens."""
    return "a single token", measurements.lengths < 2


def no_real_attention(measurements: Measurements) -> tuple[str, Mask]:
    """Return the reason "no attention on real tokens", and the (n,) mask of instances to which it applies."""
    return "no attention on real tokens", np.isnan(measurements.scalar("attention.max"))


def predictions_of_model(measurements: Measurements) -> Floats:
    """Return the (n, 1) class indices that the audited model predicts."""
    return measurements.predicted.astype(np.float64)[:, None]


def means_by_predicted_class(measurements: Measurements, values: Floats) -> dict[str, Detail]:
    """Return class -> mean value of the instances that the model assigns to it; None if no such instance has a value.

    The result is empty if the output is not a decision.
    """
    if measurements.no_decision:
        return {}
    return {
        f"mean where '{name}' is predicted": mean_of(values[measurements.predicted == index])
        for index, name in enumerate(measurements.classes)
    }


def histogram(values: Floats, label: str, bounds: tuple[float, float] | None) -> Histogram | None:
    """Count the values in 24 bins of equal width. NaN is left out.

    Args:
        values: (n,) values.
        label: The label of the histogram, which says what the values are.
        bounds: The range of the bins. Values outside are counted in the first or last bin. None to use the range of the
            values.

    Returns:
        The counts; None if every value is NaN.
    """
    defined = values[~np.isnan(values)]
    if not len(defined):
        return None
    low, high = bounds or (float(defined.min()), float(defined.max()))
    size = max(abs(low), abs(high))
    if high - low < 1e-9 * max(1.0, size):
        half = max(0.5, 1e-6 * size)
        low, high = low - half, high + half
    counts, edges = np.histogram(np.clip(defined, low, high), bins=HISTOGRAM_BINS, range=(low, high))
    return Histogram(edges=[float(e) for e in edges], counts=[int(c) for c in counts], label=label)


def worst_instances(measurements: Measurements, evidence: Evidence, worst: WorstOrder) -> list[RankedInstance]:
    """List up to 10 instances with the worst values. The list is empty if the check has no values per instance.

    Instances with the same value are sorted by their largest attention weight, largest first, and then by id.
    """
    if evidence.values is None:
        return []
    allowed = ~np.isnan(evidence.values)
    if evidence.rankable is not None:
        allowed &= evidence.rankable
    peak = measurements.scalars.get("attention.max")
    ids, values, rows = measurements.ids, evidence.values, np.flatnonzero(allowed)
    ordered = [values[rows] if worst == "lowest" else -values[rows]]
    ordered += [] if peak is None else [-np.nan_to_num(peak[rows], nan=0.0)]
    rows = rows[first_rows(WORST_INSTANCES, *ordered)].tolist()  # equal rows follow the ids
    return [
        RankedInstance(instance=ids[row], value=float(values[row]), tokens=_tokens(measurements, row)) for row in rows
    ]


def typical_instances(measurements: Measurements, evidence: Evidence) -> list[RankedInstance]:
    """List up to 5 instances that `Evidence.typical` chooses, the most typical one first."""
    if evidence.typical is None or evidence.values is None:
        return []
    ids, distances, values = measurements.ids, evidence.typical.distances, evidence.values
    allowed = np.flatnonzero(~np.isnan(distances) & ~np.isnan(values))
    rows = allowed[first_rows(TYPICAL_INSTANCES, distances[allowed])].tolist()  # equal rows follow the ids
    return [
        RankedInstance(instance=ids[row], value=float(values[row]), tokens=_tokens(measurements, row)) for row in rows
    ]


def _tokens(measurements: Measurements, row: int) -> str:
    """Return the tokens around the most attended token as text, with the most attended token marked.

    For a part of a picture or a recording, return its name and its place instead.
    """
    attention = measurements.vectors.get("attention")
    most_attended = None if attention is None or not len(attention[row]) else int(np.argmax(attention[row]))
    if most_attended is not None and measurements.boxes and len(measurements.boxes[row]):
        place = box_in_words(measurements.boxes[row][most_attended].tolist())
        return f"«{measurements.tokens[row][most_attended]}» at {place}"
    if most_attended is not None and measurements.times and len(measurements.times[row]):
        return "«{}» from {:.3g} s to {:.3g} s".format(
            measurements.tokens[row][most_attended], *measurements.times[row][most_attended].tolist()
        )
    return marked_tokens(measurements.tokens[row], most_attended)


def box_in_words(box: Sequence[float]) -> str:
    """Return the place of a box (x, y, width, height) in its picture, in words."""
    x, y, width, height = box
    return f"{x:.0%} to {x + width:.0%} of the width and {y:.0%} to {y + height:.0%} of the height"


def with_note(record: CheckRecord, remark: str) -> CheckRecord:
    """Return a copy of the record with a remark added at the end of its note."""
    return msgspec.structs.replace(record, note=join_remarks([record.note, remark]))


def join_remarks(remarks: Iterable[str]) -> str:
    """Join the remarks that are not empty with semicolons."""
    return "; ".join(remark for remark in remarks if remark)


def remarks_on_interval(interval: Interval | None, coverage_warning: str, bounds: tuple[float, float]) -> list[str]:
    """Return a remark if an interval covers at least a third of all possible values, and the warning, if there is one.

    Args:
        interval: The interval; None if there is none.
        coverage_warning: Why the interval may be too narrow; "" if nothing suggests that.
        bounds: The lowest and the highest possible value.
    """
    remarks = [coverage_warning] if coverage_warning else []
    span = bounds[1] - bounds[0]
    if interval is None or not math.isfinite(span) or interval.high - interval.low < WIDE * span:
        return remarks
    share = percentage((interval.high - interval.low) / span)
    return [f"the interval covers {share} of the possible values, so the value is hardly known", *remarks]


def measured_columns(measurements: Measurements, columns: Iterable[str], reading: str) -> list[str]:
    """Return the names of the columns that were measured, with the reading if a column depends on it."""
    measured: list[str] = []
    for name in columns:
        if name.endswith("*"):
            measured += sorted(c for c in measurements.per_token if c.startswith(name[:-1]))[:1]
        elif name in measurements.per_token:
            measured.append(name)
    return [c if c in measurements.shared else named(c, reading) for c in dict.fromkeys(measured)]
