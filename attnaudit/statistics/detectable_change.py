"""Estimate the smallest change that a gate detects: its statistical power.

A gate decides with certainty only if the true value is far enough from its threshold. Cohen (1988) calls the
probability of a correct decision the power of a test, and recommends 80%. A test without enough power rarely detects
the change it was made for (Card et al. 2020, "With Little Power Comes Great Responsibility").
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from attnaudit.formatting import plain_number
from attnaudit.records import DetectableChange, Requirement
from attnaudit.statistics.interval_estimate import IntervalEstimate, normal_quantile
from attnaudit.statistics.sample_size import POWER

#: Bisection ends after this many steps, at 2⁻⁶⁰ of the range that it began with.
STEPS = 60
#: Without an end of the range, the search begins at this distance and doubles it.
FIRST_DISTANCE = 1e-3


def detectable_change(
    *,
    value: float,
    estimate: IntervalEstimate,
    requirement: Requirement,
    confidence: float,
    fail_confidence: float,
    bounds: tuple[float, float] = (-math.inf, math.inf),
    no_difference: float | None = None,
) -> DetectableChange:
    """Estimate how far from the threshold the true value must be for the gate to be decided in 80% of samples.

    Take a lower limit T. A sample passes if the lower bound of its interval is at least T. Let v be the smallest value
    of a sample that passes: v = T + a, where a is the distance from a value to its lower bound at the confidence of a
    pass. It is at least z · s, where s is the standard error and z the normal quantile, and more on the side to which
    the values are skewed. The bound on the other side is nearer to the value, but varies more. The gate passes in
    80% of samples if 80% of samples have a value of at least v, which holds for the true value v + z_0.8 · s. So the
    detectable change is a + z_0.8 · s, and (z + z_0.8) · s for a normal distribution (Cohen 1988, ch. 2). The change
    that a failure detects is computed in the same way, from the upper bound at the corrected confidence.

    The spread of the values depends on the true value. For a share of rows, it follows from the share, and the interval
    is Wilson's. For other values, the distances in the observed sample are scaled by the standard deviation that their
    skewness predicts at the other value (see `relative_variance`). The factor is 1 if the observed value is on the
    threshold, and less certain the further it is away.

    Args:
        value: The observed value.
        estimate: Its interval estimate.
        requirement: The threshold.
        confidence: The confidence at which a pass is decided.
        fail_confidence: The confidence at which a failure is decided.
        bounds: The lowest and the highest possible value.
        no_difference: The value of a model without any difference, if the threshold is a margin around it; otherwise
            None. It is the value of the references for a relative threshold, and 0 for a difference to a baseline.
    """
    lower_limit = requirement.direction == "at_least"
    to_pass = _distance(value, estimate, requirement.value, confidence, bounds, upwards=lower_limit)
    to_fail = _distance(value, estimate, requirement.value, fail_confidence, bounds, upwards=not lower_limit)
    return DetectableChange(
        to_pass=to_pass,
        to_fail=to_fail,
        power=POWER,
        warning=_warning(to_pass, to_fail, requirement, no_difference),
    )


def _distance(
    value: float,
    estimate: IntervalEstimate,
    threshold: float,
    confidence: float,
    bounds: tuple[float, float],
    *,
    upwards: bool,
) -> float | None:
    """Return the distance of the true value at which 80% of samples have their whole interval beyond the threshold.

    It is None if no possible value is that far away.
    """
    from scipy.special import ndtri

    sampling = _Sampling(value, estimate, bounds)
    direction, end = (1.0, bounds[1]) if upwards else (-1.0, bounds[0])
    room = direction * (end - threshold)

    def beyond(distance: float) -> float:
        """Return how far the interval of a sample is beyond the threshold if its value is at this distance."""
        low, high = sampling.interval(threshold + direction * distance, confidence)
        return low - threshold if upwards else threshold - high

    decided = _smallest(beyond, room)
    if decided is None:
        return None
    return _smallest(lambda d: d - float(ndtri(POWER)) * sampling.error(threshold + direction * d) - decided, room)


@dataclass(frozen=True, slots=True)
class _Sampling:
    """The interval and the standard error of samples whose true value is another one.

    Attributes:
        observed: The observed value.
        estimate: Its interval estimate.
        ends: The lowest and the highest possible value.
    """

    observed: float
    estimate: IntervalEstimate
    ends: tuple[float, float]

    def interval(self, value: float, confidence: float) -> tuple[float, float]:
        """Return the bounds of the interval of a sample with this value."""
        if self.estimate.share is not None:
            return self.estimate.share.bounds(value, confidence)
        interval = self.estimate.at(confidence)
        below, above = max(0.0, self.observed - interval.low), max(0.0, interval.high - self.observed)
        longest = max(below, above)  # replaces a distance that an end of the range cuts off
        below = longest if interval.low <= self.ends[0] else below
        above = longest if interval.high >= self.ends[1] else above
        shortest = normal_quantile(confidence) * self.estimate.error
        below, above = max(below, shortest), max(above, shortest)
        return value - self._scale(value) * below, value + self._scale(value) * above

    def error(self, value: float) -> float:
        """Return the standard error of a sample if this is the true value."""
        if self.estimate.share is not None:
            return math.sqrt(value * (1 - value) / self.estimate.share.rows)
        return self._scale(value) * self.estimate.error

    def _scale(self, value: float) -> float:
        return math.sqrt(relative_variance(value, self.observed, self.estimate.slope, self.ends))


def relative_variance(value: float, observed: float, slope: float, ends: tuple[float, float]) -> float:
    """Return the variance at another value, relative to that at the observed value.

    Values that are skewed away from an end of their range vary less near that end. The variance is taken to be
    proportional to a power of the distance to this end, between 0 (constant) and 2 (standard deviation proportional to
    the distance), which has the given slope at the observed value. It is constant if this end is infinite.

    Args:
        value: The other value.
        observed: The observed value.
        slope: The relative change of the variance per unit of the value (see `IntervalEstimate.slope`).
        ends: The lowest and the highest possible value.
    """
    end = ends[0] if slope > 0 else ends[1]
    distance = abs(observed - end)
    if not math.isfinite(end) or not distance:
        return 1.0
    return float((abs(value - end) / distance) ** min(2.0, abs(slope) * distance))


def _smallest(function: Callable[[float], float], most: float) -> float | None:
    """Return the smallest distance up to `most` at which an increasing function is at least 0; None without any."""
    if function(0.0) >= 0:
        return 0.0
    high = most
    if math.isinf(most):
        doubled = (FIRST_DISTANCE * 2**i for i in range(STEPS))
        high = next((distance for distance in doubled if function(distance) >= 0), math.nan)
        if math.isnan(high):
            return None
    elif function(most) < 0:
        return None
    low = 0.0
    for _ in range(STEPS):
        middle = (low + high) / 2
        low, high = (low, middle) if function(middle) >= 0 else (middle, high)
    return high


def _warning(
    to_pass: float | None, to_fail: float | None, requirement: Requirement, no_difference: float | None
) -> str:
    """Return why the sample is too small for the threshold, as a clause; "" if it is not."""
    highest, lowest = ("largest", "smallest") if requirement.direction == "at_least" else ("smallest", "largest")
    if to_pass is None:
        return f"even the {highest} possible value would pass in fewer than 80% of samples of this size"
    if to_fail is None:
        return f"even the {lowest} possible value would fail in fewer than 80% of samples of this size"
    if no_difference is None:
        return ""
    sign = 1.0 if requirement.direction == "at_least" else -1.0
    margin = sign * (no_difference - requirement.value)
    needed, verdict = (to_pass, "pass") if margin >= 0 else (to_fail, "fail")
    if abs(margin) >= needed:
        return ""
    return (
        f"the margin of {plain_number(abs(margin))} is smaller than the detectable change of {plain_number(needed)}, "
        f"so a model without any difference would {verdict} in fewer than 80% of samples of this size"
    )
