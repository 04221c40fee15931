"""Estimate the smallest change that a gate detects: its statistical power.

The closer the true value is to the threshold of a gate, the less often the gate reaches a decision. The probability of
a correct decision is called the power of a test; Cohen (1988) recommends 80%. A test without enough power rarely
detects the change that it was designed for (Card et al. 2020, "With Little Power Comes Great Responsibility").
"""

from __future__ import annotations

import math
from collections.abc import Callable

from attnaudit.formatting import plain_number
from attnaudit.records import DetectableChange, Requirement
from attnaudit.statistics.interval_estimate import IntervalEstimate, normal_quantile
from attnaudit.statistics.sample_size import POWER
from attnaudit.statistics.shares import ShareSample

#: The number of bisection steps. They narrow a range to 2⁻⁶⁰ of its initial width.
STEPS = 60
UNBOUNDED = (-math.inf, math.inf)
#: If the range has no end, the search begins at this distance and doubles it.
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

    For a threshold T that the value must reach or exceed, a sample passes if the lower bound of its interval is at
    least T. The result is the smallest distance of the true value above T at which 80% of samples pass. For a failure,
    it is the smallest distance below T at which the upper bounds of 80% of samples are below T. These bounds are
    computed at the corrected confidence. For a normal distribution with a known standard error s, the distance is (z +
    z_0.8) · s, where z is the normal quantile of the confidence (Cohen 1988, ch. 2).

    How far the bounds of samples are from the true value depends on the kind of interval. For the bootstrap, the bounds
    themselves are resampled (see `ResampledLimits`). For a share of rows, the number of rows that count follows a
    binomial distribution, and the interval is Wilson's. For other intervals, the distance is z_0.8 · s plus the
    distance of the observed bound from the observed value.

    The spread of the values depends on the true value. For a share of rows, it follows from the share. For other
    statistics, the distances in the observed sample are multiplied by a factor: the standard deviation at the true
    value divided by the standard deviation at the observed value. This factor is predicted from the skewness (see
    `relative_variance`). The prediction is less reliable the further apart the two values are.

    Args:
        value: The observed value.
        estimate: Its interval estimate.
        requirement: The threshold.
        confidence: The confidence at which a pass is decided.
        fail_confidence: The confidence at which a failure is decided.
        bounds: The lowest and the highest possible value.
        no_difference: The value to which the threshold adds a margin: the mean of the reference for a threshold such as
            "floor + 0.2", and 0 for a difference from a baseline. None for any other threshold.
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
    """Return how far from 0 a true difference must be so that the intervals of 80% of samples exclude 0.

    Args:
        estimate: The interval estimate of the difference.
        value: The observed difference.

    Returns:
        The distance, which is large enough both above and below 0; None if no distance is large enough.
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
    """Return how far the true value must be from the threshold so that the intervals of 80% of samples are beyond it.

    Return None if no possible value is far enough.
    """
    direction, end = (1.0, bounds[1]) if upwards else (-1.0, bounds[0])
    room = direction * (end - threshold)
    if estimate.share is not None:
        return _distance_of_share(estimate.share.cautious(POWER), threshold, confidence, room, upwards=upwards)
    reach = _reach(value, estimate, confidence, bounds, above=not upwards)
    least = estimate.limits.unvaried_reach(confidence, POWER, above=not upwards) if estimate.limits is not None else 0.0

    def beyond(distance: float) -> float:
        """Return how far beyond the threshold the bounds of 80% of samples are, for a true value at this distance."""
        variance = relative_variance(threshold + direction * distance, value, estimate.slope, bounds)
        return distance - max(math.sqrt(variance) * reach, least)

    return _smallest(beyond, room)


def _distance_of_share(
    sample: ShareSample, threshold: float, confidence: float, room: float, *, upwards: bool
) -> float | None:
    """Return the distance of `_distance` for a share of rows, with Wilson's interval."""
    # A share below the threshold is a share of the other rows above 1 - threshold.
    limit = threshold if upwards else 1 - threshold
    least = _smallest(lambda distance: sample.bounds(min(1.0, limit + distance), confidence)[0] - limit, room)
    if least is None:
        return None
    return _smallest(lambda distance: sample.chance(limit + least, min(1.0, limit + distance)) - POWER, room)


def _reach(
    value: float, estimate: IntervalEstimate, confidence: float, bounds: tuple[float, float], *, above: bool
) -> float:
    """Return the distance from the true value within which the upper or lower bounds of 80% of samples lie."""
    if estimate.limits is not None:
        return estimate.limits.reach(confidence, POWER, above=above)
    from scipy.special import ndtri

    interval = estimate.at(confidence)
    distances = [max(0.0, value - interval.low), max(0.0, interval.high - value)]
    cut_off = interval.high >= bounds[1] if above else interval.low <= bounds[0]
    length = max(distances) if cut_off else distances[above]  # at an end of the range, the distance is clipped
    return max(length, normal_quantile(confidence) * estimate.error) + float(ndtri(POWER)) * estimate.error


def relative_variance(value: float, observed: float, slope: float, ends: tuple[float, float]) -> float:
    """Return the variance at another value, relative to that at the observed value.

    Values that are skewed away from an end of their range vary less near that end. The variance is assumed to be
    proportional to a power of the distance to this end. The exponent follows from the given slope at the observed
    value. The exponent lies between 0 (constant variance) and 2 (standard deviation proportional to the distance), and
    is 0 if the end is infinite.

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
    """Return the smallest distance up to `most` at which an increasing function is at least 0, or None."""
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
    """Return why the sample is too small for the threshold, as a clause; "" if it is large enough."""
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
        f"so if the true value is {plain_number(no_difference)}, the check would {verdict} in fewer than 80% of "
        "samples of this size"
    )
