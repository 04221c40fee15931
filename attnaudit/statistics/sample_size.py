"""How many instances would decide a case that these did not."""

from __future__ import annotations

import math

from attnaudit.records import Planning, Requirement
from attnaudit.statistics.interval_estimate import IntervalEstimate
from attnaudit.statistics.verdict import MINIMUM_DEFINED

#: The chance of a decision that the figure is planned for.
POWER = 0.8
#: The interval of the value whose ends give the range.
RANGE = 0.5
#: A figure of more than so many times the instances there are is no plan: the value is too close to the threshold.
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
    """The number of instances with which an interval as narrow as √n allows decides in 4 samples of 5.

    It rests on the observed distance to the threshold, d, and the standard error s: n · ((z + z_0.8) · s / d)², with z
    of the level that a pass or, on the other side, a failure needs. The range is that number at the ends of the 50%
    interval of the value, unknown above where the threshold lies in it.
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
    ends = [sign * (end - threshold) * (1 if gap >= 0 else -1) for end in (middle.low, middle.high)]
    found, low, high = needed(abs(gap)), needed(max(ends)), needed(min(ends))
    return Planning(instances=found, low=low, high=high, power=POWER, words=_words(found, low, high))


def _words(found: int | None, low: int | None, high: int | None) -> str:
    if found is None:
        more = f"; at least {_rounded(low)} instances" if low is not None else ""
        return f"the value is too close to the threshold to say how many instances would decide it{more}"
    if low == found == high:
        return f"{_rounded(found)} instances would decide it"
    upper = f"to {_rounded(high)}" if high is not None else "upwards, without a known limit"
    return f"about {_rounded(found)} instances would decide it ({_rounded(low or found)} {upper})"


def _rounded(count: int) -> str:
    """Two figures, since no more are known, rounded up."""
    step = 10 ** max(0, len(str(count)) - 2)
    return f"{math.ceil(count / step) * step:,}"
