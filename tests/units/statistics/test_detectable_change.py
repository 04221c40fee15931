"""The smallest change that a gate detects in 80% of samples."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from attnaudit import checks
from attnaudit.records import Interval, Requirement
from attnaudit.statistics import bootstrap_samples
from attnaudit.statistics.detectable_change import detectable_change, relative_variance
from attnaudit.statistics.interval_estimate import IntervalEstimate
from attnaudit.statistics.intervals import mean_interval, proportion_interval
from attnaudit.statistics.shares import ShareSample, wilson
from attnaudit.statistics.verdict import decide, fail_confidence
from benchmarks import coverage_samples, power
from tests.strategies import directions
from tests.units.checks.synthetic_measurements import measured

Z, Z_POWER = stats.norm.ppf(0.975), stats.norm.ppf(0.8)


def normal(value, error, **changes):
    def interval_at(level):
        reach = stats.norm.ppf((1 + level) / 2) * error
        return Interval(low=value - reach, high=value + reach, confidence=level, method="normal")

    return IntervalEstimate(error=error, confidence=0.95, interval_at=interval_at, **changes)


def change(value=0.5, error=0.1, threshold=0.5, direction="at_least", fail=0.95, estimate=None, **options):
    return detectable_change(
        value=value,
        estimate=estimate or normal(value, error),
        requirement=Requirement(direction=direction, value=threshold),
        confidence=0.95,
        fail_confidence=fail,
        **options,
    )


def test_for_a_normal_value_it_is_that_of_a_power_calculation():
    found = change(fail=0.995)
    assert found.to_pass == pytest.approx((Z + Z_POWER) * 0.1)
    assert found.to_fail == pytest.approx((stats.norm.ppf(0.9975) + Z_POWER) * 0.1)
    assert stats.norm.cdf(found.to_pass / 0.1 - Z) == pytest.approx(found.power) == 0.8
    assert found.warning == ""


@given(st.floats(-1, 1), st.floats(-1, 1), st.floats(1e-3, 1), directions, st.floats(-5, 5))
def test_it_does_not_depend_on_the_sign_of_the_value(value, threshold, error, direction, slope):
    ends = (-2.0, 2.0)
    found = change(value, error, threshold, direction, bounds=ends, estimate=normal(value, error, slope=slope))
    other = "at_most" if direction == "at_least" else "at_least"
    mirrored = change(-value, error, -threshold, other, bounds=ends, estimate=normal(-value, error, slope=-slope))
    for one, another in ((found.to_pass, mirrored.to_pass), (found.to_fail, mirrored.to_fail)):
        assert one == pytest.approx(another) if one is not None else another is None


def test_the_change_of_a_share_is_that_of_a_binomial_number_of_rows_and_wilsons_interval():
    share = ShareSample(rows=400.0, freedom=1e9)
    found = change(0.98, threshold=0.6, estimate=normal(0.98, 0.007, share=share), bounds=(0.0, 1.0))
    passing = [k for k in range(401) if wilson(k / 400, 400, Z)[0] >= 0.6]
    failing = [k for k in range(401) if wilson(k / 400, 400, Z)[1] <= 0.6]
    assert stats.binom.sf(min(passing) - 1, 400, 0.6 + found.to_pass) == pytest.approx(0.8)
    assert stats.binom.cdf(max(failing), 400, 0.6 - found.to_fail) == pytest.approx(0.8)


def test_an_effective_number_of_rows_lies_between_whole_numbers():
    chances = [ShareSample(rows=rows, freedom=1e9).chance(0.75, 0.8) for rows in (40.0, 41.5, 44.0)]
    assert chances[0] == pytest.approx(stats.binom.sf(29, 40, 0.8))
    assert chances[1] < chances[0] < chances[2]  # 32 of 41.5 rows are a larger share than 30 of 40
    assert [ShareSample(rows=40.5, freedom=1.0).chance(least, 0.5) for least in (0.0, 1.1)] == [1.0, 0.0]


def bootstrap(values):
    groups, _ = coverage_samples.independent(len(values))
    return mean_interval(values, groups, confidence=0.95, generator=np.random.default_rng(0), bounds=(-1.0, 1.0))


@pytest.mark.parametrize("above", [True, False])
def test_the_reach_of_a_bootstrap_of_normal_values_is_that_of_an_estimated_normal_error(above):
    values = 0.2 * stats.norm.ppf((np.arange(400) + 0.5) / 400)
    estimate = bootstrap(values)
    sources = (values**2).sum() ** 2 / (values**4).sum()
    assert sources == pytest.approx(400 / 3, rel=0.05)
    upper = stats.chi2.ppf(0.8, 2 * (sources + 1)) / 2  # the limit of Garwood (1936), in its usual form
    normal_reach = (Z + Z_POWER) * estimate.error
    found = estimate.limits.reach(0.95, 0.8, above=above)
    assert found == pytest.approx(normal_reach * math.sqrt(upper / sources), rel=0.04)
    assert estimate.limits.unvaried_reach(0.95, 0.8, above=above) == 0


def test_the_side_of_the_long_tail_reaches_further_than_its_interval_alone_says():
    estimate = bootstrap(0.1 * stats.expon.ppf((np.arange(100) + 0.5) / 100) - 0.5)
    interval, limits = estimate.at(0.95), estimate.limits
    value = -0.4
    assert limits.reach(0.95, 0.8, above=True) > 1.1 * (interval.high - value + Z_POWER * estimate.error)
    assert limits.reach(0.95, 0.8, above=True) > 1.3 * limits.reach(0.95, 0.8, above=False)


@pytest.mark.parametrize(("changed", "rare"), [(1, True), (2, False), (40, False)])
def test_a_few_changed_rows_detect_no_less_than_a_sample_without_any(changed, rare):
    values = np.zeros(400)
    values[:changed] = 0.01
    found = change(float(values.mean()), threshold=float(values.mean()), estimate=bootstrap(values), bounds=(-1.0, 1.0))
    unchanged = bootstrap(np.zeros(400)).at(0.95).high
    assert (found.to_fail > unchanged) == (found.to_pass > unchanged) == rare


def test_a_threshold_near_the_end_of_the_range_is_reported():
    share = ShareSample(rows=50.0, freedom=1e9)
    found = change(0.98, threshold=0.97, estimate=normal(0.98, 0.02, share=share), bounds=(0.0, 1.0))
    assert found.to_pass is None
    assert found.to_fail is not None
    assert found.warning == "even the largest possible value would pass in fewer than 80% of samples of this size"
    low = change(0.02, threshold=0.03, estimate=normal(0.02, 0.02, share=share), bounds=(0.0, 1.0))
    assert low.warning == "even the smallest possible value would fail in fewer than 80% of samples of this size"


@pytest.mark.parametrize(("threshold", "verdict"), [(-0.2, "pass"), (0.2, "fail")])
def test_a_margin_smaller_than_the_change_is_reported(threshold, verdict):
    found = change(0.0, threshold=threshold, no_difference=0.0)
    assert found.warning.startswith(
        "the margin of 0.200 is smaller than the detectable change of 0.280, so if the true"
    )
    assert f"would {verdict} in fewer than 80%" in found.warning
    assert change(0.0, error=0.07, threshold=threshold, no_difference=0.0).warning == ""


def test_the_variance_follows_the_slope_and_is_constant_without_an_end():
    poisson, gamma = 1 / 0.2, 2 / 0.2
    assert relative_variance(0.3, 0.2, poisson, (0.0, math.inf)) == pytest.approx(1.5)
    assert relative_variance(0.3, 0.2, gamma, (0.0, math.inf)) == pytest.approx(2.25)
    assert relative_variance(0.3, 0.2, 100.0, (0.0, 1.0)) == pytest.approx(2.25)
    assert relative_variance(0.3, 0.2, -1 / 0.8, (0.0, 1.0)) == pytest.approx(0.7 / 0.8)
    assert relative_variance(0.3, 0.2, gamma, (-math.inf, math.inf)) == 1


@pytest.mark.parametrize("population", power.populations()[:5], ids=lambda population: population.name)
def test_the_slope_of_an_estimate_is_that_of_its_tilted_population(population, monkeypatch):
    """With slightly other frequencies of the rows, the variance changes as the slope says."""
    monkeypatch.setattr(bootstrap_samples, "RESAMPLES", 10)  # the slope needs none
    random, size = np.random.default_rng(0), 40_000

    def at(value):
        return power.sample(population, population.at(value), size, random)

    truth = population.truth(population.base)
    step = 0.05 * at(truth)[1].error * math.sqrt(size)
    (low, below), (high, above) = at(truth - step), at(truth + step)
    slope = 2 * math.log(above.error / below.error) / (high - low)
    assert at(truth)[1].slope == pytest.approx(slope, rel=0.25, abs=0.3)


def test_an_ordinary_mean_of_zeros_and_ones_is_a_share_and_other_means_are_not():
    groups, _ = coverage_samples.independent(200)
    values = np.arange(200) % 4 == 0
    mean = mean_interval(values * 1.0, groups, confidence=0.95, generator=np.random.default_rng(0), bounds=(0.0, 1.0))
    share = proportion_interval(values * 1.0, groups, confidence=0.95)
    assert mean.share.rows == pytest.approx(share.share.rows, rel=0.01) == pytest.approx(200, rel=0.01)
    halves = mean_interval(values * 0.5, groups, confidence=0.95, generator=np.random.default_rng(0), bounds=(0.0, 1.0))
    assert halves.share is None


@pytest.mark.parametrize("n", [50, 200, 2000])
def test_a_share_is_decided_in_80_percent_of_samples_at_the_reported_change(n):
    """The share that is audited is near 1. Its intervals are no bootstrap, so many samples are fast."""
    random, requirement = np.random.default_rng(n), Requirement(direction="at_least", value=0.8)
    groups, _ = coverage_samples.independent(n)
    corrected = fail_confidence(0.95, 2)

    def audited(share):
        values = (random.random(n) < share).astype(np.float64)
        return float(values.mean()), proportion_interval(values, groups, confidence=0.95)

    value, estimate = audited(0.98)
    found = change(value, threshold=0.8, estimate=estimate, fail=corrected, bounds=(0.0, 1.0))
    for true, right in ((0.8 + found.to_pass, "pass"), (0.8 - found.to_fail, "fail")):
        count = 0
        for _ in range(600):
            value, estimate = audited(true)
            verdict, _ = decide(
                value=value,
                interval=estimate.at(0.95),
                fail_interval=estimate.at(corrected),
                requirement=requirement,
                n=n,
                n_defined=n,
            )
            count += verdict == right
        assert 0.74 <= count / 600 <= 0.88  # the count is a whole number, so with 50 rows 80% is not possible


@pytest.mark.slow
@pytest.mark.parametrize("number", range(5), ids=[population.name for population in power.populations()[:5]])
def test_means_and_ratios_are_decided_in_about_80_percent_of_samples_or_more_at_the_reported_change(number):
    for row in power.run(number, 200, "on the threshold", 1.0):
        assert 0.74 <= row["power"] <= 0.97, row


COLUMN = "agreement.gradient.meister.inputs.tau"


def test_every_verdict_reports_the_change_and_the_error_it_was_computed_from():
    m = measured(120)
    mean = float(m.scalar(COLUMN).mean())
    for at_least in (mean - 0.3, mean, mean + 0.3):
        record = checks.Agreement(at_least=at_least).judge(m, gated=3)
        error = record.sampling_error.standard_error
        assert record.detectable_change.to_fail > record.detectable_change.to_pass > 2 * error
    assert checks.Agreement(severity="report").judge(m).detectable_change is None
    assert checks.Agreement(severity="report").judge(m).sampling_error.standard_error == error
    assert checks.Agreement(at_least=0.1).judge(measured(29)).detectable_change is None


def test_a_relative_threshold_warns_if_its_margin_cannot_be_detected():
    m = measured(60)
    small, large = (checks.Agreement(at_least=f"floor + {margin}").judge(m) for margin in (0.01, 0.9))
    assert small.detectable_change.warning.startswith("the margin of 0.010 is smaller than the detectable change of")
    assert large.detectable_change.warning == ""
    assert checks.Agreement(at_least="0.5 * gradient_loo + 0.01").judge(m).detectable_change.warning == ""
