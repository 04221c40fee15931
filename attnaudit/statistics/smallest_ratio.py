"""The smallest of the ratios of several classes, and its interval.

Each class has a ratio: the mean numerator of its rows, divided by the weighted mean denominator of all rows. The
statistic is the smallest of these ratios. A class with small numerators therefore cannot be hidden by the other
classes, and the statistic stays the same if all rows of a class are copied.

The two ends of the interval of the statistic are computed from the intervals of the K classes:

* The lower end is the smallest lower limit of a class. It is too high only if the limit of the class with the smallest
  ratio is too high, so it needs no correction for the number of classes (an intersection–union test, Berger 1982).
* The upper end is the smallest upper limit of a class. It is too low if the upper limit of any class is too low.
  Therefore, the probability of this error is divided by K (Bonferroni).
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from attnaudit.arrays import Floats, Integers
from attnaudit.records import Interval
from attnaudit.statistics.balanced_rows import WeightedRows
from attnaudit.statistics.groups import jackknife_error
from attnaudit.statistics.interval_estimate import IntervalEstimate
from attnaudit.statistics.intervals import ROUNDING, WIDEST, ratio_interval


@dataclass(frozen=True, kw_only=True)
class ClassRatio:
    """The ratio of one class.

    Attributes:
        above: (n_all,) numerators.
        below: (n_all,) denominators, as `WeightedRows.around_the_mean` returns them.
        rows: All selected rows, with weights that are 0 outside the class.
        confidence: Nominal confidence of the estimate's `low` and `high`.
        generator: Draws the bootstrap samples. Its state stays the same.
        bounds: The lowest and the highest possible ratio.
        extremes: The lowest and the highest possible numerator of a row whose denominator is 1.
    """

    above: Floats = field(repr=False)
    below: Floats = field(repr=False)
    rows: WeightedRows = field(repr=False)
    confidence: float
    generator: np.random.Generator = field(repr=False)
    bounds: tuple[float, float]
    extremes: tuple[float, float]

    @cached_property
    def value(self) -> float:
        """The ratio."""
        return float(self.rows.mean(self.above)) / float(self.below[self.rows.groups.rows].mean())

    @cached_property
    def sources(self) -> float:
        """The effective number of sources of the class."""
        return self.rows.fewest_effective

    @cached_property
    def estimate(self) -> IntervalEstimate | None:
        """The interval of the ratio; None in the cases of `intervals.ratio_interval`."""
        return ratio_interval(
            self._around_the_mean,
            self.below,
            self.rows.groups,
            confidence=self.confidence,
            generator=copy.deepcopy(self.generator),  # the order of the classes must not matter
            bounds=self.bounds,
            extremes=self.extremes,
            effective=self.sources,
            freedom=self.sources - 1,
        )

    def least(self, level: float) -> float:
        """Return a number that the lower limit at a confidence is never below. It needs no bootstrap samples.

        It is -inf if the standard error is 0, because the interval may then allow for unseen rows.
        """
        from scipy.special import stdtrit

        if self._error <= ROUNDING * abs(self.value):
            return -np.inf
        return self.value - WIDEST * float(stdtrit(max(1.0, self.sources - 1), (1 + level) / 2)) * self._error

    @property
    def _around_the_mean(self) -> Floats:
        return self.rows.around_the_mean(self.above)

    @cached_property
    def _error(self) -> float:
        """The standard error of the ratio, as `ratio_interval` computes it."""
        above, below, value = self._around_the_mean, self.below, self.value

        def residuals_and_denominators(rows: Integers) -> Floats:
            return np.column_stack([above[rows] - value * below[rows], below[rows]])

        residuals, denominators = self.rows.groups.sums_of(residuals_and_denominators, 2).T
        return jackknife_error(residuals, denominators) / float(denominators.sum())


def smallest_ratio_interval(
    above: Floats,
    below: Floats,
    rows: WeightedRows,
    *,
    confidence: float,
    generator: np.random.Generator,
    bounds: tuple[float, float],
    extremes: tuple[float, float],
) -> IntervalEstimate | None:
    """Estimate the interval of the smallest ratio of a class. The docstring of this module describes the method.

    Args:
        above: (n_all,) numerators.
        below: (n_all,) denominators.
        rows: The selected rows, with the same total weight for every class.
        confidence: Nominal confidence of the estimate's `low` and `high`.
        generator: Draws the bootstrap samples.
        bounds: The lowest and the highest possible ratio.
        extremes: The lowest and the highest possible numerator of a row whose denominator is 1.

    Returns:
        The interval; None in the cases of `intervals.ratio_interval`, or if all rows of a class have one source.
    """
    if len(rows.members) == 1:
        return rows.ratio_interval(
            above, below, confidence=confidence, generator=generator, bounds=bounds, extremes=extremes
        )
    if rows.fewest_sources < 2:
        return None
    varied = rows.around_the_mean(below)
    ratios = sorted(
        (
            ClassRatio(
                above=above,
                below=varied,
                rows=one,
                confidence=confidence,
                generator=generator,
                bounds=bounds,
                extremes=extremes,
            )
            for one in rows.of_each_class()
        ),
        key=lambda ratio: ratio.value,
    )
    first = ratios[0].estimate
    if first is None:  # whether there is an interval depends on the denominators, which all classes share
        return None

    def interval_at(level: float) -> Interval:
        decisive, low = _lowest(ratios, level)
        high = _high(ratios, 1 - (1 - level) / len(ratios))
        estimate = decisive.estimate
        assert estimate is not None
        method = f"{estimate.at(level).method}, smallest of {len(ratios)} classes"
        return Interval(low=low, high=high, confidence=level, method=method)

    decisive = _lowest(ratios, confidence)[0].estimate
    assert decisive is not None
    return IntervalEstimate(
        error=max(first.error, decisive.error),
        confidence=confidence,
        interval_at=interval_at,
        coverage_warning=decisive.coverage_warning,
        slope=first.slope,
    )


def _lowest(ratios: Sequence[ClassRatio], level: float) -> tuple[ClassRatio, float]:
    """Return the class with the smallest lower limit at a confidence, and this limit.

    Bootstrap samples are drawn only for the classes that may have the smallest limit.
    """
    found, low = ratios[0], np.inf
    for ratio in sorted(ratios, key=lambda one: one.least(level)):
        if ratio.least(level) >= low:
            break
        assert ratio.estimate is not None
        limit = ratio.estimate.at(level).low
        if limit < low:
            found, low = ratio, limit
    return found, low


def _high(ratios: Sequence[ClassRatio], level: float) -> float:
    """Return the smallest upper limit at a confidence. The ratios are sorted, and an upper limit is never below one."""
    high = np.inf
    for ratio in ratios:
        if ratio.value >= high:
            break
        assert ratio.estimate is not None
        high = min(high, ratio.estimate.at(level).high)
    return high
