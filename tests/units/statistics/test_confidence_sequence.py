"""Confidence sequences by betting, against the capital processes in exact arithmetic."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from attnaudit.records import Requirement
from attnaudit.statistics.confidence_sequence import (
    LARGEST_STAKE,
    ConfidenceSequence,
    EnclosedSequence,
    RatioBounds,
    log_capital,
    log_limit,
    plug_in_bets,
)
from tests.strategies import directions, seeds

UNIT = RatioBounds(low=0.0, high=1.0)
#: Sums over sources of up to three rows, with values from -1 to 2.
SOURCES = RatioBounds(low=-1.0, high=2.0, most_below=3.0)
#: a and b are bounded, and their ratio is not.
UNBOUNDED = RatioBounds(low=0.0, high=math.inf, most_below=2.0, most_above=0.5)
ALL_BOUNDS = (UNIT, SOURCES, UNBOUNDED)


def pairs(bounds: RatioBounds, shares: list[tuple[float, float]]) -> tuple[np.ndarray, np.ndarray]:
    """Pairs within the bounds; (0, 0) are the lowest values, and (1, 1) the highest."""
    share = np.array(shares, dtype=float).reshape(-1, 2)
    below = bounds.most_below * share[:, 1]
    if math.isinf(bounds.high):
        return bounds.most_above * share[:, 0], below
    return below * (bounds.low + (bounds.high - bounds.low) * share[:, 0]), below


shares = st.lists(st.tuples(*[st.integers(0, 8).map(lambda n: n / 8)] * 2), min_size=1, max_size=30)
all_bounds = st.sampled_from(ALL_BOUNDS)
sides = st.sampled_from(["above", "below"])


def sequence(bounds, values, confidence=0.9, unbet=0):
    return ConfidenceSequence.of(*pairs(bounds, values), bounds, confidence=confidence, unbet=unbet)


def exact_capital(one: ConfidenceSequence, ratio: Fraction, side: str) -> list[Fraction]:
    """The capital after each pair, from its definition and without rounding, given the bets."""
    bounds, capital, history = one.bounds, Fraction(1), []
    low, most_below = Fraction(bounds.low), Fraction(bounds.most_below)
    if side == "above":
        risk = (ratio - low) * most_below
    else:
        risk = Fraction(bounds.most_above) if math.isinf(bounds.high) else (Fraction(bounds.high) - ratio) * most_below
    for a, b, bet in zip(one.above.tolist(), one.below.tolist(), one.bets.tolist(), strict=True):
        limited = min(Fraction(bet), Fraction(LARGEST_STAKE) / risk)
        capital *= 1 + limited * (1 if side == "above" else -1) * (Fraction(a) - ratio * Fraction(b))
        history.append(capital)
    return history


@pytest.mark.parametrize("bounds", ALL_BOUNDS)
@pytest.mark.parametrize("seed", range(4))
def test_the_interval_consists_of_the_ratios_at_which_no_exact_capital_reached_its_limit(bounds, seed):
    random = np.random.default_rng(seed)
    one = sequence(bounds, np.column_stack([random.beta(6, 2, 14), random.uniform(0.5, 1, 14)]).tolist(), 0.8)
    interval, limit = one.interval(), Fraction(2) / (1 - Fraction(0.8))
    highest = Fraction(4) if math.isinf(bounds.high) else Fraction(bounds.high)
    grid = [Fraction(bounds.low) + (highest - Fraction(bounds.low)) * Fraction(i, 61) for i in range(1, 61)]
    inside = [
        ratio for ratio in grid if all(max(exact_capital(one, ratio, side)) < limit for side in ("above", "below"))
    ]
    assert inside, "the sequence must be long enough to say something, and short enough to leave ratios"
    assert len(inside) < len(grid)
    assert inside == [ratio for ratio in grid if interval.low <= ratio <= interval.high]


def test_the_bets_are_those_of_the_paper():
    values, confidence, bets = [0.2, 0.9, 0.4, 0.7, 0.1], 0.95, []
    means, squares = [0.5], 0.25
    for t, value in enumerate(values, start=1):
        variance = squares / t
        bets.append(math.sqrt(2 * math.log(2 / (1 - confidence)) / (variance * t * math.log(t + 1))))
        means.append((0.5 + sum(values[:t])) / (t + 1))
        squares += (value - means[-1]) ** 2
    computed = plug_in_bets(np.array(values), np.ones(5), UNIT, confidence=confidence)
    assert np.allclose(computed, bets, rtol=1e-12)


@pytest.mark.parametrize("side", ["above", "below"])
@pytest.mark.parametrize("bounds", ALL_BOUNDS)
@pytest.mark.parametrize("unbet", [0, 2])
def test_the_expected_capital_at_the_true_ratio_is_exactly_one(bounds, side, unbet):
    outcomes = [((0.1, 0.6), Fraction(1, 4)), ((0.75, 1.0), Fraction(1, 2)), ((0.9, 0.2), Fraction(1, 4))]
    above, below = pairs(bounds, [shares for shares, _ in outcomes])
    chances = [chance for _, chance in outcomes]
    ratio = sum(map(lambda a, p: Fraction(a) * p, above.tolist(), chances)) / sum(
        map(lambda b, p: Fraction(b) * p, below.tolist(), chances)
    )
    expected = Fraction(0)
    for drawn in product(range(3), repeat=6):
        one = sequence(bounds, [outcomes[i][0] for i in drawn], unbet=unbet)
        final = math.exp(one.log_capital(float(ratio), side)[-1])
        expected += math.prod(chances[i] for i in drawn) * Fraction(final)
    assert float(expected) == pytest.approx(1, abs=1e-9)


@given(all_bounds, shares, shares)
def test_a_bet_depends_only_on_earlier_pairs(bounds, first, then):
    one, other = sequence(bounds, first + then), sequence(bounds, [*first, (1.0, 1.0)])
    assert np.array_equal(one.bets[: len(first) + 1], other.bets[: len(first) + 1])


@given(all_bounds, shares, sides, st.floats(0, 1), st.floats(0, 1))
def test_the_capital_is_monotone_in_the_ratio(bounds, values, side, one, other):
    assume(one < other)
    high = 4.0 if math.isinf(bounds.high) else bounds.high
    low, high = (bounds.low + (high - bounds.low) * share for share in (one, other))
    assume(low < high)
    tested = sequence(bounds, values)
    difference = tested.log_capital(low, side) - tested.log_capital(high, side)
    difference = difference[np.isfinite(difference)]
    assert (difference >= -1e-9).all() if side == "above" else (difference <= 1e-9).all()


@given(all_bounds, shares, sides, st.integers(0, 29), st.floats(0.05, 0.95))
def test_given_the_bets_the_capital_is_monotone_in_the_data(bounds, values, side, position, share):
    one = sequence(bounds, values)
    ratio = bounds.low + share * (3.0 if math.isinf(bounds.high) else bounds.high - bounds.low)
    raised = [(min(1.0, a + 1 / 8), b) if i == position else (a, b) for i, (a, b) in enumerate(values)]
    above, below = pairs(bounds, raised)
    difference = log_capital(above, below, one.bets, bounds, ratio, side) - one.log_capital(ratio, side)
    assert (difference >= -1e-9).all() if side == "above" else (difference <= 1e-9).all()


@given(st.lists(st.floats(0, 1), min_size=1, max_size=40), st.floats(-5, 5), st.floats(0.1, 9))
def test_reflected_and_rescaled_values_give_reflected_and_rescaled_intervals(values, shift, scale):
    x = np.array(values)
    bounds = RatioBounds(low=shift, high=shift + scale)
    first = ConfidenceSequence.of(x, np.ones_like(x), UNIT, confidence=0.9).interval()
    reflected = ConfidenceSequence.of(shift + scale * (1 - x), np.ones_like(x), bounds, confidence=0.9).interval()
    assert first.low == pytest.approx((shift + scale - reflected.high) / scale, abs=1e-6)
    assert first.high == pytest.approx((shift + scale - reflected.low) / scale, abs=1e-6)


@given(all_bounds, shares, st.integers(0, 5))
def test_intervals_are_nested_and_wider_at_a_higher_confidence(bounds, values, unbet):
    one = sequence(bounds, values, unbet=unbet)
    intervals = [one.interval(count) for count in range(len(one) + 1)]
    assert (intervals[0].low, intervals[0].high) == (bounds.low, bounds.high)
    assume(all(interval.low < interval.high for interval in intervals))
    for earlier, later in pairwise(intervals):
        assert earlier.low <= later.low + 1e-9
        assert later.high <= earlier.high + 1e-9
    wider = one.interval(confidence=0.99)
    assert wider.low <= intervals[-1].low + 1e-9
    assert intervals[-1].high <= wider.high + 1e-9


@given(all_bounds, seeds, directions, st.floats(0.1, 0.9), st.integers(1, 60))
def test_a_gate_settles_at_the_first_interval_on_one_side_of_the_threshold(bounds, seed, direction, share, least):
    random = np.random.default_rng(seed)
    one = sequence(bounds, np.column_stack([random.beta(1, 5, 120), random.uniform(0.5, 1, 120)]).tolist())
    threshold = bounds.low + share * (1.0 if math.isinf(bounds.high) else bounds.high - bounds.low)
    settled = one.settle(Requirement(direction=direction, value=threshold), fail_confidence=0.95, least=least)
    at_least = direction == "at_least"

    def decided(count):
        passing, failing = one.interval(count), one.interval(count, confidence=0.95)
        passes = passing.low >= threshold if at_least else passing.high <= threshold
        fails = failing.high <= threshold if at_least else failing.low >= threshold
        return "fail" if fails else "pass" if passes else None

    if settled.verdict == "inconclusive":
        assert decided(len(one)) is None
        assert settled.spent_error == 0
    else:
        assert decided(settled.count) == settled.verdict
        assert settled.count == least or decided(settled.count - 1) is None
        assert settled.spent_error == pytest.approx(0.05 if settled.verdict == "pass" else 0.025)


@given(seeds, st.floats(0.2, 0.8))
def test_an_enclosed_sequence_has_one_end_and_one_side_of_each_sequence(seed, threshold):
    random = np.random.default_rng(seed)
    lower, upper = (
        ConfidenceSequence.of(random.beta(a, 5, 200), np.ones(200), UNIT, confidence=0.9) for a in (3.0, 6.0)
    )
    one = EnclosedSequence(lower, upper, 0.9, highest=0.6)
    interval = one.interval(confidence=0.95)
    assert interval.low == min(0.6, lower.interval(confidence=0.95).low)
    assert interval.high == min(0.6, upper.interval(confidence=0.95).high)
    assert len(one) == 200
    settled = one.settle(Requirement(direction="at_most", value=threshold))
    passed = upper.settle(Requirement(direction="at_most", value=threshold))
    failed = lower.settle(Requirement(direction="at_most", value=threshold))
    if passed.verdict == "pass":
        assert settled == passed
    elif failed.verdict == "fail":
        assert settled == failed
    else:
        assert settled.verdict == "inconclusive"


def test_stopping_whenever_it_settles_errs_less_often_than_nominal_on_either_side():
    random = np.random.default_rng(0)
    above = (random.random((2000, 400)) < 0.3).astype(float)
    below = np.ones_like(above)
    bets = plug_in_bets(above, below, UNIT, confidence=0.9)
    for side in ("above", "below"):
        errors = (log_capital(above, below, bets, UNIT, 0.3, side) >= log_limit(0.9)).any(1)
        assert 0 < errors.mean() <= 0.05


@pytest.mark.parametrize("value", [1.01, -0.01, math.nan, math.inf])
def test_a_value_outside_its_bounds_is_refused(value):
    with pytest.raises(ValueError, match="position 1 are outside their bounds"):
        ConfidenceSequence.of(np.array([0.5, value]), np.ones(2), UNIT, confidence=0.9)


@pytest.mark.parametrize(
    "arguments",
    [
        {"low": 0.0, "high": math.inf},
        {"low": -1.0, "high": math.inf, "most_above": 1.0},
        {"low": -math.inf, "high": 1.0},
        {"low": 1.0, "high": 1.0},
        {"low": 0.0, "high": 1.0, "most_below": 0.0},
    ],
)
def test_bounds_without_a_valid_sequence_are_refused(arguments):
    with pytest.raises(ValueError, match=r"expected .*low"):
        RatioBounds(**arguments)
