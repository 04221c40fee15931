"""The total-effect index and Cohen's κ equal their definitions, and do not depend on what they should not."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import cohen_kappa_score

from attnaudit.statistics.balanced_rows import WeightedRows
from attnaudit.statistics.cohens_kappa import CohensKappa
from attnaudit.statistics.groups import Groups
from attnaudit.statistics.total_effect_index import TotalEffectIndex
from tests.strategies import seeds


def groups_of(n: int, *, sources: list[str] | None = None) -> Groups:
    ids = [f"{i:05d}" for i in range(n)]
    return Groups.of(sources or ids, ids, np.ones(n, dtype=bool))


def rows_of(n: int, *, sources: list[str] | None = None) -> WeightedRows:
    return WeightedRows.equal(n, groups_of(n, sources=sources))


def index_of(changes: np.ndarray, outputs: np.ndarray, classes: np.ndarray | None = None) -> float:
    groups = groups_of(len(changes))
    rows = WeightedRows.equal(len(changes), groups) if classes is None else WeightedRows.balanced(classes, groups)
    index = TotalEffectIndex.of(changes, outputs, rows)
    assert index is not None
    return index.value


def sample(seed: int, n: int = 40, classes: int = 3) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return changes, and outputs before and after."""
    random = np.random.default_rng(seed)
    outputs = random.normal(size=(n, classes)) * random.gamma(1, 1, classes)
    after = outputs + random.normal(size=(n, 1)) * random.normal(size=(n, classes))
    return ((outputs - after) ** 2).sum(1), outputs, after


def test_the_index_is_a_plain_sum_over_instances() -> None:
    _, outputs, after = sample(0)
    above = sum(sum((a - b) ** 2 for a, b in zip(x, y, strict=True)) for x, y in zip(outputs, after, strict=True))
    below = 2 * len(outputs) * sum(np.var(outputs[:, c]) for c in range(outputs.shape[1]))
    assert index_of(((outputs - after) ** 2).sum(1), outputs) == pytest.approx(above / below)


def test_another_text_has_the_index_1() -> None:
    outputs = np.random.default_rng(0).normal(size=(400, 2))
    others = outputs[:, None, :] - outputs[None]
    assert index_of((others**2).sum(-1).mean(1), outputs) == pytest.approx(1.0)


@given(
    seed=seeds,
    factor=st.floats(0.1, 10),
    bias=st.lists(st.floats(-20, 20), min_size=3, max_size=3),
    order=st.permutations(range(3)),
)
def test_scaling_biases_and_the_names_of_classes_do_not_matter(
    seed: int, factor: float, bias: list[float], order: list[int]
) -> None:
    changes, outputs, after = sample(seed)
    expected = index_of(changes, outputs)
    moved, moved_after = ((factor * x + np.array(bias))[:, order] for x in (outputs, after))
    assert index_of(((moved - moved_after) ** 2).sum(1), moved) == pytest.approx(expected, rel=1e-9)


@given(seed=seeds, copies=st.integers(2, 4))
def test_duplicated_and_reordered_rows_do_not_matter(seed: int, copies: int) -> None:
    changes, outputs, _ = sample(seed)
    order = np.random.default_rng(seed).permutation(copies * len(changes))
    again = index_of(np.tile(changes, copies)[order], np.tile(outputs, (copies, 1))[order])
    assert again == pytest.approx(index_of(changes, outputs), rel=1e-9)


@given(seed=seeds, copies=st.integers(2, 4))
def test_rows_that_repeat_their_source_do_not_narrow_the_interval(seed: int, copies: int) -> None:
    changes, outputs, _ = sample(seed, n=300)
    single, repeated = rows_of(300), rows_of(300 * copies, sources=[f"{i % 300:05d}" for i in range(300 * copies)])
    widths = []
    for times, rows in ((1, single), (copies, repeated)):
        index = TotalEffectIndex.of(np.tile(changes, times), np.tile(outputs, (times, 1)), rows)
        assert index is not None
        estimate = index.interval(confidence=0.95, generator=np.random.default_rng(0))
        assert estimate is not None
        widths.append(estimate.high - estimate.low)
    assert widths[1] == pytest.approx(widths[0], rel=1e-9)


@given(rare=st.integers(1, 50), size=st.floats(0.5, 20))
def test_the_share_of_a_class_hardly_matters_if_rearranged_weights_lose_the_cue(rare: int, size: float) -> None:
    """A cue moves the output of a share q of the texts by d, and rearranged weights miss it.

    The mean squared change is q d², and the variance q (1 - q) d², so the index is 1 / (2 (1 - q)): between one half
    and one, however rare the cue is. A mean change of the output would be proportional to q.
    """
    share = rare / 100
    cue = np.arange(100) < rare
    outputs = np.where(cue[:, None], [[-size / 2, size / 2]], 0.0)
    changes = np.where(cue, size**2 / 2, 0.0)
    assert index_of(changes, outputs) == pytest.approx(1 / (2 * (1 - share)))


def test_with_balanced_classes_the_index_is_a_plain_sum_with_weights() -> None:
    changes, outputs, _ = sample(0)
    classes = np.array([0] * 4 + [2] * 36)
    weights = np.where(classes == 0, 1 / 4, 1 / 36) / 2
    mean = weights @ outputs
    expected = weights @ changes / (2 * (weights @ ((outputs - mean) ** 2).sum(1)))
    assert index_of(changes, outputs, classes) == pytest.approx(expected)


@given(seed=seeds, copies=st.lists(st.integers(1, 9), min_size=3, max_size=3))
def test_with_balanced_classes_the_shares_of_the_classes_do_not_matter(seed: int, copies: list[int]) -> None:
    changes, outputs, _ = sample(seed)
    classes = np.random.default_rng(seed).permutation(np.arange(40) % 3)
    rows = np.repeat(np.arange(40), np.array(copies)[classes])
    again = index_of(changes[rows], outputs[rows], classes[rows])
    assert again == pytest.approx(index_of(changes, outputs, classes), rel=1e-9)


def test_the_index_of_outputs_that_do_not_vary_is_undefined() -> None:
    changes = np.full(5, 0.1)
    assert TotalEffectIndex.of(changes, np.full((5, 2), 7.0), rows_of(5)) is None
    assert TotalEffectIndex.of(changes, np.full((5, 2), 7.0) + 1e-8 * np.arange(10).reshape(5, 2), rows_of(5)) is None
    assert TotalEffectIndex.of(np.zeros(0), np.zeros((0, 2)), rows_of(0)) is None
    assert TotalEffectIndex.of(changes, 7 + 1e-3 * np.arange(10.0).reshape(5, 2), rows_of(5)) is not None


def test_without_any_change_the_interval_allows_for_unseen_instances() -> None:
    _, outputs, _ = sample(0, n=50)
    noise = 1e-18 * np.random.default_rng(0).random(50)
    for largest in (np.inf, 2.0):
        widths = []
        for n in (20, 50):
            rows = rows_of(n)
            index = TotalEffectIndex.of(noise[:n], outputs[:n], rows)
            assert index is not None
            estimate = index.interval(confidence=0.95, generator=np.random.default_rng(0), largest_change=largest)
            assert estimate is not None
            assert estimate.low == 0 < estimate.high
            widths.append(estimate.high)
        assert widths[1] < widths[0]


@given(seed=seeds, classes=st.integers(2, 4))
def test_kappa_is_scikit_learns_where_every_instance_has_one_changed_decision(seed: int, classes: int) -> None:
    random = np.random.default_rng(seed)
    decisions, changed = random.integers(0, classes, (2, 50))
    kappa = CohensKappa.of(decisions, np.eye(classes)[changed]).value(groups_of(50))
    assert kappa == pytest.approx(cohen_kappa_score(decisions, changed), abs=1e-12)


def test_kappa_of_random_changes_is_that_of_all_their_outcomes() -> None:
    random = np.random.default_rng(0)
    decisions, drawn = random.integers(0, 3, 30), random.integers(0, 3, (30, 4))
    shares = np.stack([(drawn == c).mean(1) for c in range(3)], axis=1)
    expected = cohen_kappa_score(np.repeat(decisions, 4), drawn.ravel())
    assert CohensKappa.of(decisions, shares).value(groups_of(30)) == pytest.approx(expected, abs=1e-12)


def test_kappa_is_undefined_if_all_decisions_are_equal() -> None:
    kappa = CohensKappa.of(np.zeros(5, dtype=np.int64), np.tile([1.0, 0.0], (5, 1)))
    assert kappa.value(groups_of(5)) is None
    assert kappa.interval(groups_of(5), confidence=0.95, generator=np.random.default_rng(0)) is None


@pytest.mark.slow
def test_the_error_of_kappa_is_its_spread_over_samples() -> None:
    random = np.random.default_rng(0)
    values, errors = [], []
    for _ in range(150):
        decisions = (random.random(300) < 0.3).astype(np.int64)
        changed = np.where(random.random(300) < 0.15, 1 - decisions, decisions)
        kappa = CohensKappa.of(decisions, np.eye(2)[changed])
        estimate = kappa.interval(groups_of(300), confidence=0.95, generator=random)
        assert estimate is not None
        values.append(kappa.value(groups_of(300)))
        errors.append(estimate.error)
    assert np.mean(errors) == pytest.approx(np.std(values), rel=0.15)


def test_the_interval_of_kappa_contains_the_value_and_has_a_width_even_if_no_decision_changes() -> None:
    decisions = np.arange(200) % 2
    kappa = CohensKappa.of(decisions, np.eye(2)[decisions])
    estimate = kappa.interval(groups_of(200), confidence=0.95, generator=np.random.default_rng(0))
    assert kappa.value(groups_of(200)) == 1.0
    assert estimate is not None
    assert 0.9 < estimate.low < estimate.high == 1.0


def test_statistics_do_not_depend_on_how_many_rows_are_in_memory_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(3)
    decisions, shares = random.integers(0, 3, 60), random.dirichlet(np.ones(3), 60)
    outputs, changes = random.normal(size=(60, 3)), random.random(60)

    def numbers() -> list[float]:
        groups = Groups.of([f"source {i // 4}" for i in range(60)], [f"{i:02}" for i in range(60)], changes > 0.2)
        kappa = CohensKappa.of(decisions, shares)
        estimate = kappa.interval(groups, confidence=0.95, generator=np.random.default_rng(0))
        value = kappa.value(groups)
        index = TotalEffectIndex.of(changes, outputs, WeightedRows.balanced(decisions, groups))
        assert estimate is not None
        assert value is not None
        assert index is not None
        effect = index.interval(confidence=0.95, generator=np.random.default_rng(0))
        assert effect is not None
        disagreement = float(kappa.disagreement(groups.rows).mean())
        return [value, estimate.low, estimate.high, disagreement, index.value, effect.low, effect.high]

    at_once = numbers()
    for name in ("cohens_kappa.ROWS_AT_ONCE", "balanced_rows.ROWS_AT_ONCE", "groups.GROUPS_AT_ONCE"):
        monkeypatch.setattr(f"attnaudit.statistics.{name}", 7)
    assert numbers() == pytest.approx(at_once, rel=1e-12)
    assert kappa_by_hand(decisions, shares, changes > 0.2) == pytest.approx(at_once[0], rel=1e-12)


def kappa_by_hand(decisions: np.ndarray, shares: np.ndarray, chosen: np.ndarray) -> float:  # type: ignore[type-arg]
    """Compute κ from the definition."""
    own, changed = np.eye(3)[decisions[chosen]], shares[chosen]
    observed, chance = (own * changed).sum() / len(own), float(own.mean(0) @ changed.mean(0))
    return float((observed - chance) / (1 - chance))
