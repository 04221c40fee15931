"""The base class of checks whose statistic is computed from one number per instance."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np

from attnaudit.arrays import Floats
from attnaudit.checks.base import Check
from attnaudit.checks.breakdowns import breakdowns
from attnaudit.checks.builtin_types import number, numbers
from attnaudit.checks.evidence import (
    Detail,
    Evidence,
    Mask,
    ReferenceValues,
    Typical,
    count_reasons,
    mean_of,
    means_by_predicted_class,
)
from attnaudit.checks.sequential import NO_SEQUENCE, RowSequence, rows_in_order
from attnaudit.engine.measurements import Measurements
from attnaudit.errors import CheckError
from attnaudit.records import Chart, Reference
from attnaudit.statistics.confidence_sequence import ConfidenceSequence, RatioBounds
from attnaudit.statistics.groups import Groups
from attnaudit.statistics.interval_estimate import EQUAL, IntervalEstimate
from attnaudit.statistics.intervals import mean_interval

#: The statistics that are means of the values per instance.
MEANS = ("mean", "proportion")


@dataclass(frozen=True, kw_only=True)
class PerInstanceCheck(Check):
    """The base class of checks with one number per instance. By default, the statistic is the mean of these numbers.

    A subclass defines `values`, `needs` and the attributes that `Check` requires. The statistic, its interval, the
    histogram and the worst instances are computed from the values. All other methods have defaults, which a subclass
    can override to report more. A subclass that sets `statistic` to another statistic than "mean" must override `value`
    and `interval`; otherwise, creating the check raises a CheckError. Example of a complete check:

        @registered
        @dataclass(frozen=True, kw_only=True)
        class LargestWeight(PerInstanceCheck):
            \"\"\"Mean over instances of the largest attention weight.\"\"\"

            directions: ClassVar[tuple[Direction, ...]] = ("at_most",)

            family = "attention"
            title = "Attention is spread"
            question = "Does one token hold nearly all of the attention?"
            why = "If one token has all of the attention, the weights do not rank the other tokens."
            unit = "weight"
            bounds = (0.0, 1.0)
            worst = "highest"
            subject = "largest_weight"

            def needs(self) -> tuple[str, ...]:
                return ("attention",)

            def values(self, measurements: Measurements) -> Floats:
                return measurements.scalar("attention.max")
    """

    #: Whether the details list the mean value of each predicted class.
    lists_classes: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require_own_statistic()

    @property
    def values_label(self) -> str:
        """The label of the histogram. It describes the values per instance."""
        return f"{self.unit} per instance"

    @property
    def values_range(self) -> tuple[float, float] | None:
        """The range of the histogram: the bounds if they are finite, otherwise None for the range of the values."""
        return self.bounds if all(map(math.isfinite, self.bounds)) else None

    @abstractmethod
    def values(self, measurements: Measurements) -> Floats:
        """Return the values of the instances.

        Args:
            measurements: The measurements of n instances under one reading.

        Returns:
            (n,) values, NaN where undefined.
        """

    def references(self, measurements: Measurements, values: Floats) -> Sequence[ReferenceValues | Reference]:
        """Return the values to compare the statistic with.

        Args:
            measurements: The measurements under one reading.
            values: (n,) values, as `values` returned them.

        Returns:
            The references. A `ReferenceValues` has one number per instance, and a threshold may name it if it is listed
            in `threshold_references`. A `Reference` has one number for the whole data set.
        """
        return ()

    def undefined_reasons(self, measurements: Measurements, undefined: Mask) -> Sequence[tuple[str, Mask]]:
        """Return why instances have no value.

        Args:
            measurements: The measurements under one reading.
            undefined: (n,) mask, True at instances without a value.

        Returns:
            Pairs of a reason and its (n,) mask, in order of precedence. Instances that have a value are ignored, even
            if a mask is True for them. The last mask can be `undefined`, for the instances to which no other reason
            applies.
        """
        return (("not measured", undefined),)

    def details(self, measurements: Measurements, values: Floats) -> dict[str, Detail]:
        """Return further numbers for the report, by name."""
        return {}

    def charts(self, measurements: Measurements, values: Floats) -> Sequence[Chart]:
        """Return further charts for the report."""
        return ()

    def value_of_part(self, measurements: Measurements, values: Floats, part: Mask) -> float | None:
        """Return the value on a part of the instances, for the breakdowns of a gate.

        Args:
            measurements: The measurements under one reading.
            values: (n,) values, as `values` returned them.
            part: (n,) True at the instances of the part. It has at least one instance, and all of them have a value.
        """
        return mean_of(values[part])

    def typical(self, measurements: Measurements, values: Floats) -> Typical:
        """Choose instances that illustrate the value: by default, instances with about the median value."""
        median = np.nan if np.isnan(values).all() else np.nanmedian(values)
        return Typical("instances with about the median value", np.abs(values - median))

    def note(self, measurements: Measurements, values: Floats) -> str:
        """Return a remark on the value, as a clause without a full stop; "" if there is no remark."""
        return ""

    def value(self, measurements: Measurements, values: Floats, groups: Groups) -> float | None:
        """Return the statistic of the values; None if it is undefined.

        A check that overrides this method must override `interval`, too.
        """
        return mean_of(values)

    def interval(self, measurements: Measurements, values: Floats, groups: Groups) -> IntervalEstimate | None:
        """Return the interval of the statistic; None if there is none."""
        return self.interval_of_mean(measurements, values, groups)

    def interval_of_mean(self, measurements: Measurements, values: Floats, groups: Groups) -> IntervalEstimate | None:
        """Return the interval of the mean of (n,) values over the instances in the groups; None if there is none."""
        return mean_interval(
            values,
            groups,
            confidence=self.confidence,
            generator=self.generator(measurements, "interval"),
            bounds=self.bounds,
        )

    @property
    def not_linearised(self) -> str:
        return "" if self.statistic in MEANS else f"its value is a {self.statistic}, not a mean over the instances"

    def linearised_values(self, measurements: Measurements) -> Floats:
        return super().linearised_values(measurements) if self.not_linearised else self._values_as_floats(measurements)

    def no_interval(self, measurements: Measurements, value: float | None, groups: Groups) -> str:
        """Return why there is no interval, as a clause; "" means that there are too few independent sources."""
        return ""

    def upper_bounds(self, measurements: Measurements) -> Floats | None:
        """Return (n,) certified upper bounds of the true values if `values` are only lower bounds; otherwise None."""
        return None

    def row_sequence(self, measurements: Measurements) -> RowSequence | str:
        """Return the confidence sequence of the mean. If the values have no finite bounds, return why there is none."""
        # The values of other checks may depend on other instances.
        of_attnaudit = type(self).__module__.startswith("attnaudit.")
        is_mean = self.statistic == "mean" and type(self).interval is PerInstanceCheck.interval
        if not (of_attnaudit and is_mean and all(map(math.isfinite, self.bounds))):
            return NO_SEQUENCE
        return self.sequence_of_mean(measurements)

    def sequence_of_mean(self, measurements: Measurements) -> RowSequence:
        """Return the confidence sequence of the mean of values with finite bounds."""
        values = self.values(measurements)
        rows = np.array(rows_in_order(measurements, ~np.isnan(values)), dtype=np.int64)
        low, high = self.bounds
        bounds = RatioBounds(low=low, high=high)
        sequence = ConfidenceSequence.of(values[rows], np.ones(len(rows)), bounds, confidence=self.confidence)
        return RowSequence(sequence=sequence, rows=rows)

    def evidence(self, measurements: Measurements) -> Evidence:
        """Compute the evidence from the values per instance.

        Raises:
            CheckError: `values` returned another number of values, infinite values, or no numbers; or `value` returned
                no number, or one outside the interval of the mean, while `interval` is not overridden.
        """
        values = self._values_as_floats(measurements)
        if np.shape(values) != (len(measurements),):
            raise CheckError(
                f"{self.name_in_errors}: values() returned an array of shape {np.shape(values)}; expected "
                f"({len(measurements)},), one number per instance."
            )
        infinite = np.flatnonzero(np.isinf(values))
        if len(infinite):
            first = measurements.instances[int(infinite[0])]
            raise CheckError(
                f"{self.name_in_errors}: values() returned infinite values for {len(infinite):,} of {len(values):,} "
                f"instances, such as {first.where or first.id}. Return NaN for instances without a value."
            )
        undefined = np.isnan(values)
        groups = measurements.groups(~undefined)
        value = number(self.value(measurements, values, groups), f"{self.name_in_errors}: value()")
        interval = self.interval(measurements, values, groups)
        self._refuse_other_interval(value, interval)
        references = self.references(measurements, values)
        reasons = self.undefined_reasons(measurements, undefined)
        by_class = means_by_predicted_class(measurements, values) if self.lists_classes else {}
        return Evidence(
            value=value,
            interval=interval,
            defined=~undefined,
            undefined=count_reasons(*((reason, mask & undefined) for reason, mask in reasons)),
            values=values,
            values_label=self.values_label,
            values_range=self.values_range,
            references=tuple(item.record if isinstance(item, ReferenceValues) else item for item in references),
            reference_values={
                item.name: item.values
                for item in references
                if isinstance(item, ReferenceValues) and item.name in self.threshold_references
            },
            upper_bounds=self.upper_bounds(measurements),
            details={**self.details(measurements, values), **by_class},
            charts=tuple(self.charts(measurements, values)),
            note=self.note(measurements, values),
            no_interval=self.no_interval(measurements, value, groups) if interval is None else "",
            breakdowns=breakdowns(measurements, ~undefined, partial(self.value_of_part, measurements, values))
            if self.severity == "gate" and value is not None
            else (),
            typical=self.typical(measurements, values),
            no_decision=measurements.no_decision,
        )

    def _values_as_floats(self, measurements: Measurements) -> Floats:
        return numbers(self.values(measurements), f"{self.name_in_errors}: values()")

    def _require_own_statistic(self) -> None:
        """Raise CheckError if `statistic` names another statistic than the mean, but the mean would be computed."""
        kind = type(self)
        own_value = kind.value is not PerInstanceCheck.value and kind.interval is not PerInstanceCheck.interval
        if self.statistic == "mean" or own_value or kind.evidence is not PerInstanceCheck.evidence:
            return
        raise CheckError(
            f"{self.name_in_errors}: statistic is {self.statistic!r}, but the check computes the mean or its interval. "
            "Override both value() and interval(), or write the check as a function with the decorator @checks.check, "
            'which computes a "mean", "median" or "proportion". If the value is a mean, remove statistic; '
            "value_name is its name in headlines."
        )

    def _refuse_other_interval(self, value: float | None, interval: IntervalEstimate | None) -> None:
        """Raise CheckError if the check inherits the interval of the mean, but its value is clearly another statistic.

        Otherwise, the verdict would depend on the mean, although the record shows another value.
        """
        kind = type(self)
        overrides_only_value = kind.value is not PerInstanceCheck.value and kind.interval is PerInstanceCheck.interval
        if not overrides_only_value or value is None or interval is None or not math.isfinite(value):
            return
        nominal = interval.at(self.confidence)
        rounding = EQUAL * max(1.0, abs(value))
        if not nominal.low - rounding <= value <= nominal.high + rounding:
            raise CheckError(
                f"{self.name_in_errors}: value() returned {value:.4g}, which is outside the {nominal.level} interval "
                f"of the mean, [{nominal.low:.4g}, {nominal.high:.4g}]. A check that overrides value() must override "
                "interval(), too, and return the interval of the same statistic, or None."
            )
