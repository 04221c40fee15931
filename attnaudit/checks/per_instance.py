"""The base of most checks: one number per instance, and the mean of those numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from attnaudit.arrays import Floats
from attnaudit.checks.base import Check
from attnaudit.checks.evidence import (
    Detail,
    Evidence,
    Mask,
    ReferenceValues,
    count_reasons,
    mean_of,
    means_by_predicted_class,
)
from attnaudit.engine.measurements import Measurements
from attnaudit.records import Chart, Reference
from attnaudit.statistics.groups import Groups
from attnaudit.statistics.interval_estimate import IntervalEstimate
from attnaudit.statistics.intervals import mean_interval


@dataclass(frozen=True, kw_only=True)
class PerInstanceCheck(Check):
    """A check whose statistic is, unless a subclass says otherwise, the mean of one number per instance.

    A subclass gives `values`, the static facts of `Check` as class attributes (or as properties, where they depend on
    its arguments), and whichever of the other methods it has something to say in. Value, interval, histogram and worst
    instances follow from the values.
    """

    #: Whether the details list the mean value for each predicted class.
    lists_classes: ClassVar[bool] = True

    @property
    def values_label(self) -> str:
        """What the values per instance are, under the histogram."""
        return f"{self.unit} per instance"

    @property
    def values_range(self) -> tuple[float, float] | None:
        """The range of the histogram: by default the bounds; None for the range of the values."""
        return self.bounds if all(map(math.isfinite, self.bounds)) else None

    def values(self, measurements: Measurements) -> Floats:
        """Return the (n,) values, NaN where an instance has none."""
        raise NotImplementedError

    def references(self, measurements: Measurements, values: Floats) -> Sequence[ReferenceValues | Reference]:
        """Return the values to compare with: per instance, or one for the whole data set."""
        return ()

    def undefined_reasons(self, measurements: Measurements, undefined: Mask) -> Sequence[tuple[str, Mask]]:
        """Return why instances have no value, as (reason, mask) in order of precedence.

        Args:
            measurements: what was measured.
            undefined: (n,) mask, True where there is no value; as the last mask it covers all remaining instances.
        """
        return (("not measured", undefined),)

    def details(self, measurements: Measurements, values: Floats) -> dict[str, Detail]:
        """Return further numbers, by name."""
        return {}

    def charts(self, measurements: Measurements, values: Floats) -> Sequence[Chart]:
        """Return further charts."""
        return ()

    def note(self, measurements: Measurements, values: Floats) -> str:
        """Return a remark on the value."""
        return ""

    def value(self, measurements: Measurements, values: Floats, groups: Groups) -> float | None:
        """Return the statistic of the values; None where it is undefined."""
        return mean_of(values)

    def interval(self, measurements: Measurements, values: Floats, groups: Groups) -> IntervalEstimate | None:
        """Return the interval of the statistic; None where there is none."""
        return self.mean_interval(measurements, values, groups)

    def mean_interval(self, measurements: Measurements, values: Floats, groups: Groups) -> IntervalEstimate | None:
        """Return the interval of the mean of (n,) values over the instances of the groups."""
        return mean_interval(
            values,
            groups,
            confidence=self.confidence,
            generator=self.generator(measurements, "interval"),
            bounds=self.bounds,
        )

    def upper_bounds(self, measurements: Measurements) -> Floats | None:
        """Return (n,) certified upper bounds, where `values` are only lower bounds of the true values."""
        return None

    def no_interval(self, value: float | None, groups: Groups) -> str:
        """Return why there is no interval, where that is not for want of sources."""
        return ""

    def evidence(self, measurements: Measurements) -> Evidence:
        """Return the statistic of the values, its interval, and what to compare it with."""
        values = self.values(measurements)
        undefined = np.isnan(values)
        groups = Groups.of(measurements.instances, ~undefined)
        value = self.value(measurements, values, groups)
        interval = self.interval(measurements, values, groups)
        references = self.references(measurements, values)
        by_class = means_by_predicted_class(measurements, values) if self.lists_classes else {}
        reasons = self.undefined_reasons(measurements, undefined)
        return Evidence(
            value=value,
            interval=interval,
            defined=~undefined,
            undefined=count_reasons(*((reason, mask & undefined) for reason, mask in reasons)),
            values=values,
            values_label=self.values_label,
            values_range=self.values_range,
            references=tuple(one.record if isinstance(one, ReferenceValues) else one for one in references),
            reference_values={
                one.name: one.values
                for one in references
                if isinstance(one, ReferenceValues) and one.name in self.threshold_references
            },
            upper_bounds=self.upper_bounds(measurements),
            details={**self.details(measurements, values), **by_class},
            charts=tuple(self.charts(measurements, values)),
            note=self.note(measurements, values),
            no_interval=self.no_interval(value, groups) if interval is None else "",
        )
