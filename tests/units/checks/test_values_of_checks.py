"""A check whose value or values per instance are not finite numbers never passes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest

from attnaudit.arrays import Floats
from attnaudit.checks.per_instance import PerInstanceCheck
from attnaudit.engine.measurements import Measurements
from attnaudit.errors import CheckError
from attnaudit.records import Direction, Interval
from attnaudit.statistics.groups import Groups
from attnaudit.statistics.interval_estimate import IntervalEstimate
from attnaudit.statistics.intervals import median_interval
from tests.units.checks.synthetic_measurements import measured


@dataclass(frozen=True, kw_only=True)
class LargestWeight(PerInstanceCheck):
    """Mean of the largest attention weight."""

    directions: ClassVar[tuple[Direction, ...]] = ("at_least",)

    family = "attention"
    title = "Largest weight"
    question = "How large is the largest weight?"
    why = "A test."
    unit = "weight"
    bounds = (0.0, 1.0)
    subject = "largest_weight"

    def needs(self) -> tuple[str, ...]:
        return ("attention",)

    def values(self, measurements: Measurements) -> Floats:
        return measurements.scalar("attention.max")


@dataclass(frozen=True, kw_only=True)
class StatisticOf(LargestWeight):
    """The statistic is a given number."""

    number: float

    def value(self, measurements: Measurements, values: Floats, groups: Groups) -> float | None:
        return self.number


class ValuesOf(LargestWeight):
    """The values are changed."""

    def values(self, measurements: Measurements) -> Floats:
        values = np.array(super().values(measurements))
        values[3] = np.inf
        return values


class OneValue(LargestWeight):
    """There is one value for all instances."""

    def values(self, measurements: Measurements) -> Floats:
        return super().values(measurements).mean(keepdims=True)


@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
def test_a_statistic_that_is_not_finite_is_undefined(number: float) -> None:
    assert LargestWeight(at_least=0.05).judge(measured()).verdict == "pass"
    record = StatisticOf(at_least=0.05, number=number).judge(measured())
    assert (record.verdict, record.value, record.interval) == ("undefined", None, None)
    assert record.blocks


@dataclass(frozen=True, kw_only=True)
class IntervalOf(LargestWeight):
    """The ends of the interval are given numbers."""

    directions: ClassVar[tuple[Direction, ...]] = ("at_least", "at_most")

    low: float
    high: float

    def interval(self, measurements: Measurements, values: Floats, groups: Groups) -> IntervalEstimate:
        def interval_at(level: float) -> Interval:
            return Interval(low=self.low, high=self.high, confidence=level, method="given")

        return IntervalEstimate(error=0.01, confidence=self.confidence, interval_at=interval_at)


@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
def test_a_statistic_whose_interval_is_not_finite_is_undefined(number: float) -> None:
    assert IntervalOf(at_least=0.05, low=0.06, high=0.99).judge(measured()).verdict == "pass"
    for check in (
        IntervalOf(at_least=0.05, low=0.06, high=number, inconclusive="pass"),
        IntervalOf(at_most=0.995, low=number, high=0.99, inconclusive="pass"),
    ):
        record = check.judge(measured())
        assert (record.verdict, record.value, record.interval) == ("undefined", None, None)
        assert record.blocks


def test_infinite_values_are_refused() -> None:
    n = len(measured())
    where = "infinite values for 1 of {n} instances, such as {row}. Return NaN"
    measurements = measured()
    with pytest.raises(CheckError, match=where.format(n=n, row=measurements.ids[3])):
        ValuesOf(at_least=0.05, inconclusive="pass").judge(measurements)
    rows = [replace(one, where=f"dev.csv:{i}") for i, one in enumerate(measurements.instances)]
    with pytest.raises(CheckError, match=where.format(n=n, row="dev.csv:3")):
        ValuesOf(at_least=0.05, inconclusive="pass").judge(replace(measurements, instances=rows))


def test_another_number_of_values_is_refused() -> None:
    with pytest.raises(CheckError, match=r"an array of shape \(1,\); expected \(\d+,\), one number per instance"):
        OneValue(at_least=0.05).judge(measured())


@dataclass(frozen=True, kw_only=True)
class NamedStatistic(LargestWeight):
    """The name of the statistic is an argument, but the mean is computed."""

    named: str

    @property
    def statistic(self) -> str:
        return self.named


@dataclass(frozen=True, kw_only=True)
class MedianWithIntervalOfMean(NamedStatistic):
    """The value is a median, but the interval is that of the mean."""

    def value(self, measurements: Measurements, values: Floats, groups: Groups) -> float | None:
        return float(np.nanmedian(values))


@dataclass(frozen=True, kw_only=True)
class Median(MedianWithIntervalOfMean):
    """The value is a median, and so is its interval."""

    def interval(self, measurements: Measurements, values: Floats, groups: Groups) -> IntervalEstimate | None:
        return median_interval(values, groups, confidence=self.confidence)


@pytest.mark.parametrize("kind", [NamedStatistic, MedianWithIntervalOfMean])
@pytest.mark.parametrize("named", ["median", "proportion", "maximum", "Mean"])
def test_the_name_of_a_statistic_that_is_not_computed_is_refused(kind: type[NamedStatistic], named: str) -> None:
    with pytest.raises(CheckError, match=rf"statistic is '{named}', .* Override both value\(\) and interval\(\)"):
        kind(at_least=0.05, named=named)


def test_a_check_may_name_the_statistic_that_it_computes() -> None:
    measurements = measured()
    record = Median(at_least=0.05, named="median").judge(measurements)
    expected = np.nanmedian(measurements.scalar("attention.max"))
    assert (record.statistic, record.value_name, record.value) == ("median", "median weight", expected)
    assert NamedStatistic(at_least=0.05, named="mean").judge(measurements).verdict == "pass"
