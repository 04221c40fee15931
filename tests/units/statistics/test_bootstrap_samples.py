"""Bootstrap samples of many groups, which are drawn in sets."""

from __future__ import annotations

import numpy as np
import pytest

from attnaudit.statistics.bootstrap_samples import resampled
from attnaudit.statistics.groups import Groups
from attnaudit.statistics.intervals import mean_interval

MOST_GROUPS = "attnaudit.statistics.bootstrap_samples.MOST_GROUPS"


@pytest.mark.parametrize("order", ["random", "sorted", "alternating"])
def test_totals_of_joined_groups_have_the_mean_and_the_variance_of_single_groups(
    monkeypatch: pytest.MonkeyPatch, order: str
) -> None:
    sums = np.random.default_rng(0).normal(1, 2, (3000, 1))
    if order != "random":
        sums.sort(axis=0)
    if order == "alternating":
        sums = np.stack([sums[:1500], sums[:1499:-1]], axis=1).reshape(-1, 1)
    monkeypatch.setattr(MOST_GROUPS, 700)
    totals = resampled(lambda totals: totals, sums, np.random.default_rng(1))[:, 0]
    assert totals.shape == (4000,)
    variance = 3000 * sums.var()
    assert totals.mean() == pytest.approx(sums.sum(), abs=4 * np.sqrt(variance / 4000))
    assert totals.var() == pytest.approx(variance, rel=0.15)


def test_few_groups_are_drawn_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    sums = np.random.default_rng(0).normal(size=(50, 2))
    expected = resampled(lambda totals: totals, sums, np.random.default_rng(1))
    monkeypatch.setattr(MOST_GROUPS, 50)
    assert np.array_equal(resampled(lambda totals: totals, sums, np.random.default_rng(1)), expected)


@pytest.mark.parametrize("in_order", [False, True])
def test_the_interval_of_skewed_values_is_nearly_the_same_if_groups_are_joined(
    monkeypatch: pytest.MonkeyPatch, in_order: bool
) -> None:
    values = np.random.default_rng(2).gamma(0.5, size=6000)
    if in_order:
        values.sort()
    ids = [f"{i:05d}" for i in range(6000)]
    groups = Groups.of([f"source {i // 2:05d}" for i in range(6000)], ids, np.ones(6000, dtype=bool))

    def interval() -> tuple[float, float]:
        found = mean_interval(values, groups, confidence=0.95, generator=np.random.default_rng(3))
        assert found is not None
        return found.low, found.high

    low, high = interval()
    monkeypatch.setattr(MOST_GROUPS, 500)
    assert interval() == pytest.approx((low, high), abs=0.05 * (high - low))
