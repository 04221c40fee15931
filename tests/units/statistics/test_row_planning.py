"""The number of rows that a gate needs before anything is measured."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from attnaudit.records import Requirement
from attnaudit.statistics.intervals import proportion_interval
from attnaudit.statistics.row_planning import RowSpread, detectable_effect, rows_needed
from attnaudit.statistics.verdict import decide
from benchmarks import coverage_samples

MEAN = RowSpread(ends=(-math.inf, math.inf), deviation=2.0)
SHARE = RowSpread(ends=(0.0, 1.0))


def test_the_rows_of_a_mean_are_those_of_a_power_calculation():
    rows = rows_needed(MEAN, threshold=1.0, effect=-0.25, confidence=0.95)
    assert stats.norm.cdf(0.25 / 2 * math.sqrt(rows) - stats.norm.ppf(0.975)) == pytest.approx(0.8, abs=1e-3)
    assert rows_needed(MEAN, threshold=1.0, effect=10.0, confidence=0.95) == 30


def test_an_effect_beyond_the_range_has_no_rows():
    assert rows_needed(SHARE, threshold=0.97, effect=0.05, confidence=0.95) is None
    assert detectable_effect(SHARE, threshold=0.97, upwards=True, confidence=0.95, rows=50) is None


@pytest.mark.parametrize("spread", [MEAN, SHARE, RowSpread(ends=(0.0, math.inf), deviation=0.1, value=0.2, slope=7.0)])
@pytest.mark.parametrize("upwards", [True, False])
def test_the_smallest_effect_needs_the_given_rows(spread, upwards):
    effect = detectable_effect(spread, threshold=0.4, upwards=upwards, confidence=0.975, rows=500)
    signed = effect if upwards else -effect
    assert rows_needed(spread, threshold=0.4, effect=signed, confidence=0.975) in (499, 500)


@pytest.mark.parametrize(("threshold", "effect"), [(0.63, 0.08), (0.63, -0.08), (0.9, 0.05), (0.9, -0.05)])
def test_a_sample_of_the_planned_rows_is_decided_with_the_promised_power(threshold, effect):
    rows = rows_needed(SHARE, threshold=threshold, effect=effect, confidence=0.95)
    groups, _ = coverage_samples.independent(rows)
    random = np.random.default_rng(rows)
    decided = 0
    for _ in range(800):
        values = (random.random(rows) < threshold + effect).astype(np.float64)
        verdict, _ = decide(
            value=float(values.mean()),
            interval=proportion_interval(values, groups, confidence=0.95).at(0.95),
            requirement=Requirement(direction="at_least", value=threshold),
            n=rows,
            n_defined=rows,
        )
        decided += verdict == ("pass" if effect > 0 else "fail")
    assert 0.75 <= decided / 800 <= 0.85
