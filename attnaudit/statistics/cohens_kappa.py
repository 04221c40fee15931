"""Cohen's κ between the decisions of a model before and after a change (Cohen 1960). The change may be random."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from attnaudit.arrays import Floats, Integers
from attnaudit.disk_arrays.filed_arrays import filled
from attnaudit.records import Interval
from attnaudit.statistics.groups import Groups
from attnaudit.statistics.interval_estimate import IntervalEstimate
from attnaudit.statistics.intervals import ratio_interval

#: The number of rows whose columns are in memory at once.
ROWS_AT_ONCE = 2**16


@dataclass(frozen=True, slots=True)
class CohensKappa:
    """The agreement between the decisions before and after a change, corrected for chance.

    κ = (p_o - p_e) / (1 - p_e). Here p_o is the share of decisions that stay the same, and p_e is the share that would
    stay the same if the two decisions were independent, with the same frequency of each class. κ is 1 if no decision
    changes. It is 0 if the decisions agree no more often than by chance.

    Use `CohensKappa.of` to create an instance.

    Attributes:
        decisions: (n_all,) class indices of the decisions before the change.
        changed: (n_all, C) shares of the changes after which the model decides for each class.
    """

    decisions: Integers
    changed: Floats

    @classmethod
    def of(cls, decisions: Integers, changed: Floats) -> CohensKappa:
        """Compare the decisions before and after a change.

        Args:
            decisions: (n_all,) class indices of the decisions before the change.
            changed: (n_all, C) shares. If several changes are tried, entry c is the share of changes after which the
                model decides for class c. With a single change, it is 0 or 1.
        """
        return cls(decisions, changed)

    def columns(self, rows: Integers) -> Floats:
        """Compute numbers whose sums over instances determine κ.

        They are computed for the rows of a block, because those of a million rows need 40 MB.

        Args:
            rows: (m,) positions of instances.

        Returns:
            (m, 2 C + 1) numbers. C columns mark the decision before the change, C columns mark the decision after it,
            and the last column marks whether the two agree.
        """
        classes = self.changed.shape[1]
        columns = np.empty((len(rows), 2 * classes + 1))
        columns[:, :classes] = np.equal(self.decisions[rows, None], np.arange(classes))
        columns[:, classes:-1] = self.changed[rows]
        columns[:, -1] = (columns[:, :classes] * columns[:, classes:-1]).sum(1)
        return columns

    def disagreement(self, rows: Integers) -> Floats:
        """Return, for (m,) positions of instances, the (m,) shares of changes that change the decision."""
        shares: Floats = filled(len(rows), np.nan)
        for first in range(0, len(rows), ROWS_AT_ONCE):
            some = slice(first, first + ROWS_AT_ONCE)
            shares[some] = 1 - self.columns(rows[some])[:, -1]
        return shares

    def kappa(self, totals: Floats) -> Floats:
        """Compute (b,) κ from (b, D) sums of `columns`; NaN where all decisions fall into one class."""
        classes = totals.shape[1] // 2
        own, changed, agree = totals[:, :classes], totals[:, classes : 2 * classes], totals[:, -1]
        size = own.sum(1)
        chance = (own * changed).sum(1) / size**2
        kappa: Floats = np.full(len(totals), np.nan)
        np.divide(agree / size - chance, 1 - chance, out=kappa, where=chance < 1 - 1e-12)
        return kappa

    def value(self, groups: Groups) -> float | None:
        """Return κ of the instances in the groups; None without instances, or if all decisions fall into one class."""
        if not len(groups):
            return None
        kappa = float(self.kappa(groups.totals_of(self.columns, 2 * self.changed.shape[1] + 1)[None])[0])
        return None if np.isnan(kappa) else kappa

    def interval(self, groups: Groups, *, confidence: float, generator: np.random.Generator) -> IntervalEstimate | None:
        """Estimate the interval of κ by the studentised bootstrap over sources.

        1 - κ is the ratio (1 - p_o) / (1 - p_e). Its numerator is a mean over instances. Its denominator is replaced by
        a linear approximation, which is a mean over instances too.

        Args:
            groups: The instances, grouped by source.
            confidence: Nominal confidence of the estimate's `low` and `high`.
            generator: Draws the bootstrap samples.

        Returns:
            The interval; None with fewer than two groups, or if 1 - p_e is less than 4 standard errors above 0.
        """
        if self.value(groups) is None:
            return None
        number, classes = self.changed.shape
        totals = np.zeros(2 * classes)
        for first in range(0, len(groups.rows), ROWS_AT_ONCE):
            totals += self.columns(groups.rows[first : first + ROWS_AT_ONCE])[:, :-1].sum(0)
        p, r = np.split(totals / len(groups.rows), 2)
        chance = float(p @ r)
        above, below = filled(number, 0.0), filled(number, 0.0)
        for first in range(0, number, ROWS_AT_ONCE):
            some = slice(first, min(first + ROWS_AT_ONCE, number))
            columns = self.columns(np.arange(some.start, some.stop))
            own, changed = columns[:, :classes], columns[:, classes:-1]
            above[some] = (1 - columns[:, -1]) / (1 - chance)
            below[some] = (1 + chance - own @ r - changed @ p) / (1 - chance)
        disagreement = ratio_interval(
            above,
            below,
            groups,
            confidence=confidence,
            generator=generator,
            bounds=(0.0, 2.0),
            extremes=(0.0, 1 / (1 - chance)),
        )
        if disagreement is None:
            return None

        def interval_at(level: float) -> Interval:
            interval = disagreement.at(level)
            return Interval(low=1 - interval.high, high=1 - interval.low, confidence=level, method=interval.method)

        return IntervalEstimate(
            error=disagreement.error,
            confidence=confidence,
            interval_at=interval_at,
            coverage_warning=disagreement.coverage_warning,
        )
