"""The smallest ratio of a class equals its definition, and its interval those of the classes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnaudit.statistics import bootstrap_samples, smallest_ratio
from attnaudit.statistics.balanced_rows import WeightedRows
from attnaudit.statistics.groups import Groups
from attnaudit.statistics.interval_estimate import IntervalEstimate
from attnaudit.statistics.smallest_ratio import ClassRatio, smallest_ratio_interval
from attnaudit.statistics.total_effect_index import TotalEffectIndex
from tests.strategies import seeds

few = settings(max_examples=6)


def groups_of(n: int, sources: list[str] | None = None) -> Groups:
    ids = [f"{i:05d}" for i in range(n)]
    return Groups.of(sources or ids, ids, np.ones(n, dtype=bool))


def sample(seed: int, *, sizes: tuple[int, ...] = (40, 60, 30)) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return changes, outputs and classes. The higher its number, the larger are the changes of a class."""
    random = np.random.default_rng(seed)
    classes = random.permutation(np.repeat(np.arange(len(sizes)), sizes))
    outputs = random.normal(size=(len(classes), 3)) + 2 * np.eye(3)[classes % 3]
    changes = (1.0 + 2 * classes) * random.gamma(2, 1, len(classes))
    return changes, outputs, classes


def index_of(
    changes: np.ndarray, outputs: np.ndarray, classes: np.ndarray, sources: list[str] | None = None
) -> TotalEffectIndex:
    index = TotalEffectIndex.of(changes, outputs, WeightedRows.balanced(classes, groups_of(len(changes), sources)))
    assert index is not None
    return index


def interval_of(index: TotalEffectIndex, seed: int = 0) -> IntervalEstimate:
    estimate = index.interval_of_smallest(confidence=0.95, generator=np.random.default_rng(seed))
    assert estimate is not None
    return estimate


def by_definition(changes: np.ndarray, outputs: np.ndarray, classes: np.ndarray) -> list[float]:
    """Return the index of each class, with loops over the rows."""
    present = sorted(set(classes.tolist()))
    share = {one: 1 / len(present) / sum(c == one for c in classes) for one in present}
    mean = sum(share[c] * row for c, row in zip(classes.tolist(), outputs, strict=True))
    variance = sum(
        share[c] * sum((a - b) ** 2 for a, b in zip(row, mean, strict=True))
        for c, row in zip(classes.tolist(), outputs, strict=True)
    )
    return [
        float(np.mean([change for change, c in zip(changes, classes, strict=True) if c == one]) / (2 * variance))
        for one in present
    ]


@pytest.mark.parametrize("seed", range(3))
def test_the_smallest_index_follows_its_definition(seed: int) -> None:
    changes, outputs, classes = sample(seed)
    index = index_of(changes, outputs, classes)
    assert index.of_classes == pytest.approx(by_definition(changes, outputs, classes))
    assert index.smallest == min(index.of_classes)
    assert index.value == pytest.approx(np.mean(index.of_classes))


@given(seed=seeds, copies=st.lists(st.integers(1, 5), min_size=3, max_size=3), order=st.permutations(range(3)))
def test_neither_the_names_nor_the_shares_of_the_classes_matter(seed: int, copies: list[int], order: list[int]) -> None:
    changes, outputs, classes = sample(seed, sizes=(12, 15, 10))
    rows = np.repeat(np.arange(len(classes)), np.array(copies)[classes])
    sources = [f"{row:05d}" for row in rows]
    first = index_of(changes, outputs, classes)
    again = index_of(changes[rows], outputs[rows], np.array(order)[classes][rows], sources)
    assert again.smallest == pytest.approx(first.smallest, rel=1e-9)


@few
@given(seed=seeds, order=st.permutations(range(3)))
def test_the_interval_does_not_depend_on_the_names_of_the_classes(seed: int, order: list[int]) -> None:
    changes, outputs, classes = sample(seed, sizes=(12, 15, 11))
    first, again = (interval_of(index_of(changes, outputs, one)) for one in (classes, np.array(order)[classes]))
    assert (again.low, again.high, again.error) == pytest.approx((first.low, first.high, first.error), rel=1e-9)


@few
@given(seed=seeds, copies=st.integers(2, 3))
def test_rows_that_repeat_their_source_do_not_narrow_the_interval(seed: int, copies: int) -> None:
    changes, outputs, classes = sample(seed)
    single = interval_of(index_of(changes, outputs, classes))
    sources = [f"{i % len(classes):05d}" for i in range(copies * len(classes))]
    repeated = interval_of(
        index_of(np.tile(changes, copies), np.tile(outputs, (copies, 1)), np.tile(classes, copies), sources)
    )
    assert (repeated.low, repeated.high) == pytest.approx((single.low, single.high), rel=1e-9)


def each_class(index: TotalEffectIndex) -> list[ClassRatio]:
    below = index.rows.around_the_mean(index.deviations)
    return [
        ClassRatio(
            above=index.effects,
            below=below,
            rows=rows,
            confidence=0.95,
            generator=np.random.default_rng(0),
            bounds=(0.0, np.inf),
            extremes=(0.0, 10.0),
        )
        for rows in index.rows.of_each_class()
    ]


@pytest.mark.parametrize("level", [0.8, 0.95, 0.99])
def test_the_ends_are_the_smallest_limits_of_the_classes(level: float) -> None:
    index = index_of(*sample(1))
    estimates = [one.estimate for one in each_class(index)]
    found = interval_of(index).at(level)
    assert found.low == min(one.at(level).low for one in estimates if one)
    assert found.high == min(one.at(1 - (1 - level) / 3).high for one in estimates if one)
    assert found.low < index.smallest < found.high
    assert found.method == "studentised bootstrap over sources, smallest of 3 classes"


def test_a_class_whose_index_varies_much_determines_the_lower_end() -> None:
    changes, outputs, classes = sample(2)
    changes = np.where(classes == 0, 1.0 + 1e-3 * changes, changes)
    changes[classes == 2] = np.where(np.arange((classes == 2).sum()) < 4, 12.0, 0.0)
    index = index_of(changes, outputs, classes)
    estimate = interval_of(index)
    least, varied = (one.estimate for one in np.array(each_class(index))[[0, 2]])
    assert index.smallest == index.of_classes[0] < index.of_classes[2]
    assert estimate.low == varied.low < least.low
    assert estimate.error == varied.error


@pytest.mark.parametrize("seed", range(3))
def test_classes_that_cannot_have_the_smallest_limit_draw_no_samples(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes, outputs, classes = sample(seed, sizes=(15,) * 12)
    index = index_of(np.where(classes > 2, 50.0 + 0.1 * changes, changes), outputs, classes)
    ratios = each_class(index)
    for one in ratios:
        assert one.estimate is not None
        assert one._error == pytest.approx(one.estimate.error)
        assert one.least(0.95) <= one.estimate.low
    calls = []
    drawn = smallest_ratio.ratio_interval
    monkeypatch.setattr(smallest_ratio, "ratio_interval", lambda *a, **k: calls.append(1) or drawn(*a, **k))
    estimate = interval_of(index)
    assert estimate.low == min(one.estimate.low for one in ratios if one.estimate)
    assert 1 <= len(calls) <= 3


def test_a_class_without_any_change_has_an_interval_that_allows_for_unseen_rows() -> None:
    changes, outputs, classes = sample(0)
    estimate = interval_of(index_of(np.where(classes == 1, 0.0, changes), outputs, classes))
    assert estimate.low == 0.0 < estimate.high


def test_one_class_has_the_interval_of_its_mean_and_a_class_of_one_source_has_none() -> None:
    changes, outputs, classes = sample(0)
    single = index_of(changes, outputs, np.zeros_like(classes))
    mean = single.interval(confidence=0.95, generator=np.random.default_rng(0))
    found = interval_of(single)
    assert mean is not None
    assert (found.low, found.high) == pytest.approx((mean.low, mean.high))
    sources = ["same" if one == 2 else f"{i:05d}" for i, one in enumerate(classes.tolist())]
    index = index_of(changes, outputs, classes, sources)
    assert index.interval_of_smallest(confidence=0.95, generator=np.random.default_rng(0)) is None


def test_there_is_no_interval_if_the_denominators_are_too_uncertain() -> None:
    changes, _, classes = sample(0)
    rows = WeightedRows.balanced(classes, groups_of(len(classes)))
    below = np.where(np.arange(len(classes)) == 0, 1.0, 0.0)
    assert (
        smallest_ratio_interval(
            changes,
            below,
            rows,
            confidence=0.95,
            generator=np.random.default_rng(0),
            bounds=(0.0, np.inf),
            extremes=(0.0, 1.0),
        )
        is None
    )


def test_the_interval_contains_the_true_value_at_both_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """The indices of the two classes are equal, so their smaller estimate is too low on average."""
    monkeypatch.setattr(bootstrap_samples, "RESAMPLES", 400)  # saves time
    random = np.random.default_rng(0)
    above = below = 0
    for _ in range(200):
        classes = np.repeat([0, 1], [40, 40])
        outputs = np.where(classes[:, None] == 0, [[1.0, 0.0]], [[0.0, 1.0]])
        index = index_of(random.gamma(2, 0.25, 80), outputs, classes)  # the variance of the outputs is 1/2
        estimate = index.interval_of_smallest(confidence=0.9, generator=random)
        assert estimate is not None
        above += estimate.low > 0.5
        below += estimate.high < 0.5
    assert above <= 0.08 * 200
    assert below <= 0.08 * 200


@pytest.mark.parametrize("wrong", [np.nan, np.inf])
@pytest.mark.parametrize("of_changes", [True, False], ids=["change", "output"])
def test_numbers_that_are_not_finite_give_no_index(wrong: float, of_changes: bool) -> None:
    changes, outputs, classes = sample(0)
    (changes if of_changes else outputs)[3] = wrong
    rows = WeightedRows.balanced(classes, groups_of(len(changes)))
    assert TotalEffectIndex.of(changes, outputs, rows) is None
