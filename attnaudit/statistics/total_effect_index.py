"""The total-effect index: how far the outputs move when a factor is resampled, relative to their variance.

The index of Homma & Saltelli (1996) is estimated by Jansen's estimator (Jansen 1999; Saltelli et al. 2010, table 2):
S_T = mean of E ‖y - y′‖² / (2 V). Here, y is the output of an instance, y′ is its output after the factor was
resampled, and V is the variance of the outputs over the instances, summed over the classes. S_T is a ratio of means. It
is 1 if resampling the factor moves the output as far as exchanging the instance would. Instances can have weights, such
that every class counts the same.

The index of one class is the mean of E ‖y - y′‖² over its instances, divided by 2 V of all instances. If every class
counts the same, S_T is the mean of these indices. A class with a small index can be hidden in this mean, but not in the
smallest index (`TotalEffectIndex.smallest`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from attnaudit.arrays import Floats
from attnaudit.statistics.balanced_rows import WeightedRows, squared_distances
from attnaudit.statistics.interval_estimate import IntervalEstimate
from attnaudit.statistics.smallest_ratio import smallest_ratio_interval

#: Outputs count as constant if their standard deviation is at most this fraction of their size, because such small
#: differences are rounding errors.
ROUNDING = 1e-6


@dataclass(frozen=True, slots=True)
class TotalEffectIndex:
    """The total-effect index of n instances. Build it with `TotalEffectIndex.of`.

    Attributes:
        effects: (n_all,) expected squared changes of each instance's output, relative to 2 V.
        deviations: (n_all,) squared deviations of each instance's output from the mean output, relative to V.
        variance: V, the weighted variance of the outputs of the chosen instances, summed over the classes.
        rows: The chosen instances and their weights.
    """

    effects: Floats
    deviations: Floats
    variance: float
    rows: WeightedRows

    @classmethod
    def of(
        cls, changes: Floats, outputs: Floats, rows: WeightedRows, rounding: float | None = None
    ) -> TotalEffectIndex | None:
        """Compute the index from the changes of the outputs and from the outputs.

        Args:
            changes: (n_all,) expected squared Euclidean distances between the output before and after resampling.
                Changes within rounding count as 0.
            outputs: (n_all, C) outputs.
            rows: The instances that have a change, and their weights. The mean and the variance are computed over these
                instances.
            rounding: A change counts as 0 if it is at most this number. If None, it is the square of 1e-6 of the size
                of the outputs.

        Returns:
            The index; None if there are no instances, if their outputs do not vary, or if one of their changes or
            outputs is NaN or infinite. Comparisons with NaN are False, so the limits of an interval would be wrong.
        """
        if not len(rows.groups):
            return None
        chosen = rows.groups.rows
        if not (np.isfinite(changes[chosen]).all() and np.isfinite(outputs[chosen]).all()):
            return None
        deviations = squared_distances(outputs, rows.mean(outputs))
        variance = float(rows.mean(deviations))
        least = ROUNDING**2 * float(rows.mean(squared_distances(outputs)))
        if variance <= least:
            return None
        rounding = least if rounding is None else rounding
        return cls(np.where(changes <= rounding, 0.0, changes) / (2 * variance), deviations / variance, variance, rows)

    @property
    def value(self) -> float:
        """S_T, the weighted mean of the effects."""
        return float(self.rows.mean(self.effects))

    @property
    def of_classes(self) -> list[float]:
        """The index of each class, in the order of `rows.members`."""
        return [float(self.effects[rows].mean()) for rows in self.rows.members]

    @property
    def smallest(self) -> float:
        """The smallest index of a class."""
        return min(self.of_classes)

    def linearised(self, through_estimates: Floats | None = None) -> Floats:
        """Return (n_all,) numbers whose mean is S_T: S_T plus the influence of each row; NaN at rows without a change.

        The mean output is estimated too, but this has no effect to first order (see `interval`).

        Args:
            through_estimates: (n_all,) indirect influences of each row, per unit of its weight; None if there are none.
                A row has an indirect influence if the changes and outputs depend on an estimated quantity, such as the
                scale of standardised logits.
        """
        above = self.effects if through_estimates is None else self.effects + through_estimates
        return self.rows.linearised_ratio(above, self.deviations)

    def derivative(self, changes: Floats, deviations: Floats) -> Floats:
        """Return the (D,) derivative of S_T with respect to D quantities on which all changes and outputs depend.

        Args:
            changes: (n_all, D) derivatives of the expected squared change of each row.
            deviations: (n_all, D) derivatives of the squared deviation of each row from a fixed mean output.
        """
        derivative: Floats = self.rows.mean(changes) / (2 * self.variance)
        return derivative - self.value * self.rows.mean(deviations) / self.variance

    def interval(
        self, *, confidence: float, generator: np.random.Generator, largest_change: float = np.inf
    ) -> IntervalEstimate | None:
        """Estimate the interval of the index by the studentised bootstrap over sources.

        Numerator and variance are resampled together, as a ratio of means of `effects` and `deviations`. In every
        resample, the deviations are taken from the mean output of the observed sample. Using the mean of the resample
        would make no difference to first order, since the mean minimises the sum of squared deviations.

        If no output changes, resamples do not vary. The interval then allows for unseen instances.

        Args:
            confidence: Nominal confidence of the estimate's `low` and `high`.
            generator: Draws the bootstrap samples.
            largest_change: The largest possible squared change of an output of an unseen instance. It is limited to
                four times the largest observed squared deviation. The squared distance between two observed outputs
                never exceeds this limit.

        Returns:
            The interval; None if there are fewer than two sources in total or in a class, or if the variance is at most
            4 standard errors above 0.
        """
        return self.rows.ratio_interval(
            self.effects,
            self.deviations,
            confidence=confidence,
            generator=generator,
            bounds=(0.0, np.inf),
            extremes=(0.0, self._largest_effect(largest_change)),
        )

    def interval_of_smallest(
        self, *, confidence: float, generator: np.random.Generator, largest_change: float = np.inf
    ) -> IntervalEstimate | None:
        """Estimate the interval of the smallest index of a class (see `smallest_ratio`).

        The arguments and the result are those of `interval`.
        """
        return smallest_ratio_interval(
            self.effects,
            self.deviations,
            self.rows,
            confidence=confidence,
            generator=generator,
            bounds=(0.0, np.inf),
            extremes=(0.0, self._largest_effect(largest_change)),
        )

    def _largest_effect(self, largest_change: float) -> float:
        """Return the largest effect of an unseen instance (see `interval`)."""
        diameter = 4 * self.variance * float(self.deviations[self.rows.groups.rows].max())
        return min(largest_change, diameter) / (2 * self.variance)
