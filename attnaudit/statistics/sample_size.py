"""How many instances would decide a case that was inconclusive."""

from __future__ import annotations

import math

from attnaudit.records import Planning, Requirement
from attnaudit.statistics.interval_estimate import IntervalEstimate
from attnaudit.statistics.verdict import MINIMUM_DEFINED

#: The share of samples of the planned size in which the case is decided.
POWER = 0.8
#: The confidence of the value's interval whose bounds give the range of the figure.
RANGE = 0.5
#: Above this many times the instances at hand, no figure is given: the value is too close to the threshold.
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
    """Plan the number of instances that decides the case in 4 samples of 5.

    The number is n · ((z + z_0.8) · s / d)², where d is the observed distance to the threshold, s the standard error of
    the value, and z the normal quantile of the confidence that a pass or, on the wrong side of the threshold, a failure
    needs. Its range is the same number at both bounds of the value's 50% interval; where the threshold lies in that
    interval, the range has no upper limit.

    Args:
        value: the observed value.
        estimate: its interval at any confidence.
        requirement: the threshold.
        confidence: the confidence that a pass needs.
        fail_confidence: the confidence that a failure needs.
        n: the number of instances that have a value.
    """
    from scipy.special import ndtri

    threshold, sign = requirement.value, 1.0 if requirement.direction == "at_least" else -1.0
    gap = sign * (value - threshold)
    level = confidence if gap >= 0 else fail_confidence
    reach = (float(ndtri((1 + level) / 2)) + float(ndtri(POWER))) * estimate.error

    def needed(distance: float) -> int | None:
        least = max(n, MINIMUM_DEFINED)
        if distance <= 0 or reach > math.sqrt(TOO_MANY) * distance:
            return None if reach > 0 else least
        return max(least, math.ceil(n * (reach / distance) ** 2))

    middle = estimate.at(RANGE)
    distances = [sign * (bound - threshold) * (1 if gap >= 0 else -1) for bound in (middle.low, middle.high)]
    return Planning(instances=needed(abs(gap)), low=needed(max(distances)), high=needed(min(distances)), power=POWER)
