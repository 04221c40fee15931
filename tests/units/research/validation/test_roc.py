"""Areas, curves and rates against independent references."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score, roc_curve

from attnaudit.research.validation import roc as stats

SCORES = st.lists(st.sampled_from([-math.inf, -2.0, -0.5, 0.0, 0.25, 1.0, 3.0]), min_size=1, max_size=12)


def finite(scores: list[float]) -> list[float]:
    """The same order for scikit-learn, which takes no infinity."""
    return [max(score, -1e9) for score in scores]


@given(good=SCORES, bad=SCORES)
def test_the_area_is_that_of_scikit_learn(good: list[float], bad: list[float]) -> None:
    truth = [1] * len(good) + [0] * len(bad)
    assert stats.area_under_curve(good, bad) == pytest.approx(roc_auc_score(truth, finite(good + bad)))


@given(good=SCORES, bad=SCORES)
def test_the_curve_encloses_the_area(good: list[float], bad: list[float]) -> None:
    points = stats.roc_curve(good, bad)
    x, y = [p.false_alarms for p in points], [p.sensitivity for p in points]
    assert (x[0], y[0], x[-1], y[-1]) == (0.0, 0.0, 1.0, 1.0)
    assert np.trapezoid(y, x) == pytest.approx(stats.area_under_curve(good, bad))


def test_the_curve_passes_through_the_points_of_scikit_learn() -> None:
    good, bad = [0.9, 0.8, 0.35, 0.7], [0.1, 0.4, 0.35, 0.2, 0.85]
    x, y, _ = roc_curve([0] * 4 + [1] * 5, [-s for s in good + bad], drop_intermediate=False)
    ours = {(p.false_alarms, p.sensitivity) for p in stats.roc_curve(good, bad)}
    assert ours == {(float(a), float(b)) for a, b in zip(x, y, strict=True)}


def test_no_area_without_both_truths() -> None:
    assert stats.area([1.0, 2.0], [True, True], ["a", "b"], seed=0) is None
    assert math.isnan(stats.area_under_curve([], [1.0]))


@given(n=st.integers(1, 60), share=st.floats(0, 1))
def test_wilson_is_the_published_formula(n: int, share: float) -> None:
    """The limits p where |hits/n - p| is 1.96 standard errors √(p(1 - p)/n), solved for p (Wilson 1927)."""
    hits = round(n * share)
    z, p = 1.959963984540054, hits / n
    centre = (p + z**2 / (2 * n)) / (1 + z**2 / n)
    half_width = z * math.sqrt(p * (1 - p) / n + z**2 / (4 * n**2)) / (1 + z**2 / n)
    rate = stats.wilson(hits, n)
    assert (rate.low, rate.high) == pytest.approx((centre - half_width, centre + half_width), abs=1e-9)
    assert rate.value == p


def test_wilson_of_nothing_says_nothing() -> None:
    found = stats.wilson(0, 0)
    assert (found.value, found.low, found.high) == (None, 0.0, 1.0)


def test_more_models_of_the_same_kinds_do_not_narrow_the_interval() -> None:
    """Two kinds with twenty times the models: what a third kind would do is as unknown as before."""
    scores, kinds = [3.0, 1.0, 2.0, 0.0], ["a", "b", "c", "d"]
    truth = [True, True, False, False]
    few = stats.area(scores, truth, kinds, seed=0)
    many = stats.area(scores * 20, truth * 20, kinds * 20, seed=0)
    assert few is not None
    assert many is not None
    assert (few.value, few.low, few.high) == (many.value, many.low, many.high) == (0.75, 0.0, 1.0)
    assert (many.faithful, many.faithful_mechanisms, many.unfaithful_mechanisms) == (40, 2, 2)


def test_the_interval_is_that_of_a_plain_two_stage_bootstrap() -> None:
    rng = np.random.default_rng(1)
    kinds = [f"{side}{k}" for side in "gb" for k in range(5) for _ in range(k + 2)]
    truth = [kind[0] == "g" for kind in kinds]
    shift = [(0.8 if good else 0.0) + 0.3 * int(kind[1]) for good, kind in zip(truth, kinds, strict=True)]
    scores = [one + rng.normal() for one in shift]
    of: dict[str, list[float]] = {kind: [s for s, k in zip(scores, kinds, strict=True) if k == kind] for kind in kinds}

    def drawn(side: str) -> list[float]:
        found: list[float] = []
        for k in rng.integers(0, 5, 5):
            found += rng.choice(of[f"{side}{k}"], len(of[f"{side}{k}"])).tolist()
        return found

    areas = [stats.area_under_curve(drawn("g"), drawn("b")) for _ in range(3000)]
    found = stats.area(scores, truth, kinds, seed=3)
    assert found is not None
    assert (found.low, found.high) == pytest.approx(tuple(np.quantile(areas, [0.025, 0.975])), abs=0.03)
    assert found.value == pytest.approx(roc_auc_score(truth, scores))


def test_the_interval_depends_on_the_seed_alone() -> None:
    arguments = ([1.0, 0.2, 0.5, 0.4], [True, True, False, False], ["a", "b", "c", "d"])
    assert stats.area(*arguments, seed=1) == stats.area(*arguments, seed=1)
