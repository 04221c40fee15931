"""Weights that give every class the same weight, and the intervals of weighted ratios."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnaudit.statistics.balanced_rows import WeightedRows
from attnaudit.statistics.groups import Groups
from attnaudit.statistics.standardised_logits import StandardisedLogits
from tests.strategies import seeds


def groups_of(sources: list[int], chosen: np.ndarray | None = None) -> Groups:
    n = len(sources)
    ids = [f"{i:05d}" for i in range(n)]
    return Groups.of([f"{s:05d}" for s in sources], ids, np.ones(n, dtype=bool) if chosen is None else chosen)


@given(st.lists(st.integers(0, 3), min_size=1, max_size=30), seeds)
def test_every_class_has_the_same_total_weight(classes: list[int], seed: int) -> None:
    random = np.random.default_rng(seed)
    chosen = random.random(len(classes)) < 0.8
    rows = WeightedRows.balanced(np.array(classes), groups_of(list(range(len(classes))), chosen))
    assert (rows.weights[~chosen] == 0).all()
    totals = [
        rows.weights[chosen & (np.array(classes) == one)].sum() for one in set(np.array(classes)[chosen].tolist())
    ]
    assert totals == pytest.approx([chosen.sum() / len(totals)] * len(totals) if totals else [])
    if totals:
        values = random.normal(size=(len(classes), 2))
        means = [values[chosen & (np.array(classes) == one)].mean(0) for one in set(np.array(classes)[chosen].tolist())]
        assert rows.mean(values) == pytest.approx(np.mean(means, axis=0))


def test_the_error_is_that_of_separate_samples_of_the_classes() -> None:
    random = np.random.default_rng(0)
    classes = np.array([0] * 300 + [1] * 60)
    above, below = random.gamma(2, 1, 360) + 3 * classes, random.gamma(4, 1, 360) + 5 * classes
    rows = WeightedRows.balanced(classes, groups_of(list(range(360))))
    estimate = rows.ratio_interval(above, below, confidence=0.95, generator=random)
    assert estimate is not None
    parts = [np.flatnonzero(classes == one) for one in (0, 1)]
    ratio = sum(above[part].mean() for part in parts) / sum(below[part].mean() for part in parts)
    variance = sum((above - ratio * below)[part].var(ddof=1) / len(part) for part in parts)
    error = np.sqrt(variance) / sum(below[part].mean() for part in parts)
    assert estimate.error == pytest.approx(error, rel=0.02)
    assert estimate.low < ratio < estimate.high


def test_the_number_of_sources_is_that_of_the_class_with_the_fewest() -> None:
    rows = WeightedRows.balanced(np.array([0] * 8 + [1] * 4), groups_of([*range(8), 8, 8, 9, 10]))
    assert rows.fewest_sources == 3
    assert rows.fewest_effective == pytest.approx(4**2 / (4 + 1 + 1))
    assert rows.effective == pytest.approx(2 * 16 / 6)
    even = WeightedRows.balanced(np.arange(12) % 3, groups_of(list(range(12))))
    assert even.effective == 12
    shared = WeightedRows.balanced(np.arange(12) % 2, groups_of([i // 2 for i in range(12)]))
    assert shared.effective == shared.groups.effective == 6


def test_equal_weights_leave_the_interval_of_a_ratio_as_it_is() -> None:
    from attnaudit.statistics.intervals import ratio_interval

    random = np.random.default_rng(0)
    above, below, groups = random.random(50), random.random(50) + 1, groups_of(list(range(50)))
    rows = WeightedRows.equal(50, groups)
    own, plain = (
        rows.ratio_interval(above, below, confidence=0.95, generator=np.random.default_rng(1)),
        ratio_interval(above, below, groups, confidence=0.95, generator=np.random.default_rng(1)),
    )
    assert own is not None
    assert plain is not None
    assert (own.low, own.high) == (plain.low, plain.high)


def test_logits_that_do_not_vary_cannot_be_standardised() -> None:
    rows = WeightedRows.equal(5, groups_of(list(range(5))))
    assert StandardisedLogits.of(np.full((5, 2), [3.0, -3.0]), rows) is None
    assert (
        StandardisedLogits.of(np.zeros((5, 2)), WeightedRows.equal(5, groups_of([], np.zeros(0, dtype=bool)))) is None
    )
