"""The total-effect index: how far the outputs move when a factor is resampled, relative to their variance.

Jansen's estimator (Jansen 1999; Saltelli et al. 2010, table 2) of the index of Homma & Saltelli 1996:
S_T = mean of E ‖y - y′‖² / (2 V), where y′ is the output after the factor was resampled, and V the variance of the
outputs over the instances, summed over the classes. It is a ratio of means. If y′ is as far from y as the output of
another instance is, S_T is 1. Instances can have weights, so that every class counts the same.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from attnaudit.arrays import Floats
from attnaudit.statistics.balanced_rows import WeightedRows
from attnaudit.statistics.interval_estimate import IntervalEstimate

#: Outputs do not vary if their standard deviation is at most this share of their size: such differences are rounding.
ROUNDING = 1e-6


@dataclass(frozen=True, slots=True)
class TotalEffectIndex:
    """The total-effect index of n instances. Build it with `TotalEffectIndex.of`.

    Attributes:
        effects: (n_all,) expected squared change of each instance's output, relative to 2 V.
        deviations: (n_all,) squared deviation of each instance's output from the mean output, relative to V.
        variance: V, the weighted variance of the outputs of the chosen instances, summed over the classes.
        rows: The chosen instances and their weights.
    """

    effects: Floats
    deviations: Floats
    variance: float
    rows: WeightedRows

    @classmethod
    def of(cls, changes: Floats, outputs: Floats, rows: WeightedRows) -> TotalEffectIndex | None:
        """Relate changes of the outputs to their variance.

        Args:
            changes: (n_all,) expected squared Euclidean distance of the output to the output after resampling. Changes
                within rounding count as 0.
            outputs: (n_all, C) outputs.
            rows: The instances with a change, and their weights. Mean and variance are taken over these.

        Returns:
            The index; None if there are no instances, or if their outputs do not vary.
        """
        if not len(rows.groups):
            return None
        deviations = ((outputs - rows.mean(outputs)) ** 2).sum(1)
        variance = float(rows.mean(deviations))
        rounding = ROUNDING**2 * float(rows.mean((outputs**2).sum(1)))
        if variance <= rounding:
            return None
        return cls(np.where(changes <= rounding, 0.0, changes) / (2 * variance), deviations / variance, variance, rows)

    @property
    def value(self) -> float:
        """S_T, the weighted mean of the effects."""
        return float(self.rows.mean(self.effects))

    def linearised(self, through_estimates: Floats | None = None) -> Floats:
        """Return (n_all,) numbers whose mean is S_T: S_T plus the influence of each row; NaN at rows without a change.

        As in `interval`, that the mean output is estimated makes no difference in the first order.

        Args:
            through_estimates: (n_all,) the influence of each row through quantities that changes and outputs were
                computed with, such as the scale of standardised logits, per unit of its weight; None if there are none.
        """
        above = self.effects if through_estimates is None else self.effects + through_estimates
        return self.rows.linearised_ratio(above, self.deviations)

    def derivative(self, changes: Floats, deviations: Floats) -> Floats:
        """Return the (D,) derivative of S_T by D quantities on which all changes and outputs depend.

        Args:
            changes: (n_all, D) derivatives of the expected squared change of each row.
            deviations: (n_all, D) derivatives of its squared deviation from a fixed mean output.
        """
        derivative: Floats = self.rows.mean(changes) / (2 * self.variance)
        return derivative - self.value * self.rows.mean(deviations) / self.variance

    def interval(
        self, *, confidence: float, generator: np.random.Generator, largest_change: float = np.inf
    ) -> IntervalEstimate | None:
        """Estimate the interval of the index by the studentised bootstrap over sources.

        Numerator and variance are resampled together, as a ratio of means of `effects` and `deviations`. The
        deviations are taken from the observed mean. That of a resample would differ from it by a term that vanishes
        in the first order, since the mean minimises the sum of squared deviations.

        If no output changes at all, resamples do not vary. The interval then allows for unseen instances.

        Args:
            confidence: Nominal confidence of the estimate's `low` and `high`.
            generator: Draws the bootstrap samples.
            largest_change: The largest possible squared change of an output, for unseen instances. It is taken to be at
                most four times the largest squared deviation, which no two observed outputs exceed.

        Returns:
            The interval; None with fewer than two sources in all or in a class, or if the variance is less than 4
            standard errors above 0.
        """
        diameter = 4 * self.variance * float(self.deviations[self.rows.groups.rows].max())
        end = min(largest_change, diameter) / (2 * self.variance)
        return self.rows.ratio_interval(
            self.effects,
            self.deviations,
            confidence=confidence,
            generator=generator,
            bounds=(0.0, np.inf),
            extremes=(0.0, end),
        )
