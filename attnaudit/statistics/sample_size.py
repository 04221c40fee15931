"""Estimate how many instances would decide an inconclusive case."""

from __future__ import annotations

import math

from attnaudit.records import Planning, Requirement
from attnaudit.statistics.interval_estimate import IntervalEstimate
from attnaudit.statistics.verdict import MINIMUM_DEFINED

#: The probability that a sample of the planned size decides the case.
POWER = 0.8
#: The confidence of the interval from which the range of the plan is computed.
RANGE = 0.5
#: If the plan would need more than this many times the audited instances, it gives no number, because the value is too
#: close to the threshold.
TOO_MANY = 1000


def plan(
    *,
    value: float,
    estimate: IntervalEstimate,
    requirement: Requirement,
    confidence: float,
    fail_confidence: float,
    n: int,
) -> Planning:
    """Estimate the number of instances that decides the case with a probability of 80%.

    The number is the usual sample size of a test of a mean, n · ((z + z_0.8) · s / d)². Here, d is the distance of the
    value from the threshold, s is the standard error of the value, z is the two-sided normal quantile of the
    confidence, and z_0.8 is the 80% quantile. The confidence is `confidence` if the value is on the required side of
    the threshold, and `fail_confidence` otherwise.

    The calculation makes three assumptions. The observed value is the true value. Its sampling distribution is
    approximately normal. Further instances resemble the present ones, so the standard error shrinks with the square
    root of their number. Because the observed value is uncertain, the calculation is repeated with both ends of its 50%
    interval. This gives a range. If the threshold lies inside the 50% interval, the range has no upper limit.

    Args:
        value: The observed value.
        estimate: Its interval estimate.
        requirement: The threshold.
        confidence: The confidence at which a pass is decided.
        fail_confidence: The confidence at which a failure is decided.
        n: Number of instances that have a value.

    Returns:
        The number of instances and its range. Each number is at least n, and at least the 30 instances that a verdict
        requires. It is None if it would exceed 1,000 times n or has no limit.
    """
    from scipy.special import ndtri

    threshold, sign = requirement.value, 1.0 if requirement.direction == "at_least" else -1.0
    gap = sign * (value - threshold)
    level = confidence if gap >= 0 else fail_confidence
    detectable = (float(ndtri((1 + level) / 2)) + float(ndtri(POWER))) * estimate.error  # what n instances decide

    def needed(distance: float) -> int | None:
        least = max(n, MINIMUM_DEFINED)
        if distance <= 0 or detectable > math.sqrt(TOO_MANY) * distance:
            return None if detectable > 0 else least
        return max(least, math.ceil(n * (detectable / distance) ** 2))

    middle = estimate.at(RANGE)
    distances = [sign * (bound - threshold) * (1 if gap >= 0 else -1) for bound in (middle.low, middle.high)]
    return Planning(instances=needed(abs(gap)), low=needed(max(distances)), high=needed(min(distances)), power=POWER)
