"""How far a statistic may lie from the truth, at any confidence."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from attnaudit.records import Interval


@dataclass(frozen=True, slots=True, kw_only=True)
class IntervalEstimate:
    """How far a statistic may lie from the truth: an interval at any confidence, from one set of resamples.

    error: the standard error of the statistic. confidence: the level of `low` and `high`. caution: what measured
    coverage says against the interval, in words, or nothing. find: confidence -> interval. narrows: whether more
    instances like these make it ever shorter.
    """

    error: float
    confidence: float
    find: Callable[[float], Interval] = field(repr=False)
    caution: str = ""
    narrows: bool = True

    def at(self, confidence: float) -> Interval:
        return self.find(confidence)

    @property
    def low(self) -> float:
        return self.at(self.confidence).low

    @property
    def high(self) -> float:
        return self.at(self.confidence).high

    @property
    def method(self) -> str:
        return self.at(self.confidence).method


def normal_reach(confidence: float) -> float:
    from scipy.special import ndtri

    return float(ndtri((1 + confidence) / 2))


def clip(low: float, high: float, bounds: tuple[float, float]) -> tuple[float, float]:
    """Both ends brought within the bounds."""
    return float(np.clip(low, *bounds)), float(np.clip(high, *bounds))


def point(value: float, confidence: float, why: str) -> IntervalEstimate:
    return IntervalEstimate(
        error=0.0,
        confidence=confidence,
        find=lambda asked: Interval(low=value, high=value, confidence=asked, method=why),
    )


def bracket(below: IntervalEstimate, above: IntervalEstimate) -> IntervalEstimate:
    """From the lower end of one to the upper end of the other: of a value that is only known to lie between two."""

    def find(asked: float) -> Interval:
        low, high = below.at(asked), above.at(asked)
        return Interval(
            low=low.low, high=high.high, confidence=asked, method=f"{low.method}, from the found to the upper bound"
        )

    return IntervalEstimate(
        error=max(below.error, above.error),
        confidence=below.confidence,
        find=find,
        caution=below.caution or above.caution,
    )


def widened(
    estimate: IntervalEstimate, error: float, freedom: float, what: str, bounds: tuple[float, float]
) -> IntervalEstimate:
    """The same, with a second, independent cause of error that has so many degrees of freedom (Student's t)."""
    from scipy.special import stdtrit

    def find(asked: float) -> Interval:
        one, reach = estimate.at(asked), float(stdtrit(freedom, (1 + asked) / 2)) * error
        middle = (one.low + one.high) / 2
        half = float(np.hypot((one.high - one.low) / 2, reach))
        low, high = clip(middle - half, middle + half, bounds)
        return Interval(low=low, high=high, confidence=asked, method=f"{one.method}, {what}")

    return IntervalEstimate(
        error=float(np.hypot(estimate.error, error)),
        confidence=estimate.confidence,
        find=find,
        caution=estimate.caution,
        narrows=False,
    )


def shifted(estimate: IntervalEstimate, by: float, what: str) -> IntervalEstimate:
    """The same spread around another point."""

    def find(asked: float) -> Interval:
        one = estimate.at(asked)
        return Interval(low=one.low + by, high=one.high + by, confidence=asked, method=f"{one.method}, {what}")

    return IntervalEstimate(
        error=estimate.error,
        confidence=estimate.confidence,
        find=find,
        caution=estimate.caution,
        narrows=estimate.narrows,
    )
