"""Estimate how many rows a gate needs, before any of them is measured."""

from __future__ import annotations

import math
from dataclasses import dataclass

from attnaudit.statistics.detectable_change import relative_variance
from attnaudit.statistics.interval_estimate import normal_quantile
from attnaudit.statistics.sample_size import POWER
from attnaudit.statistics.verdict import MINIMUM_DEFINED

#: The number of bisection steps in `detectable_effect`. They narrow a range to 2⁻⁶⁰ of its initial width.
STEPS = 60
#: The largest effect that is considered if the range of values has no end.
LARGEST_EFFECT = 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class RowSpread:
    """The standard deviation of the value of a row: the standard error of a sample times √(number of rows).

    Attributes:
        ends: The lowest and the highest possible value.
        deviation: The standard deviation of a row at `value`; None if it was not measured and is derived from the ends.
        value: The value at which `deviation` was measured.
        slope: The relative change of the variance per unit of the value.
        rows_per_row: The number of rows that carry as much information as one independent row of equal weight. It is
            used if `deviation` is None.
    """

    ends: tuple[float, float]
    deviation: float | None = None
    value: float = 0.0
    slope: float = 0.0
    rows_per_row: float = 1.0

    def at(self, value: float) -> float:
        """Return the standard deviation of a row if `value` is the true value.

        Without a measured deviation, it is the largest standard deviation of values between the two ends. Values that
        lie only on the ends, such as zeros and ones, have this deviation.
        """
        if self.deviation is None:
            return math.sqrt(self.rows_per_row * abs(value - self.ends[0]) * abs(value - self.ends[1]))
        return self.deviation * math.sqrt(relative_variance(value, self.value, self.slope, self.ends))


def rows_needed(spread: RowSpread, *, threshold: float, effect: float, confidence: float) -> int | None:
    """Return the number of rows with which a gate is decided in 80% of samples.

    The number is ((z · s(T) + z_0.8 · s(T + d)) / d)². Here, T is the threshold, d is the true value minus T, s(v) is
    the standard deviation of a row at the value v, and z is the two-sided normal quantile of the confidence. This is
    the sample size of a one-sided test of a mean (Cohen 1988, ch. 2), and of a proportion (Fleiss, Levin & Paik 2003).
    The user chooses the effect d before anything is measured.

    Args:
        spread: How much the value varies.
        threshold: The threshold.
        effect: d, the true value minus the threshold. To plan for a pass of an `at_least` threshold or a failure of an
            `at_most` threshold, d is above 0. In the other two cases, d is below 0.
        confidence: The confidence at which the decision is made.

    Returns:
        The number of rows, at least the 30 that a verdict requires. None if the true value is outside the possible
        range.
    """
    from scipy.special import ndtri

    true = threshold + effect
    if not spread.ends[0] <= true <= spread.ends[1]:
        return None
    width = normal_quantile(confidence) * spread.at(threshold) + float(ndtri(POWER)) * spread.at(true)
    return max(MINIMUM_DEFINED, math.ceil((width / effect) ** 2))


def detectable_effect(
    spread: RowSpread, *, threshold: float, upwards: bool, confidence: float, rows: int
) -> float | None:
    """Return the smallest effect with which a gate on this number of rows is decided in 80% of samples.

    Args:
        spread: How much the value varies.
        threshold: The threshold.
        upwards: Whether the true value is above the threshold.
        confidence: The confidence at which the decision is made.
        rows: The number of rows.

    Returns:
        The distance of the true value from the threshold, above 0; None if no possible value is far enough.
    """
    direction = 1.0 if upwards else -1.0
    high = min(LARGEST_EFFECT, abs(spread.ends[1 if upwards else 0] - threshold))

    def enough(distance: float) -> bool:
        needed = rows_needed(spread, threshold=threshold, effect=direction * distance, confidence=confidence)
        return needed is not None and needed <= rows

    high *= 1 - 1e-12  # threshold ± high must not be beyond the end by rounding
    if high <= 0 or not enough(high):
        return None
    low = 0.0
    for _ in range(STEPS):
        middle = (low + high) / 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high
