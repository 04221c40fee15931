from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from attnaudit.checks.intervals import (
    Groups,
    bca_interval,
    mean_interval,
    median_interval,
    proportion_interval,
    subsampling_interval,
)
from attnaudit.instances import Instance


def instances(n, sources=None):
    return [Instance(id=f"{i:05d}", text="", source=None if sources is None else f"s{sources[i]}") for i in range(n)]


def everything(n, sources=None):
    return Groups.of(instances(n, sources), np.ones(n, dtype=bool))


def generator(seed=0):
    return np.random.default_rng(seed)


def test_mean_of_a_normal_sample_has_student_t_interval():
    values = generator(1).normal(0.3, 0.2, 400)
    found = mean_interval(values, everything(400), confidence=0.95, generator=generator())
    low, high = stats.t.interval(0.95, 399, values.mean(), stats.sem(values))
    assert (found.low, found.high) == pytest.approx((low, high), abs=0.1 * (high - low))


def test_few_sources_have_exactly_the_student_t_interval_of_their_means():
    sources = np.repeat(np.arange(6), 10)
    values = generator(2).normal(0, 1, 6)[sources] + generator(3).normal(0, 0.1, 60)
    found = mean_interval(values, everything(60, sources), confidence=0.9, generator=generator())
    means = np.array([values[sources == s].mean() for s in range(6)])
    low, high = stats.t.interval(0.9, 5, means.mean(), stats.sem(means))
    assert (found.low, found.high) == pytest.approx((low, high))
    assert found.method == "Student's t over sources"


def test_coverage_of_a_skewed_mean_is_no_worse_than_that_of_the_t_interval():
    random, inside, inside_t = generator(4), 0, 0
    for trial in range(150):
        values = random.lognormal(0, 1, 40)
        true = np.exp(0.5)
        found = mean_interval(values, everything(40), confidence=0.95, generator=generator(trial))
        inside += found.low <= true <= found.high
        low, high = stats.t.interval(0.95, 39, values.mean(), stats.sem(values))
        inside_t += low <= true <= high
    assert inside >= inside_t
    assert inside / 150 >= 0.88


def test_rows_of_one_source_widen_the_interval():
    sources = np.repeat(np.arange(30), 10)
    values = generator(5).normal(0, 1, 30)[sources] + generator(6).normal(0, 0.1, 300)
    together = mean_interval(values, everything(300, sources), confidence=0.95, generator=generator())
    apart = mean_interval(values, everything(300), confidence=0.95, generator=generator())
    assert together.high - together.low > 2 * (apart.high - apart.low)


def test_duplicated_rows_that_share_a_source_change_nothing():
    values = generator(7).normal(0, 1, 50)
    once = mean_interval(values, everything(50), confidence=0.95, generator=generator())
    sources = np.repeat(np.arange(50), 3)
    names = np.array([f"{i:05d}" for i in range(50)])
    rows = [Instance(id=f"{i}", text="", source=names[s]) for i, s in enumerate(sources)]
    tripled = Groups.of(rows, np.ones(150, dtype=bool))
    thrice = mean_interval(np.repeat(values, 3), tripled, confidence=0.95, generator=generator())
    assert (once.low, once.high) == pytest.approx((thrice.low, thrice.high))


def test_bca_agrees_with_scipy():
    values = generator(8).gamma(1.0, 1.0, 80)
    pair = np.column_stack([values, np.ones(80)])

    def ratio(totals):
        return totals[:, 0] / totals[:, 1]

    found = bca_interval(ratio, pair, confidence=0.95, generator=generator())
    expected = stats.bootstrap((values,), np.mean, n_resamples=9999, method="BCa", rng=generator(9)).confidence_interval
    width = expected.high - expected.low
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high), abs=0.06 * width)


def test_median_agrees_with_scipy_percentile_bootstrap():
    values = generator(10).gamma(2.0, 1.0, 101)
    found = median_interval(values, everything(101), confidence=0.9, generator=generator())
    expected = stats.bootstrap(
        (values,), np.median, confidence_level=0.9, method="percentile", rng=generator(11)
    ).confidence_interval
    width = expected.high - expected.low
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high), abs=0.1 * width)


def test_proportion_is_wilson_with_t_quantile():
    values = (generator(12).random(4000) < 0.3).astype(float)
    found = proportion_interval(values, everything(4000), confidence=0.95)
    expected = stats.binomtest(int(values.sum()), 4000).proportion_ci(0.95, method="wilson")
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high), abs=2e-4)


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_proportion_that_is_all_or_none_keeps_a_width(share):
    found = proportion_interval(np.full(50, share), everything(50), confidence=0.95)
    assert 0.05 < found.high - found.low < 0.1
    assert found.low <= share <= found.high


def test_equal_values_have_a_point_interval():
    found = mean_interval(np.full(40, 0.1), everything(40), confidence=0.95, generator=generator())
    assert (found.low, found.high, found.method) == (0.1, 0.1, "all values are equal")


def test_one_value_unlike_all_others_gives_a_finite_interval():
    values = np.zeros(50)
    values[3] = 1.0
    found = mean_interval(values, everything(50), confidence=0.95, generator=generator(), bounds=(0.0, 1.0))
    assert 0.0 == found.low < 0.02 < found.high < 1.0


def test_one_source_has_no_interval():
    sources = np.zeros(50, dtype=int)
    values = generator().random(50)
    groups = everything(50, sources)
    assert mean_interval(values, groups, confidence=0.95, generator=generator()) is None
    assert median_interval(values, groups, confidence=0.95, generator=generator()) is None
    assert proportion_interval(values.round(), groups, confidence=0.95) is None


def test_subsampling_of_a_mean_is_near_the_t_interval():
    values = generator(13).normal(0, 1, 300)
    found = subsampling_interval(
        lambda rows: float(values[rows].mean()),
        everything(300),
        observed=float(values.mean()),
        confidence=0.95,
        generator=generator(),
    )
    low, high = stats.t.interval(0.95, 299, values.mean(), stats.sem(values))
    assert (found.low, found.high) == pytest.approx((low, high), abs=0.15 * (high - low))


@settings(max_examples=25, deadline=None)
@given(
    values=st.lists(st.floats(-1, 1, width=32), min_size=2, max_size=60),
    seed=st.integers(0, 5),
    sources=st.integers(1, 20),
    data=st.data(),
)
def test_interval_is_deterministic_finite_within_bounds_and_free_of_order(values, seed, sources, data):
    numbers = np.array(values)
    rows = instances(len(values), [i % sources for i in range(len(values))])
    order = np.array(data.draw(st.permutations(range(len(values)))))
    chosen = np.ones(len(values), dtype=bool)
    first = mean_interval(
        numbers, Groups.of(rows, chosen), confidence=0.95, generator=generator(seed), bounds=(-1.0, 1.0)
    )
    again = mean_interval(
        numbers[order],
        Groups.of([rows[i] for i in order], chosen),
        confidence=0.95,
        generator=generator(seed),
        bounds=(-1.0, 1.0),
    )
    assert (first is None) == (again is None)
    if first is not None and again is not None:
        assert first.at(0.95) == again.at(0.95)
        assert first.at(0.99) == again.at(0.99)
        assert -1 <= first.low <= first.high <= 1
