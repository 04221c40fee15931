"""The interval of a share of weighted rows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest

from attnaudit.statistics.balanced_rows import WeightedRows
from attnaudit.statistics.interval_estimate import IntervalEstimate
from attnaudit.statistics.weighted_share import weighted_share_interval
from tests.strategies import seeds
from tests.units.statistics.test_balanced_rows import groups_of


def estimate(right: np.ndarray, weights: np.ndarray, sources: list[int] | None = None) -> IntervalEstimate:
    rows = WeightedRows.equal(len(right), groups_of(list(range(len(right))) if sources is None else sources))
    found = weighted_share_interval(right * weights, weights, rows, confidence=0.95)
    assert found is not None
    return found


@pytest.mark.parametrize("count", [0, 1, 30, 200, 399, 400])
def test_rows_of_equal_weight_have_the_interval_of_wilson(count: int) -> None:
    found = estimate(np.arange(400) < count, np.full(400, 0.3))
    expected = binomtest(count, 400).proportion_ci(0.95, method="wilson")
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high), abs=2e-3)


@given(seeds, st.floats(0.05, 1), st.integers(2, 60))
def test_it_contains_the_share_and_depends_neither_on_the_unit_of_weight_nor_on_repeated_rows(
    seed: int, chance: float, n: int
) -> None:
    random = np.random.default_rng(seed)
    right, weights = random.random(n) < chance, random.gamma(0.5, 1, n)
    found = estimate(right, weights)
    share = weights[right].sum() / weights.sum()
    assert 0 <= found.low <= share <= found.high <= 1
    narrow, wide = found.at(0.5), found.at(0.99)
    assert wide.low <= found.low <= narrow.low <= narrow.high <= found.high <= wide.high
    again = estimate(np.repeat(right, 3), 7 * np.repeat(weights, 3), np.repeat(np.arange(n), 3).tolist())
    assert (again.low, again.high) == pytest.approx((found.low, found.high))


def test_a_text_with_hardly_any_weight_hardly_changes_it() -> None:
    """The interval of a share of exactly 1 is the limit of those of shares near 1."""
    weights = np.random.default_rng(0).gamma(2, 1, 100)
    right = np.ones(100)
    every = estimate(right, weights)
    assert every.low < 0.97
    assert every.high == 1
    right[0] = 0
    lows = []
    for weight in (3.0, 0.1, 1e-6):
        weights[0] = weight
        lows.append(estimate(right, weights).low)
    assert lows == sorted(lows)
    weights[0] = 0
    assert lows[-1] == pytest.approx(estimate(np.ones(100), weights).low, abs=1e-4)


def test_wrong_sources_widen_it() -> None:
    """Rows of a source that are right or wrong together count as one."""
    right = np.arange(200) // 10 % 2 == 0
    alone = estimate(right, np.ones(200))
    together = estimate(right, np.ones(200), (np.arange(200) // 10).tolist())
    assert together.low < alone.low - 0.1
    few = binomtest(10, 20).proportion_ci(0.95, method="wilson")
    assert (together.low, together.high) == pytest.approx((few.low, few.high), abs=0.02)


def test_a_class_with_one_source_and_rows_without_weight_have_none() -> None:
    rows = WeightedRows.balanced(np.array([0, 0, 0, 1, 1]), groups_of([0, 1, 2, 3, 3]))
    assert weighted_share_interval(np.ones(5), np.ones(5), rows, confidence=0.95) is None
    equal = WeightedRows.equal(5, groups_of([0, 1, 2, 3, 4]))
    assert weighted_share_interval(np.zeros(5), np.zeros(5), equal, confidence=0.95) is None


def test_its_number_of_rows_at_another_share_is_that_of_kish_and_uncertain_if_weights_differ() -> None:
    weights = np.random.default_rng(0).gamma(1, 1, 200)
    right = weights > 0.05  # the wrong rows have little weight, so the interval is shorter than that of as many rows
    found, equal = estimate(right, weights).share, estimate(right, np.ones(200)).share
    assert found is not None
    assert equal is not None
    kish = weights.sum() ** 2 / (weights**2).sum()
    assert found.rows == pytest.approx(kish)
    assert equal.rows == pytest.approx(200, rel=0.02)
    assert equal.cautious(0.8) == equal
    # The limit is 0.84 standard errors of Σ w² above it, and further for a skewed distribution.
    relative_error = (weights**2).std() / (weights**2).mean() / np.sqrt(200)
    assert kish / (1 + 1.3 * relative_error) < found.cautious(0.8).rows < kish / (1 + 0.84 * relative_error)
