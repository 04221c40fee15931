"""How many instances would decide a case."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from attnaudit import checks
from attnaudit.records import Interval, Requirement
from attnaudit.statistics.interval_estimate import IntervalEstimate
from attnaudit.statistics.sample_size import plan
from tests.strategies import directions
from tests.units.checks.synthetic_measurements import measured


def normal(value, error):
    """The interval estimate of a normally distributed value."""

    def interval_at(level):
        reach = stats.norm.ppf((1 + level) / 2) * error
        return Interval(low=value - reach, high=value + reach, confidence=level, method="normal")

    return IntervalEstimate(error=error, confidence=0.95, interval_at=interval_at)


def planned(value, threshold, error=0.1, n=100, direction="at_least", fail=0.95):
    return plan(
        value=value,
        estimate=normal(value, error),
        requirement=Requirement(direction=direction, value=threshold),
        confidence=0.95,
        fail_confidence=fail,
        n=n,
    )


def test_the_figure_is_that_of_a_power_calculation():
    found = planned(0.6, 0.5)
    power = stats.norm.cdf(0.1 / (0.1 * math.sqrt(100 / found.instances)) - 1.96)
    assert power == pytest.approx(0.8, abs=0.005)
    assert found.power == 0.8


def test_the_range_is_the_figure_at_the_ends_of_the_middle_half():
    found = planned(0.6, 0.5)
    end = stats.norm.ppf(0.75) * 0.1
    assert found.low == planned(0.6 + end, 0.5).instances
    assert found.high == planned(0.6 - end, 0.5).instances
    assert (found.low, found.instances, found.high) == (280, 785, 7408)


def test_a_failure_that_needs_more_confidence_needs_more_instances():
    below = planned(0.4, 0.5)
    assert planned(0.4, 0.5, fail=0.995).instances > below.instances
    assert planned(0.6, 0.5, fail=0.995) == planned(0.6, 0.5)


def test_a_range_around_the_threshold_has_no_upper_end():
    found = planned(0.55, 0.5)
    assert found.high is None
    assert found.low < found.instances


def test_a_value_on_the_threshold_gives_no_figure():
    for value in (0.5, 0.501):
        found = planned(value, 0.5)
        assert (found.instances, found.high) == (None, None)
        assert found.low is not None


def test_few_instances_far_from_the_threshold_need_the_minimum():
    found = planned(0.9, 0.5, error=0.01, n=12)
    assert (found.instances, found.low, found.high) == (30, 30, 30)


@given(
    st.floats(0, 1),
    st.floats(0, 1),
    st.floats(0.001, 0.5),
    st.integers(2, 5000),
    directions,
)
def test_figures_are_ordered_and_more_than_there_are(value, threshold, error, n, direction):
    found = planned(value, threshold, error, n, direction)
    known = [x for x in (found.low, found.instances, found.high) if x is not None]
    assert known == sorted(known)
    assert all(x >= max(n, 30) for x in known)
    mirrored = planned(-value, -threshold, error, n, "at_most" if direction == "at_least" else "at_least")
    assert mirrored == found


COLUMN = "agreement.gradient.meister.inputs.tau"


def test_an_inconclusive_record_is_planned_and_a_decided_one_is_not():
    m = measured(120)
    mean = float(m.scalar(COLUMN).mean())
    record = checks.Agreement(at_least=round(mean - 0.03, 4)).judge(m)
    assert record.verdict == "inconclusive"
    assert record.planning.low < record.planning.instances
    assert record.planning.instances > 120
    assert checks.Agreement(at_least=mean - 0.3).judge(m).planning is None
    assert checks.Agreement(severity="report").judge(m).planning is None


def test_a_failure_is_corrected_for_the_gated_checks_and_a_pass_is_not():
    m = measured(120)
    values = m.scalar(COLUMN)
    mean, error = float(values.mean()), float(stats.sem(values))
    missed = checks.Agreement(at_least=mean + 2.3 * error)
    assert missed.judge(m).verdict == "fail"
    among = missed.judge(m, gated=10)
    assert among.verdict == "inconclusive"
    assert (among.gated, among.fail_interval.confidence) == (10, pytest.approx(0.995))
    assert among.interval == missed.judge(m).interval
    assert among.fail_interval.low < among.interval.low <= among.interval.high < among.requirement.value
    assert "but because the policy has several gates, a check fails only if its whole 99.5% interval is" in among.reason
    met = checks.Agreement(at_least=mean - 2.3 * error)
    assert met.judge(m).verdict == met.judge(m, gated=50).verdict == "pass"
    far = checks.Agreement(at_least=mean + 6 * error)
    assert far.judge(m, gated=50).verdict == "fail"


def test_a_check_that_only_reports_is_not_corrected():
    m = measured(120)
    mean, error = float(m.scalar(COLUMN).mean()), float(stats.sem(m.scalar(COLUMN)))
    record = checks.Agreement(at_least=mean + 2.3 * error, severity="report").judge(m, gated=10)
    assert (record.verdict, record.gated, record.fail_interval) == ("fail", 1, record.interval)


def test_at_most_is_the_mirror_image():
    m = measured(120)
    values = m.scalar("influence.hidden.entropy")
    mean, error = float(values.mean()), float(stats.sem(values))
    check = checks.InfluenceEntropy(at_most=mean - 2.3 * error)
    assert check.judge(m).verdict == "fail"
    assert check.judge(m, gated=10).verdict == "inconclusive"
    assert np.isclose(check.judge(m, gated=10).fail_interval.confidence, 0.995)
