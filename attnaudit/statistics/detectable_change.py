"""Estimate the smallest change that a gate detects: its statistical power.

A gate decides with certainty only if the true value is far enough from its threshold. Cohen (1988) calls the
probability of a correct decision the power of a test, and recommends 80%. A test without enough power rarely detects
the change it was made for (Card et al. 2020, "With Little Power Comes Great Responsibility").
"""

from __future__ import annotations

import math
from collections.abc import Callable

from attnaudit.formatting import plain_number
from attnaudit.records import DetectableChange, Requirement
from attnaudit.statistics.interval_estimate import IntervalEstimate, normal_quantile
from attnaudit.statistics.sample_size import POWER
from attnaudit.statistics.shares import ShareSample

#: Bisection ends after this many steps, at 2⁻⁶⁰ of the range that it began with.
STEPS = 60
UNBOUNDED = (-math.inf, math.inf)
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

    Take a lower limit T. A sample passes if the lower bound of its interval is at least T. So a true value is detected
    if it is so far above T that the lower bounds of 80% of samples are not further below it. The same holds for a
    failure, with the upper bound at the corrected confidence. For a normal distribution with a known standard error s,
    the distance is (z + z_0.8) · s, where z is the normal quantile of the confidence (Cohen 1988, ch. 2).

    How far the bounds of samples are from the true value follows from the interval. For the bootstrap, the bounds are
    resampled (see `ResampledLimits`). For a share of rows, the number of rows that count is binomial, and the interval
    is Wilson's. For other intervals, it is the distance of the observed bound plus z_0.8 · s.

    The spread of the values depends on the true value. For a share of rows, it follows from the share. For other
    values, the distances in the observed sample are scaled by the standard deviation that their skewness predicts at
    the other value (see `relative_variance`). The factor is 1 if the observed value is the true one, and less certain
    the further it is away.

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


def detectable_difference(estimate: IntervalEstimate, value: float) -> float | None:
    """Return how far from 0 a true difference must be for 80% of samples to have an interval without 0.

    Args:
        estimate: The interval estimate of the difference.
        value: The observed difference.

    Returns:
        The distance, up or down, whichever is longer; None if none is enough.
    """
    sides, confidence = (True, False), estimate.confidence
    reach = max(_reach(value, estimate, confidence, UNBOUNDED, above=above) for above in sides)
    if estimate.limits is not None:
        reach = max(reach, *(estimate.limits.unvaried_reach(confidence, POWER, above=above) for above in sides))
    return reach if math.isfinite(reach) else None


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
    direction, end = (1.0, bounds[1]) if upwards else (-1.0, bounds[0])
    room = direction * (end - threshold)
    if estimate.share is not None:
        return _distance_of_share(estimate.share.cautious(POWER), threshold, confidence, room, upwards=upwards)
    reach = _reach(value, estimate, confidence, bounds, above=not upwards)
    least = estimate.limits.unvaried_reach(confidence, POWER, above=not upwards) if estimate.limits is not None else 0.0

    def beyond(distance: float) -> float:
        """Return how far the bound of 80% of samples is beyond the threshold if the true value is at this distance."""
        variance = relative_variance(threshold + direction * distance, value, estimate.slope, bounds)
        return distance - max(math.sqrt(variance) * reach, least)

    return _smallest(beyond, room)


def _distance_of_share(
    sample: ShareSample, threshold: float, confidence: float, room: float, *, upwards: bool
) -> float | None:
    """Return the same distance for a share, whose interval is Wilson's."""
    # Downwards, the rows that do not count are counted instead, so that their share is to be above the threshold.
    limit = threshold if upwards else 1 - threshold
    least = _smallest(lambda distance: sample.bounds(min(1.0, limit + distance), confidence)[0] - limit, room)
    if least is None:
        return None
    return _smallest(lambda distance: sample.chance(limit + least, min(1.0, limit + distance)) - POWER, room)


def _reach(
    value: float, estimate: IntervalEstimate, confidence: float, bounds: tuple[float, float], *, above: bool
) -> float:
    """Return the distance from the true value that the upper or the lower bound of 80% of samples does not exceed."""
    if estimate.limits is not None:
        return estimate.limits.reach(confidence, POWER, above=above)
    from scipy.special import ndtri

    interval = estimate.at(confidence)
    distances = [max(0.0, value - interval.low), max(0.0, interval.high - value)]
    cut_off = interval.high >= bounds[1] if above else interval.low <= bounds[0]
    length = max(distances) if cut_off else distances[above]  # an end of the range cuts off the distance
    return max(length, normal_quantile(confidence) * estimate.error) + float(ndtri(POWER)) * estimate.error


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
