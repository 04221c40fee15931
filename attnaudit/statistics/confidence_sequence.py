"""Confidence sequences of means and ratios of bounded values, by betting (Waudby-Smith & Ramdas 2024).

A confidence interval is valid for a number of sources that is fixed in advance. A confidence sequence is valid after
every source: with probability 1 - α, all of its intervals contain the true value. A gate may therefore compute the
interval after every source, and stop as soon as it is on one side of the threshold.

The true value θ = E a / E b is tested through E (a - θ b) = 0. For each θ, two gamblers start with a capital of 1. One
bets that the true ratio is above θ, the other that it is below. If θ is true, neither capital is expected to grow, and
the probability that it ever reaches 2 / α is at most α / 2 (Ville's inequality). The interval consists of all θ at
which neither gambler has reached 2 / α. For a mean over rows, a is the sum of the values of a source, and b is its
number of rows.

Reference: Waudby-Smith & Ramdas 2024, "Estimating means of bounded random variables by betting", JRSS B 86(1), 1-27:
the hedged capital process (theorem 3) with predictable plug-in bets (eq. 26).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from attnaudit.arrays import Floats
from attnaudit.records import Interval, Requirement
from attnaudit.records.check_records import CONFIDENCE_SEQUENCE

Side = Literal["above", "below"]

#: A gambler risks at most this share of the capital on one bet (c in theorem 3).
LARGEST_STAKE = 0.75
#: The number of bisection steps that search for an end of an interval.
STEPS = 80
#: Because of rounding, values may exceed their bounds by this fraction of the largest possible value.
ROUNDING = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class RatioBounds:
    """The bounds of a, b and a / b for every pair (a, b). Choose them in advance, without looking at the values.

    Every possible pair satisfies 0 ≤ b ≤ `most_below` and low · b ≤ a. The upper bound of a is high · b if `high` is
    finite, and `most_above` otherwise.

    Attributes:
        low: The lowest possible a / b.
        high: The highest possible a / b; infinite if only a itself is bounded from above.
        most_below: The largest possible b. For means over rows, this is the largest number of rows of a source.
        most_above: The largest possible a, if `high` is infinite.
    """

    low: float
    high: float
    most_below: float = 1.0
    most_above: float = math.inf

    def __post_init__(self) -> None:
        if not (math.isfinite(self.low) and self.low < self.high and 0 < self.most_below < math.inf):
            raise ValueError(
                f"{self}: expected low to be finite and less than high, and most_below to be positive and finite."
            )
        if math.isinf(self.high) and not (self.low >= 0 and 0 < self.most_above < math.inf):
            raise ValueError(f"{self}: high is infinite; expected low >= 0 and a positive, finite most_above.")

    def largest_gain(self, ratio: float) -> float:
        """Return the largest possible value of a - ratio · b; 0 if this value is negative."""
        return self.most_above if math.isinf(self.high) else max(0.0, (self.high - ratio) * self.most_below)

    def largest_loss(self, ratio: float) -> float:
        """Return the largest possible value of ratio · b - a; 0 if this value is negative."""
        return max(0.0, (ratio - self.low) * self.most_below)

    def require(self, above: Floats, below: Floats) -> None:
        """Require that all pairs are within the bounds, up to rounding.

        Raises:
            ValueError: A pair is outside the bounds, so the sequence would not be valid.
        """
        highest = np.full_like(above, self.most_above) if math.isinf(self.high) else self.high * below
        slack = ROUNDING * (self.most_below + self.largest_gain(self.low))
        inside = (-slack <= below) & (below <= self.most_below + slack)
        inside &= (self.low * below - slack <= above) & (above <= highest + slack)
        if not inside.all():
            first = int(np.argmin(inside))
            raise ValueError(
                f"The values at position {first} are outside their bounds: a = {above[first]:.6g}, "
                f"b = {below[first]:.6g}. Expected values within {self}."
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Settlement:
    """The first verdict that a sequence reaches.

    Attributes:
        verdict: "pass" or "fail"; "inconclusive" if neither is reached before the last value.
        count: The number of values until the verdict.
        spent_error: An upper bound on the probability that this verdict is wrong: that a gate passes although the true
            value misses the threshold, or fails although it meets the threshold. 0 if the verdict is "inconclusive".
    """

    verdict: Literal["pass", "fail", "inconclusive"]
    count: int
    spent_error: float


class SettlingSequence(ABC):
    """A confidence sequence that can decide a verdict.

    Attributes:
        confidence: The confidence of the sequence, between 0 and 1.
    """

    confidence: float

    @abstractmethod
    def __len__(self) -> int:
        """Return T, the number of pairs."""

    @abstractmethod
    def interval(self, count: int | None = None, *, confidence: float | None = None) -> Interval:
        """Return the interval after the first `count` pairs. It lies inside the intervals after fewer pairs.

        Args:
            count: The number of pairs; None for all.
            confidence: The confidence, between 0 and 1; None for the confidence of the sequence.
        """

    @abstractmethod
    def first(self, ratio: float, side: Side, confidence: float, least: int) -> int | None:
        """Return the number of pairs, at least `least`, after which the true ratio is known to be on a side of `ratio`.

        Return None if this is not known after any number of pairs.
        """

    def settle(self, requirement: Requirement, *, fail_confidence: float | None = None, least: int = 1) -> Settlement:
        """Return the first verdict that the sequence reaches on a threshold.

        The gate passes as soon as the interval at `confidence` is on the required side. It fails as soon as the
        interval at `fail_confidence` is on the wrong side. The interval is checked after every pair, so the result does
        not depend on the batches in which the pairs were measured.

        Args:
            requirement: The threshold.
            fail_confidence: The confidence at which a failure is decided; None for the confidence of the sequence.
            least: The smallest number of pairs at which a verdict may be reached.
        """
        fail_confidence = self.confidence if fail_confidence is None else fail_confidence
        sides: tuple[Side, Side] = ("above", "below") if requirement.direction == "at_least" else ("below", "above")
        passed = self.first(requirement.value, sides[0], self.confidence, least)
        failed = self.first(requirement.value, sides[1], fail_confidence, least)
        if failed is not None and (passed is None or failed <= passed):
            return Settlement(verdict="fail", count=failed, spent_error=(1 - fail_confidence) / 2)
        if passed is not None:
            return Settlement(verdict="pass", count=passed, spent_error=(1 - self.confidence) / 2)
        return Settlement(verdict="inconclusive", count=len(self), spent_error=0.0)


@dataclass(frozen=True)
class ConfidenceSequence(SettlingSequence):
    """The confidence sequence of θ = E a / E b from T pairs of values. Build it with `of`.

    Attributes:
        above: (T,) values of a.
        below: (T,) values of b.
        bounds: The bounds of a and b.
        confidence: The confidence of the sequence, between 0 and 1.
        unbet: The number of pairs at the start on which nothing is bet.
    """

    above: Floats
    below: Floats
    bounds: RatioBounds
    confidence: float
    unbet: int

    @classmethod
    def of(
        cls, above: Floats, below: Floats, bounds: RatioBounds, *, confidence: float, unbet: int = 0
    ) -> ConfidenceSequence:
        """Build the sequence of independent pairs.

        Args:
            above: (T,) values of a, in random order. Each pair belongs to one source or to several sources. No two
                pairs share a source.
            below: (T,) values of b.
            bounds: The bounds of a and b.
            confidence: The confidence, between 0 and 1.
            unbet: The number of pairs at the start on which nothing is bet. These pairs are only used to choose the
                later bets. If a or b contains an estimated quantity, such as the scale of the outputs, these pairs must
                include all values from which it was estimated.

        Raises:
            ValueError: A value is outside its bounds or not a number, or the arguments do not fit together.
        """
        above, below = np.asarray(above, dtype=np.float64), np.asarray(below, dtype=np.float64)
        if above.ndim != 1 or above.shape != below.shape:
            raise ValueError(f"Expected two vectors of the same length, but got shapes {above.shape}, {below.shape}.")
        if not 0 < confidence < 1 or unbet < 0:
            raise ValueError(f"Expected 0 < confidence < 1 and unbet >= 0, but got {confidence} and {unbet}.")
        bounds.require(above, below)
        return cls(above, below, bounds, confidence, unbet)

    def __len__(self) -> int:
        """Return T, the number of pairs."""
        return len(self.above)

    @cached_property
    def bets(self) -> Floats:
        """The (T,) bets, before they are limited (see `plug_in_bets`)."""
        return plug_in_bets(self.above, self.below, self.bounds, confidence=self.confidence, unbet=self.unbet)

    def log_capital(self, ratio: float, side: Side) -> Floats:
        """Return (T,) logarithms of a gambler's capital, one after each pair (see the function `log_capital`)."""
        return log_capital(self.above, self.below, self.bets, self.bounds, ratio, side)

    def interval(self, count: int | None = None, *, confidence: float | None = None) -> Interval:
        """Return the interval after the first `count` pairs. It lies inside the intervals after fewer pairs.

        Args:
            count: The number of pairs; None for all.
            confidence: The confidence, between 0 and 1; None for the confidence of the sequence. All confidences use
                the same bets, so an interval at a higher confidence is never shorter.

        Returns:
            The interval. Its upper end is infinite if the ratio has no upper bound and no gambler has won yet.
        """
        confidence = self.confidence if confidence is None else confidence
        part, limit = slice(count), log_limit(confidence)

        def excluded(ratio: float, side: Side) -> bool:
            capital = log_capital(self.above[part], self.below[part], self.bets[part], self.bounds, ratio, side)
            return bool((capital >= limit).any())

        lowest, highest = self.bounds.low, self.bounds.high
        if math.isinf(highest):
            tried = (lowest + self.bounds.most_above / self.bounds.most_below * 2.0**step for step in range(STEPS))
            highest = next((r for r in tried if excluded(r, "below") and not excluded(r, "above")), math.inf)
        # If both gamblers won at the same ratios, no ratio is left. The interval then consists of the ratios at which
        # both won.
        ends = (
            _boundary(lambda ratio: excluded(ratio, "above"), lowest, highest),
            _boundary(lambda ratio: not excluded(ratio, "below"), lowest, highest),
        )
        return Interval(low=min(ends), high=max(ends), confidence=confidence, method=CONFIDENCE_SEQUENCE)

    def first(self, ratio: float, side: Side, confidence: float, least: int) -> int | None:
        """Return the smallest number of pairs, at least `least`, after which a gambler has won; None without a win."""
        won = np.flatnonzero(self.log_capital(ratio, side) >= log_limit(confidence))
        return max(int(won[0]) + 1, least) if len(won) and len(self) >= least else None


@dataclass(frozen=True)
class EnclosedSequence(SettlingSequence):
    """The confidence sequence of a ratio θ that is known to lie between the ratios of two other sequences.

    Each of the two gives one end of the interval. If they err with a probability of at most α / 2 on their side, then
    so does the enclosed sequence.

    Attributes:
        lower: A sequence whose ratio is at most θ. It has T pairs.
        upper: A sequence of as many pairs, whose ratio is at least θ.
        confidence: The confidence of both sequences, between 0 and 1.
        highest: The highest possible θ.
    """

    lower: ConfidenceSequence
    upper: ConfidenceSequence
    confidence: float
    highest: float = math.inf

    def __len__(self) -> int:
        """Return T, the number of pairs."""
        return len(self.lower)

    def interval(self, count: int | None = None, *, confidence: float | None = None) -> Interval:
        """Return the interval after the first `count` pairs, as in `ConfidenceSequence.interval`."""
        low, high = (one.interval(count, confidence=confidence) for one in (self.lower, self.upper))
        ends = (min(low.low, self.highest), min(high.high, self.highest))
        return Interval(low=min(ends), high=max(ends), confidence=low.confidence, method=CONFIDENCE_SEQUENCE)

    def first(self, ratio: float, side: Side, confidence: float, least: int) -> int | None:
        """Return the smallest number of pairs, at least `least`, after which a gambler has won; None without a win."""
        return (self.lower if side == "above" else self.upper).first(ratio, side, confidence, least)


def log_limit(confidence: float) -> float:
    """Return log(2 / α), where 1 - α is the confidence. A gambler whose capital reaches 2 / α has won."""
    return math.log(2 / (1 - confidence))


def plug_in_bets(above: Floats, below: Floats, bounds: RatioBounds, *, confidence: float, unbet: int = 0) -> Floats:
    """Return the bets λ of Waudby-Smith & Ramdas 2024, eq. 26, each of which depends on earlier pairs only.

    The bet on pair t is √(2 log(2/α) / (σ² t log(t + 1))). Here, θ is the ratio of the means of the earlier pairs, and
    σ² is the estimated variance of a - θ b. If `unbet` is 0, both estimates start from an artificial pair halfway
    between the bounds.

    Args:
        above: (..., T) values of a. The other axes are independent sequences.
        below: (..., T) values of b.
        bounds: The bounds of a and b.
        confidence: 1 - α.
        unbet: The number of pairs at the start on which the bet is 0. They do not count in t.

    Returns:
        (..., T) bets, at least 0. A bet is infinite if the earlier pairs do not vary.
    """
    informed = unbet >= 2
    middle_below = bounds.most_below
    middle_above = bounds.low * middle_below + bounds.largest_gain(bounds.low) / 2
    middle = middle_above / middle_below
    spread = (bounds.largest_gain(middle) + bounds.largest_loss(middle)) / 2
    weight = 0.0 if informed else 1.0
    total_above = np.cumsum(above, axis=-1) + weight * middle_above
    total_below = np.cumsum(below, axis=-1) + weight * middle_below
    ratio = np.divide(total_above, total_below, out=np.full_like(total_above, middle), where=total_below > 0)
    squares = np.cumsum((above - ratio * below) ** 2, axis=-1) + weight * spread**2
    known = np.arange(1, above.shape[-1] + 1) + weight  # pairs, including the artificial one
    variance = np.concatenate([np.full((*above.shape[:-1], 1), spread**2), (squares / known)[..., :-1]], axis=-1)
    number = np.arange(above.shape[-1]) + 1 - unbet
    later = np.maximum(number, 1)
    with np.errstate(divide="ignore"):
        bets: Floats = np.sqrt(2 * log_limit(confidence) / (variance * later * np.log1p(later)))
    return np.where(number > 0, bets, 0.0)


def log_capital(above: Floats, below: Floats, bets: Floats, bounds: RatioBounds, ratio: float, side: Side) -> Floats:
    """Return the logarithm of the capital of one gambler, which is 0 before the first pair.

    If the gambler bets that the true ratio is "above" θ, the capital is the product of 1 + λ (a - θ b) over the pairs.
    If the bet is "below", it is the product of 1 - λ (a - θ b). A gambler "above" has less capital at a higher θ, and a
    gambler "below" has more. The bets are limited such that no possible pair takes more than 75% of the capital.

    Args:
        above: (..., T) values of a.
        below: (..., T) values of b.
        bets: (..., T) bets, each of which depends on earlier pairs only.
        bounds: The bounds of a and b.
        ratio: θ.
        side: The side on which the gambler expects the true ratio.

    Returns:
        (..., T) logarithms of the capital after each pair.
    """
    sign = 1.0 if side == "above" else -1.0
    risk = bounds.largest_loss(ratio) if side == "above" else bounds.largest_gain(ratio)
    limited = np.minimum(bets, LARGEST_STAKE / risk) if risk > 0 else bets
    gains = sign * (above - ratio * below)
    # If the earlier pairs do not vary, a bet may be infinite while the gain is 0.
    with np.errstate(invalid="ignore"):
        changes = np.where(gains == 0, 0.0, limited * gains)
    capital: Floats = np.cumsum(np.log1p(changes), axis=-1)
    return capital


def _boundary(before: Callable[[float], bool], low: float, high: float) -> float:
    """Return the largest ratio at which a condition holds: `low` if it holds nowhere, `high` if it holds everywhere."""
    if not before(low):
        return low
    if math.isinf(high) or before(high):
        return high
    for _ in range(STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if before(middle) else (low, middle)
    return low
