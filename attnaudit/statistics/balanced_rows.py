"""Weights of rows that give every class the same total weight, so that a statistic does not depend on label shares."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from attnaudit.arrays import Floats, Integers
from attnaudit.disk_arrays.filed_arrays import filled
from attnaudit.statistics.groups import Groups
from attnaudit.statistics.interval_estimate import IntervalEstimate
from attnaudit.statistics.intervals import ratio_interval
from attnaudit.statistics.shares import weighted_share

#: Deviations from the mean of a class count as 0 if they are at most this fraction of the largest value.
ROUNDING = 1e-12
#: The number of rows that are copied at once. It limits the memory.
ROWS_AT_ONCE = 2**16


def squared_distances(values: Floats, centre: Floats | float = 0.0) -> Floats:
    """Return the (n,) squared Euclidean distances between (n, C) values and a (C,) centre (default: the origin)."""
    distances: Floats = ((values - centre) ** 2).sum(1)
    return distances


@dataclass(frozen=True, slots=True)
class WeightedRows:
    """Selected rows and their weights. Build it with `balanced` or `equal`.

    A row is an instance. Classes without a selected row are left out. All other classes have the same total weight.

    Attributes:
        groups: The selected rows, grouped by source.
        weights: (n_all,) weights. Their mean over the selected rows is 1. All other rows have weight 0.
        members: One (n_c,) array per class with the positions of its selected rows. Classes without a selected row are
            left out.
    """

    groups: Groups
    weights: Floats
    members: tuple[Integers, ...] = field(repr=False)

    @classmethod
    def balanced(cls, classes: Integers, groups: Groups) -> WeightedRows:
        """Give every class the same total weight.

        Args:
            classes: (n_all,) the class of each row.
            groups: The selected rows, grouped by source.
        """
        own = classes[groups.rows]
        members = tuple(groups.rows[own == one] for one in np.unique(own))
        weights = filled(len(classes), 0.0)
        for rows in members:
            weights[rows] = len(groups.rows) / (len(members) * len(rows))
        return cls(groups, weights, members)

    @classmethod
    def equal(cls, count: int, groups: Groups) -> WeightedRows:
        """Give every row the weight 1.

        Args:
            count: n_all, the number of all rows.
            groups: The selected rows, grouped by source.
        """
        return cls.balanced(filled(count, 0, np.int64), groups)

    def mean(self, values: Floats) -> Floats:
        """Return the weighted mean of the selected rows of values (n_all, ...), of shape (...)."""
        rows = self.groups.rows
        total: Floats = np.zeros(values.shape[1:])
        for first in range(0, len(rows), ROWS_AT_ONCE):
            block = rows[first : first + ROWS_AT_ONCE]
            total = total + np.tensordot(self.weights[block], values[block], axes=1)
        return total / len(rows)

    def of_each_class(self) -> Iterator[WeightedRows]:
        """Yield the same rows once per class, with weights that make each mean the mean of this class."""
        for rows in self.members:
            weights = filled(len(self.weights), 0.0)
            weights[rows] = len(self.groups.rows) / len(rows)
            yield WeightedRows(self.groups, weights, (rows,))

    @property
    def sources_of_classes(self) -> list[int]:
        """The number of sources of each class, in the order of `members`."""
        return [len(parts) for parts in self._sources()]

    @property
    def fewest_sources(self) -> int:
        """The smallest number of sources that any class has; 0 if no rows are selected."""
        return min(self.sources_of_classes, default=0)

    @property
    def fewest_effective(self) -> float:
        """The smallest effective number of sources that any class has. At least one row must be selected."""
        return min(float(parts.sum()) ** 2 / float((parts**2).sum()) for parts in self._sources())

    @property
    def effective(self) -> float:
        """The effective number of sources: `fewest_effective` times the number of classes.

        A rare class has as much weight as the others, so its few sources limit the precision. The result is never
        larger than the effective number of sources without class weights. The two are equal if the rows are independent
        and every class has equally many rows.
        """
        return min(self.groups.effective, len(self.members) * self.fewest_effective)

    def linearised_ratio(self, above: Floats, below: Floats) -> Floats:
        """Return, for each selected row, the ratio Σ weight · above / Σ weight · below plus the row's influence on it.

        The influence is the derivative of the ratio with respect to the share of the row in the sample. The total
        weight of each class is fixed, so the influence depends on how far a row is from the mean of its class.

        Args:
            above: (n_all,) numerators.
            below: (n_all,) denominators. Their weighted mean must not be 0.

        Returns:
            (n_all,) numbers. Their mean over the selected rows is the ratio. All other rows have NaN.
        """
        ratio, denominator = float(self.mean(above)) / float(self.mean(below)), float(self.mean(below))
        linearised: Floats = filled(len(self.weights), np.nan)
        for rows in self.members:
            residuals = above[rows] - ratio * below[rows]
            linearised[rows] = ratio + self.weights[rows] * (residuals - residuals.mean()) / denominator
        return linearised

    def ratio_interval(
        self,
        above: Floats,
        below: Floats,
        *,
        confidence: float,
        generator: np.random.Generator,
        bounds: tuple[float, float] = (-np.inf, np.inf),
        extremes: tuple[float, float] = (-np.inf, np.inf),
    ) -> IntervalEstimate | None:
        """Estimate the interval of Σ weight · above / Σ weight · below (see `intervals.ratio_interval`).

        In a resample, the shares of the classes differ from those in the sample, but the total weight of each class
        stays the same. Therefore, only the deviations of rows from the mean of their class vary between resamples.

        Args:
            above: (n_all,) numerators.
            below: (n_all,) denominators.
            confidence: Nominal confidence of the estimate's `low` and `high`.
            generator: Draws the bootstrap samples.
            bounds: The lowest and the highest possible ratio.
            extremes: The lowest and the highest possible numerator of a row whose denominator is 1.

        Returns:
            The interval; None in the cases of `intervals.ratio_interval`, or if all rows of a class have one source.
        """
        if self.fewest_sources < 2:
            return None
        freedom = self.fewest_effective - 1
        several = len(self.members) > 1
        estimate = ratio_interval(
            self.around_the_mean(above) if several else above,
            self.around_the_mean(below) if several else below,
            self.groups,
            confidence=confidence,
            generator=generator,
            bounds=bounds,
            extremes=extremes,
            effective=self.effective,
            freedom=freedom,
        )
        if estimate is None or not several or extremes != (0.0, 1.0):
            return estimate
        above, below = self.weights * above, self.weights * below
        share = weighted_share(above, below, self.groups, error=estimate.error, freedom=max(1.0, freedom))
        return replace(estimate, share=share)

    def _sources(self) -> Iterator[Floats]:
        """Yield one array per class: the number of its rows in each of its sources."""
        for rows in self.members:
            of_class = filled(len(self.weights), 0.0)
            of_class[rows] = 1.0
            counts = self.groups.sums(of_class[:, None])[:, 0]
            yield counts[counts > 0]

    def around_the_mean(self, values: Floats) -> Floats:
        """Return (n_all,) numbers whose plain mean has the value and the standard error of the weighted mean.

        Each number is the weighted mean plus the weighted deviation of the row from the mean of its class. Estimating
        the mean of a class takes one degree of freedom, so the deviations are scaled up accordingly.
        """
        result: Floats = filled(len(values), float(self.mean(values)))
        least = ROUNDING * float(np.abs(values[self.groups.rows]).max())
        for rows, sources in zip(self.members, self._sources(), strict=True):
            deviations = values[rows] - values[rows].mean()
            deviations[np.abs(deviations) <= least] = 0.0
            result[rows] += self.weights[rows] * deviations * np.sqrt(len(sources) / (len(sources) - 1))
        return result
