"""Values that are 0 up to rounding have the interval of values that are 0, so rounding does not decide a verdict."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnaudit import checks
from attnaudit.statistics.groups import Groups
from attnaudit.statistics.interval_estimate import equal_up_to
from attnaudit.statistics.intervals import mean_interval, ratio_interval
from attnaudit.statistics.paired_difference import paired_difference
from tests.units.checks.synthetic_measurements import measured

NOISE = 1e-7


def grouped(n, per_source=1):
    return Groups.of([f"s{i // per_source:04d}" for i in range(n)], [f"{i:04d}" for i in range(n)], np.ones(n, bool))


def ends(estimate):
    return None if estimate is None else (estimate.at(0.95).low, estimate.at(0.95).high)


@given(
    seed=st.integers(0, 1000),
    n=st.integers(10, 60),
    per_source=st.integers(1, 3),
    bounds=st.sampled_from([(-1.0, 1.0), (-2.0, 1.0), (-1e9, 1e9)]),
)
def test_a_mean_of_rounding_errors_has_the_interval_of_zeros(seed, n, per_source, bounds):
    noise = NOISE * np.random.default_rng(seed).uniform(-1, 1, n)
    groups = grouped(n, per_source)
    of_zeros, of_noise = (
        ends(mean_interval(one, groups, confidence=0.95, generator=np.random.default_rng(0), bounds=bounds))
        for one in (np.zeros(n), noise)
    )
    assert of_noise == pytest.approx(of_zeros, rel=1e-6, abs=1e-5)


@given(distance=st.floats(0.01, 1.0), seed=st.integers(0, 1000), n=st.integers(40, 60))
def test_measured_values_that_hardly_differ_have_a_narrow_interval(distance, seed, n):
    # Cosines of nearly 1, for example, are measured numbers: their small differences say how much they vary.
    values = distance - NOISE * np.random.default_rng(seed).uniform(0, 1, n)
    found = mean_interval(values, grouped(n), confidence=0.95, generator=np.random.default_rng(0), bounds=(-1.0, 1.0))
    assert found.method == "studentised bootstrap over sources"
    low, high = ends(found)
    assert distance - NOISE <= low < high <= distance


def test_without_bounds_equal_values_have_no_interval():
    values = np.full(40, 0.3)
    assert mean_interval(values, grouped(40), confidence=0.95, generator=np.random.default_rng(0)) is None


@given(seed=st.integers(0, 1000))
def test_a_ratio_of_rounding_errors_has_the_interval_of_zeros(seed):
    random = np.random.default_rng(seed)
    below, noise = random.uniform(0.5, 1.5, 50), NOISE * random.uniform(-1, 1, 50)
    exact, noisy = (
        ends(
            ratio_interval(
                one * below,
                below,
                grouped(50),
                confidence=0.95,
                generator=np.random.default_rng(0),
                extremes=(-1.0, 1.0),
            )
        )
        for one in (0.0, noise)
    )
    assert noisy == pytest.approx(exact, abs=1e-5)


@given(seed=st.integers(0, 1000), shift=st.floats(-0.3, 0.3))
def test_a_difference_between_models_has_the_interval_of_equal_differences(seed, shift):
    random = np.random.default_rng(seed)
    baseline, noise = random.uniform(0.3, 0.6, 60), NOISE * random.uniform(-1, 1, 60)
    exact, noisy = (
        ends(
            paired_difference(
                baseline + shift + one,
                baseline,
                grouped(60, 2),
                confidence=0.95,
                generator=np.random.default_rng(0),
                bounds=(0.0, 1.0),
            ).interval
        )
        for one in (0.0, noise)
    )
    assert noisy == pytest.approx(exact, abs=1e-5)


@pytest.mark.parametrize("check", [checks.PermutationFragility(at_least=0.05), checks.UniformFragility(at_least=0.05)])
def test_attention_without_effect_has_the_same_verdict_with_and_without_rounding(check):
    verdicts = []
    for noise in (0.0, 2e-8):
        m = measured(n=60)
        for name in ("permutation.tvd", "uniform.tvd"):
            m.scalars[name] = noise * np.random.default_rng(0).random(60)
        verdicts.append(check.judge(m).verdict)
    assert verdicts == ["inconclusive", "inconclusive"]


def test_small_values_in_a_huge_or_infinite_range_do_not_count_as_equal():
    values = np.random.default_rng(0).uniform(4.0, 5.0, 60)
    for bounds in ((0.0, 1e9), (-np.inf, np.inf)):
        found = mean_interval(values, grouped(60), confidence=0.95, generator=np.random.default_rng(0), bounds=bounds)
        assert found.method == "studentised bootstrap over sources"


def test_the_tolerance_is_a_share_of_the_range_or_of_the_mean():
    assert equal_up_to(0.0, (0.0, 1.0)) == equal_up_to(0.5, (-1.0, 1.0)) == 2e-6
    assert equal_up_to(0.0, (0.0, 0.01)) == 2e-8
    assert equal_up_to(5.0, (0.0, 1e9)) == equal_up_to(-5.0, (-np.inf, np.inf)) == pytest.approx(1e-5)
    assert equal_up_to(0.0, (-np.inf, np.inf)) == 0.0
