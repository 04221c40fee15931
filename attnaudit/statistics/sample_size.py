"""Estimate how many instances would decide an inconclusive case."""

from __future__ import annotations

import math

from attnaudit.records import Planning, Requirement
from attnaudit.statistics.interval_estimate import IntervalEstimate
from attnaudit.statistics.verdict import MINIMUM_DEFINED

#: The share of samples of the planned size in which the case is decided.
POWER = 0.8
#: The range of the plan is computed from the interval of the value at this confidence.
RANGE = 0.5
#: A plan of more than this many times the audited instances is withheld: the value is too close to the threshold.
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
    """Estimate the number of instances that decides the case in 80% of samples.

    This is the usual power calculation of a test of a mean: n · ((z + z_0.8) · s / d)², where d is the observed
    distance to the threshold, s the standard error of the value, z the two-sided normal quantile of the confidence, and
    z_0.8 the 80% quantile. The confidence is that of a pass if the value is on the required side of the threshold, and
    otherwise that of a failure.

    The calculation assumes that the observed value is the true one, that the value is approximately normal, and that
    further instances resemble the present ones, so that the standard error shrinks with the root of their number. To
    show how uncertain the observed value makes the result, the calculation is repeated with both bounds of its 50%
    interval. If the threshold lies inside that interval, the range has no upper limit.

    Args:
        value: The observed value.
        estimate: Its interval estimate.
        requirement: The threshold.
        confidence: The confidence at which a pass is decided.
        fail_confidence: The confidence at which a failure is decided.
        n: Number of instances that have a value.

    Returns:
        The number and its range. Each is at least n and at least the 30 instances that a verdict requires, and None if
        it exceeds 1,000 times n or has no upper limit.
    """
    from scipy.special import ndtri

    threshold, sign = requirement.value, 1.0 if requirement.direction == "at_least" else -1.0
    gap = sign * (value - threshold)
    level = confidence if gap >= 0 else fail_confidence
    detectable = (float(ndtri((1 + level) / 2)) + float(ndtri(POWER))) * estimate.error  # the distance decided with n

    def needed(distance: float) -> int | None:
        least = max(n, MINIMUM_DEFINED)
        if distance <= 0 or detectable > math.sqrt(TOO_MANY) * distance:
            return None if detectable > 0 else least
        return max(least, math.ceil(n * (detectable / distance) ** 2))

    middle = estimate.at(RANGE)
    distances = [sign * (bound - threshold) * (1 if gap >= 0 else -1) for bound in (middle.low, middle.high)]
    return Planning(instances=needed(abs(gap)), low=needed(max(distances)), high=needed(min(distances)), power=POWER)
