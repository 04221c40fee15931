"""Units of rows, and the sequences of the statistics that are computed from them."""

from __future__ import annotations

from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnaudit.records import Requirement
from attnaudit.statistics.balanced_rows import WeightedRows
from attnaudit.statistics.groups import Groups
from attnaudit.statistics.independent_units import (
    balanced_units,
    enclosed_distances_of_units,
    keyed_order,
    largest_enclosed_distance,
    means_of_units,
    squared_distances_of_units,
)
from attnaudit.statistics.statistic_sequences import (
    limited_ratio_sequence,
    lost_share_sequence,
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


def test_the_means_over_all_possible_units_enclose_the_mean_distance():
    """Each class has three equally likely vectors. The mean over all units is the mean over the population."""
    vectors = np.random.default_rng(0).gamma(0.5, size=(6, 2))
    units = np.array([[drawn[:2], (drawn[2] + 3, drawn[3] + 3)] for drawn in product(range(3), repeat=4)])
    mean = np.mean(vectors, axis=0)
    distance = np.linalg.norm(vectors - mean, axis=1).mean()
    lower, upper = (one.mean() for one in enclosed_distances_of_units(vectors, units))
    assert lower < distance < upper
    lower, upper = (one.mean() for one in enclosed_distances_of_units(vectors - mean, units))
    assert lower == pytest.approx(distance, rel=1e-12), "with the exact centre"
    assert distance < upper


@given(seeds, st.integers(1, 3), st.integers(2, 4))
def test_enclosed_distances_are_within_their_bounds(seed, classes, rows):
    random = np.random.default_rng(seed)
    vectors = random.normal(size=(40, 3)) * random.gamma(0.2, size=(40, 1))
    vectors[random.random(40) < 0.2] = 0.0
    vectors /= max(1e-300, np.linalg.norm(vectors, axis=1).max())
    units = random.integers(0, 40, (30, classes, rows))
    lower, upper = enclosed_distances_of_units(vectors, units)
    assert (lower >= 0).all()
    assert (lower <= upper + 1e-12).all()
    assert (upper <= largest_enclosed_distance(units) + 1e-12).all()


def outputs_and_kept(count, *, seed=0):
    """Skewed outputs, of which 60% are kept, and noise. Their means are not 0."""
    random = np.random.default_rng(seed)
    outputs = random.normal(size=(count, 2)) + random.gamma(0.5, 2.0, (count, 1)) * [1, -1]
    return outputs, np.where(random.random((count, 1)) < 0.6, outputs, 0.0) + random.normal(size=(count, 2)) / 2


def lost_share(outputs, kept):
    outputs, kept = outputs - outputs.mean(0), kept - kept.mean(0)
    lost = [np.linalg.norm(outputs - a * kept, axis=1).mean() for a in np.linspace(0, 1, 101)]
    return min(lost) / np.linalg.norm(outputs, axis=1).mean()


@pytest.mark.parametrize("factor", [0.0, 0.4, 1.0])
@pytest.mark.parametrize("shift", [0.0, 0.7])
def test_the_lost_share_is_enclosed_whatever_the_centre_and_the_factor(factor, shift):
    outputs, kept = outputs_and_kept(40_000)
    units = balanced_units(np.zeros(40_000, dtype=np.int64), range(40_000), 8)
    one = lost_share_sequence(outputs + shift * np.array([1, -1]), kept - shift, factor, units, confidence=0.95)
    longest = np.linalg.norm(outputs, axis=1).max()
    assert one.lower.bounds.most_below < longest * 8 / 7, "some outputs are shortened"
    assert one.lower.above.mean() / one.lower.below.mean() < lost_share(outputs, kept) + 0.01
    assert one.upper.above.mean() / one.upper.below.mean() > lost_share(outputs, kept) - 0.01
    assert one.lower.unbet == one.upper.unbet == unbet_units(units)


def test_longer_outputs_are_shortened_to_the_longest_one_of_the_first_rows():
    outputs, kept = outputs_and_kept(400)
    units = balanced_units(np.arange(400) % 2, range(400), 4)
    one = lost_share_sequence(outputs, kept, 0.5, units, confidence=0.95)
    outputs[-8:], kept[-8:] = 1e6 * outputs[-8:], 1e6 * kept[-8:]
    other = lost_share_sequence(outputs, kept, 0.5, units, confidence=0.95)
    assert other.upper.bounds == one.upper.bounds
    assert other.upper.above[-1] < 4 * one.upper.above[-1]
    assert np.array_equal(other.upper.above[:-1], one.upper.above[:-1])


def test_a_gate_exactly_at_its_threshold_rarely_settles():
    share, settled = lost_share(*outputs_and_kept(200_000, seed=1)), []
    requirement = Requirement(direction="at_most", value=share)
    units = balanced_units(np.zeros(2000, dtype=np.int64), range(2000), 8)
    for seed in range(2, 62):
        outputs, kept = outputs_and_kept(2000, seed=seed)
        outputs, kept = outputs - outputs[:104].mean(0), kept - kept[:104].mean(0)
        one = lost_share_sequence(outputs, kept, 0.5, units, confidence=0.95)
        settled.append(one.settle(requirement).verdict)
    assert settled.count("inconclusive") >= 58


def test_outputs_that_do_not_vary_have_no_sequence():
    units = balanced_units(np.zeros(200, dtype=np.int64), range(200), 8)
    with pytest.raises(ValueError, match="most_below to be positive and finite"):
        lost_share_sequence(np.zeros((200, 2)), np.zeros((200, 2)), 1.0, units, confidence=0.95)
