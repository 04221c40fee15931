"""Interval estimates, which yield an interval at any confidence, and operations on them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from attnaudit.arrays import Floats
from attnaudit.records import Interval
from attnaudit.statistics.resampled_limits import ResampledLimits
from attnaudit.statistics.shares import ShareSample

#: Values count as equal if they differ by at most this share of their range (see `equal_up_to`). In float32, rounding
#: changes a probability by about 1e-7. The numbers of baselines have six digits, so differences are off by up to 1e-6.
EQUAL = 2e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class IntervalEstimate:
    """The uncertainty of a statistic, which yields an interval at any confidence.

    A verdict needs several intervals of one value: an interval at the confidence of the check, a wider interval for
    failures, and the 50% interval for planning. All intervals come from the same resamples, so an interval at a higher
    confidence is never shorter.

    Attributes:
        error: The standard error of the statistic, in its unit.
        confidence: The confidence of `low`, `high` and `method`, between 0 and 1.
        interval_at: Computes the interval at a given confidence between 0 and 1.
        coverage_warning: Why the interval may be too narrow according to simulations, as a clause; "" if there is no
            reason to suspect it.
        narrows_with_n: Whether the width of the interval tends to 0 as the number of instances grows. It is False if
            part of the error has another cause, such as a small number of randomised models.
        slope: The relative change of the variance per unit of the value. The value is assumed to rise because rows with
            higher values occur more often (exponential tilting, Efron 1981). For a mean, it is κ₃ / κ₂², where κ₂ and
            κ₃ are the second and the third cumulant of a row. 0 if the variance is assumed to be constant.
        share: The effective number of independent rows of a share. The interval around any other share follows from it.
            None for other statistics.
        limits: Resampled limits of the interval; None if it is not a bootstrap interval.
    """

    error: float
    confidence: float
    interval_at: Callable[[float], Interval] = field(repr=False)
    coverage_warning: str = ""
    narrows_with_n: bool = True
    slope: float = 0.0
    share: ShareSample | None = None
    limits: ResampledLimits | None = field(default=None, repr=False, compare=False)

    def at(self, confidence: float) -> Interval:
        """Return the interval at a confidence between 0 and 1."""
        return self.interval_at(confidence)

    @property
    def low(self) -> float:
        """The lower bound at `confidence`."""
        return self.at(self.confidence).low

    @property
    def high(self) -> float:
        """The upper bound at `confidence`."""
        return self.at(self.confidence).high

    @property
    def method(self) -> str:
        """How the interval at `confidence` is computed, in words."""
        return self.at(self.confidence).method


def normal_quantile(confidence: float) -> float:
    """Return the number z such that a standard normal variable lies in [-z, z] with probability `confidence`."""
    from scipy.special import ndtri

    return float(ndtri((1 + confidence) / 2))


def tilting_slope(base: Floats) -> float:
    """Estimate the attribute `slope` of an `IntervalEstimate` of a ratio, by exponential tilting.

    Args:
        base: (G, 2) numbers per group: the residual of the ratio, and the denominator. Both are divided by the mean
            denominator.
    """
    influence, denominators = base.T
    variance = float((influence**2).mean())
    return float((influence**3).mean() / variance - 4 * (influence * denominators).mean()) / variance


def equal_up_to(value: float, extremes: tuple[float, float]) -> float:
    """Return how far differences may be from their mean and still count as equal, because rounding can explain it.

    It is used for values that are 0 up to rounding, and for differences between two models. Without it, values that are
    all 0 and values that are 0 up to rounding would have different verdicts: the first interval allows for unseen rows,
    but the second would have almost no width.

    Args:
        value: The mean.
        extremes: The lowest and the highest possible value. If their range is much larger than 1 or infinite, it says
            nothing about the size of the values, so the mean does.
    """
    low, high = extremes
    return EQUAL * (min(high - low, max(1.0, abs(value))) if np.isfinite(high - low) else abs(value))


def clip(low: float, high: float, bounds: tuple[float, float]) -> tuple[float, float]:
    """Clip both bounds of an interval to the possible range of the statistic."""
    return float(np.clip(low, *bounds)), float(np.clip(high, *bounds))


def point(value: float, confidence: float, method: str) -> IntervalEstimate:
    """Return the estimate of a value without uncertainty: an interval of width 0 at every confidence."""
    return IntervalEstimate(
        error=0.0,
        confidence=confidence,
        interval_at=lambda level: Interval(low=value, high=value, confidence=level, method=method),
    )


def bracket(below: IntervalEstimate, above: IntervalEstimate) -> IntervalEstimate:
    """Combine the estimates of a lower and an upper bound on a value.

    The interval extends from the lower end of the first interval to the upper end of the second. Use it if a value is
    only known to lie between two bounds. An example is a maximum: the lower bound is the largest value that a search
    found, and the upper bound is proven.

    Args:
        below: The estimate of the lower bound on the value.
        above: The estimate of the upper bound on the value.
    """

    def interval_at(level: float) -> Interval:
        lower, upper = below.at(level), above.at(level)
        return Interval(
            low=lower.low,
            high=upper.high,
            confidence=level,
            method=f"{lower.method}, from the lower to the upper bound of the values",
        )

    return IntervalEstimate(
        error=max(below.error, above.error),
        confidence=below.confidence,
        interval_at=interval_at,
        coverage_warning=below.coverage_warning or above.coverage_warning,
        slope=below.slope,
    )


def widened(
    estimate: IntervalEstimate, error: float, freedom: float, suffix: str, bounds: tuple[float, float]
) -> IntervalEstimate:
    """Add a second, independent source of error to an estimate.

    Each source of error has an interval with its own half width. The half widths a and b are combined as √(a² + b²).
    The half width of the second source is its standard error times the quantile of Student's t.

    Args:
        estimate: The estimate to widen.
        error: Standard error from the second source.
        freedom: The degrees of freedom of Student's t for `error`.
        suffix: Text that is appended to the method, after a comma.
        bounds: The lowest and the highest possible value.

    Returns:
        The wider estimate. More instances do not reduce the error from the second source, so `narrows_with_n` is False.
    """
    from scipy.special import stdtrit

    def interval_at(level: float) -> Interval:
        first, second_half = estimate.at(level), float(stdtrit(freedom, (1 + level) / 2)) * error
        middle = (first.low + first.high) / 2
        half = float(np.hypot((first.high - first.low) / 2, second_half))
        low, high = clip(middle - half, middle + half, bounds)
        return Interval(low=low, high=high, confidence=level, method=f"{first.method}, {suffix}")

    return IntervalEstimate(
        error=float(np.hypot(estimate.error, error)),
        confidence=estimate.confidence,
        interval_at=interval_at,
        coverage_warning=estimate.coverage_warning,
        narrows_with_n=False,
    )


def shifted(estimate: IntervalEstimate, by: float, suffix: str) -> IntervalEstimate:
    """Shift an estimate by a constant.

    Args:
        estimate: The estimate.
        by: The constant that is added to both bounds.
        suffix: Text that is appended to the method, after a comma.
    """

    def interval_at(level: float) -> Interval:
        interval = estimate.at(level)
        return Interval(
            low=interval.low + by, high=interval.high + by, confidence=level, method=f"{interval.method}, {suffix}"
        )

    return IntervalEstimate(
        error=estimate.error,
        confidence=estimate.confidence,
        interval_at=interval_at,
        coverage_warning=estimate.coverage_warning,
        narrows_with_n=estimate.narrows_with_n,
        slope=estimate.slope,
        limits=estimate.limits,
    )
