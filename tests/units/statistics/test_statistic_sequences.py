"""Units of rows, and the sequences of the statistics that are computed from them."""

from __future__ import annotations

from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnaudit.statistics.balanced_rows import WeightedRows
from attnaudit.statistics.groups import Groups
from attnaudit.statistics.independent_units import (
    balanced_units,
    keyed_order,
    means_of_units,
    squared_distances_of_units,
)
from attnaudit.statistics.statistic_sequences import (
    limited_ratio_sequence,
    mean_sequence,
    total_effect_sequence,
    unbet_units,
)
from attnaudit.statistics.total_effect_index import TotalEffectIndex
from tests.strategies import seeds


def groups_of(sources):
    ids = [f"{number:04d}" for number in range(len(sources))]
    return Groups.of(sources, ids, np.ones(len(sources), dtype=bool))


@given(st.sets(st.integers(0, 99).map(str), max_size=12), seeds)
def test_the_order_depends_on_the_names_and_the_seed_alone(names, seed):
    given = sorted(names)
    order = [given[i] for i in keyed_order(given, seed)]
    assert sorted(order) == given
    assert order == [given[::-1][i] for i in keyed_order(given[::-1], seed)]
    part = given[::2]
    assert [part[i] for i in keyed_order(part, seed)] == [name for name in order if name in part]


def test_another_seed_gives_another_order():
    names = [str(number) for number in range(50)]
    assert keyed_order(names, 0) != keyed_order(names, 1)


@given(st.lists(st.integers(0, 2), max_size=40), st.integers(1, 3))
def test_units_take_each_row_once_and_as_many_of_each_class(classes, rows_per_class):
    classes = np.array(classes, dtype=np.int64)
    units = balanced_units(classes, range(len(classes)), rows_per_class)
    assert len(np.unique(units)) == units.size
    for unit in units:
        assert [set(classes[rows]) for rows in unit] == [{one} for one in np.unique(classes)]
    counts = np.bincount(classes)
    assert len(units) == (min(counts[counts > 0]) // rows_per_class if len(classes) else 0)
    for earlier, later in pairwise(units):
        assert (earlier.max(1) < later.min(1)).all()


def test_the_means_over_all_possible_units_are_the_total_effect_index():
    """Each class has three equally likely outputs. The mean over all units is the mean over the population."""
    random = np.random.default_rng(1)
    outputs, changes = random.dirichlet((1, 1, 1), 6), random.random(6)
    classes = np.repeat([0, 1], 3)
    rows = WeightedRows.balanced(classes, groups_of([str(i) for i in range(6)]))
    index = TotalEffectIndex.of(changes, outputs, rows)
    units = np.array([[drawn[:2], (drawn[2] + 3, drawn[3] + 3)] for drawn in product(range(3), repeat=4)])
    distances = squared_distances_of_units(outputs, units)
    assert distances.mean() == pytest.approx(2 * index.variance, rel=1e-12)
    assert means_of_units(changes, units).mean() / distances.mean() == pytest.approx(index.value, rel=1e-12)


def test_a_distance_needs_two_rows_of_a_class():
    with pytest.raises(ValueError, match="at least two rows of each class"):
        squared_distances_of_units(np.ones((2, 2)), np.array([[[0], [1]]]))


def test_the_mean_bets_once_per_source():
    values = np.array([0.1, 0.9, 0.5, 0.3])
    groups = groups_of(["b", "a", "b", "c"])
    one = mean_sequence(values, groups, np.array([2, 0, 1]), bounds=(0.0, 1.0), confidence=0.95)
    assert one.above.tolist() == pytest.approx([0.3, 0.9, 0.6])
    assert one.below.tolist() == [1, 1, 2]
    assert one.bounds.most_below == 2


def test_weights_are_limited_by_the_first_rows_which_are_not_bet_on():
    random = np.random.default_rng(0)
    units = balanced_units(np.arange(400) % 2, range(400), 1)
    weights = random.exponential(size=400)
    above, below = weights * random.random(400), weights * random.random(400)
    one = limited_ratio_sequence(above, below, weights, units, confidence=0.95)
    assert unbet_units(units) == one.unbet == 50
    assert (one.bets[:50] == 0).all()
    assert (one.bets[50:] > 0).all()
    limit = weights[:100].max()
    assert one.bounds.most_below == one.bounds.most_above == limit < weights.max()
    scale = np.minimum(weights, limit) / weights
    assert one.above == pytest.approx((above * scale)[units].mean((1, 2)))
    assert one.below == pytest.approx((below * scale)[units].mean((1, 2)))


def test_a_known_limit_needs_no_first_rows():
    units = balanced_units(np.arange(40) % 2, range(40), 1)
    weights = np.linspace(0, 1, 40)
    one = limited_ratio_sequence(weights, weights, weights, units, confidence=0.95, high=1.0, largest=1.0)
    assert one.unbet == 0
    assert one.below == pytest.approx(weights[units].mean((1, 2)))


def test_the_changes_of_a_row_are_limited_to_those_of_an_exchange():
    random = np.random.default_rng(0)
    outputs = random.dirichlet((1, 1), 400)
    changes = np.where(np.arange(400) == 399, 2.0, 0.01)
    one = total_effect_sequence(changes, outputs, balanced_units(np.arange(400) % 2, range(400), 2), confidence=0.95)
    assert one.unbet == 25
    limit = one.below[:25].mean()
    assert one.bounds.most_above == pytest.approx(limit)
    assert one.above[-1] == pytest.approx((3 * 0.01 + limit) / 4)


@pytest.mark.parametrize("count", [0, 2])
def test_without_a_weight_or_a_change_there_is_no_sequence(count):
    units = balanced_units(np.zeros(count, dtype=np.int64), range(count), 2)
    with pytest.raises(ValueError, match="most_below to be positive and finite"):
        limited_ratio_sequence(*np.zeros((3, count)), units, confidence=0.95)
    with pytest.raises(ValueError, match="a positive, finite most_above"):
        total_effect_sequence(np.zeros(count), np.full((count, 2), 0.5), units, confidence=0.95)
