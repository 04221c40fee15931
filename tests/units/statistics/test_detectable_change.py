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
from attnaudit.statistics import intervals
from attnaudit.statistics.detectable_change import detectable_change, relative_variance
from attnaudit.statistics.interval_estimate import IntervalEstimate
from attnaudit.statistics.intervals import mean_interval, proportion_interval
from attnaudit.statistics.shares import ShareSample
from attnaudit.statistics.verdict import decide, fail_confidence
from benchmarks import coverage, power
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


def test_the_spread_of_a_share_follows_from_the_share():
    share = ShareSample(rows=400.0, freedom=1e9)
    found = change(0.98, threshold=0.6, estimate=normal(0.98, 0.007, share=share), bounds=(0.0, 1.0))
    for side, distance in ((1, found.to_pass), (-1, found.to_fail)):
        true = 0.6 + side * distance
        assert distance == pytest.approx(Z * math.sqrt(0.24 / 400) + Z_POWER * math.sqrt(true * (1 - true) / 400))


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
    assert found.warning.startswith("the margin of 0.200 is smaller than the detectable change of 0.280, so a model")
    assert f"would {verdict} in fewer than 80%" in found.warning
    assert change(0.0, error=0.07, threshold=threshold, no_difference=0.0).warning == ""


def test_the_variance_follows_the_slope_and_is_constant_without_an_end():
    poisson, gamma = 1 / 0.2, 2 / 0.2
    assert relative_variance(0.3, 0.2, poisson, (0.0, math.inf)) == pytest.approx(1.5)
    assert relative_variance(0.3, 0.2, gamma, (0.0, math.inf)) == pytest.approx(2.25)
    assert relative_variance(0.3, 0.2, 100.0, (0.0, 1.0)) == pytest.approx(2.25)
    assert relative_variance(0.3, 0.2, -1 / 0.8, (0.0, 1.0)) == pytest.approx(0.7 / 0.8)
    assert relative_variance(0.3, 0.2, gamma, (-math.inf, math.inf)) == 1


@pytest.mark.parametrize("population", power.populations()[:6], ids=lambda population: population.name)
def test_the_slope_of_an_estimate_is_that_of_its_tilted_population(population, monkeypatch):
    """With slightly other frequencies of the rows, the variance changes as the slope says."""
    monkeypatch.setattr(intervals, "RESAMPLES", 10)  # the slope needs none
    random, size = np.random.default_rng(0), 40_000

    def at(value):
        return power.sample(population, population.at(value), size, random)

    truth = population.truth(population.base)
    step = 0.05 * at(truth)[1].error * math.sqrt(size)
    (low, below), (high, above) = at(truth - step), at(truth + step)
    slope = 2 * math.log(above.error / below.error) / (high - low)
    assert at(truth)[1].slope == pytest.approx(slope, rel=0.25, abs=0.3)


def test_an_ordinary_mean_of_zeros_and_ones_is_a_share_and_other_means_are_not():
    groups, _ = coverage.independent(200)
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
    groups, _ = coverage.independent(n)
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
def test_means_and_ratios_are_decided_in_80_percent_of_samples_at_the_reported_change(number):
    for row in power.run(number, 200, "on the threshold", 1.0):
        assert 0.72 <= row["power"] <= 0.88, row


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
