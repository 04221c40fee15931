"""Estimate how many rows a gate needs, before any of them is measured."""

from __future__ import annotations

import math
from dataclasses import dataclass

from attnaudit.statistics.detectable_change import relative_variance
from attnaudit.statistics.interval_estimate import normal_quantile
from attnaudit.statistics.sample_size import POWER
from attnaudit.statistics.verdict import MINIMUM_DEFINED

#: `detectable_effect` ends after this many steps, at 2⁻⁶⁰ of the range that it began with.
STEPS = 60
#: Without an end of the range, no effect is larger than this.
LARGEST_EFFECT = 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class RowSpread:
    """How much a value varies between samples of one row, that is, its standard error times the root of their number.

    Attributes:
        ends: The lowest and the highest possible value.
        deviation: The standard deviation at `value`; None if it follows from the ends.
        value: The value at which it was measured.
        slope: The relative change of the variance per unit of the value.
        rows_per_row: Without a deviation, the number of rows that carry as much information as one independent row of
            equal weight.
    """

    ends: tuple[float, float]
    deviation: float | None = None
    value: float = 0.0
    slope: float = 0.0
    rows_per_row: float = 1.0

    def at(self, value: float) -> float:
        """Return the standard deviation if this is the true value.

        Without a measured deviation, it is the largest that values between two ends can have: that of values that lie
        on the ends only, such as zeros and ones.
        """
        if self.deviation is None:
            return math.sqrt(self.rows_per_row * abs(value - self.ends[0]) * abs(value - self.ends[1]))
        return self.deviation * math.sqrt(relative_variance(value, self.value, self.slope, self.ends))


def rows_needed(spread: RowSpread, *, threshold: float, effect: float, confidence: float) -> int | None:
    """Return the number of rows that decides a gate in 80% of samples.

    It is ((z · s(T) + z_0.8 · s(T + d)) / d)², where T is the threshold, d the distance of the true value from it, s(v)
    the standard deviation of a row at the value v, and z the two-sided normal quantile of the confidence. This is the
    sample size of a one-sided test of a mean (Cohen 1988, ch. 2), and of a proportion (Fleiss, Levin & Paik 2003).
    The true value is not the observed one here: an effect is chosen before anything is measured.

    Args:
        spread: How much the value varies.
        threshold: The threshold.
        effect: The true value minus the threshold. It is above 0 for a lower limit that is to pass, and for an upper
            limit that is to fail.
        confidence: The confidence at which the decision is made.

    Returns:
        The number of rows, at least the 30 that a verdict requires. None if the true value is not a possible one.
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
    """Return the smallest distance from the threshold at which a number of rows decides a gate in 80% of samples.

    Args:
        spread: How much the value varies.
        threshold: The threshold.
        upwards: Whether the true value is above the threshold.
        confidence: The confidence at which the decision is made.
        rows: The number of rows.

    Returns:
        The distance, above 0; None if no possible value is that far.
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
