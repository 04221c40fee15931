"""Cohen's κ between decisions and the decisions after a change, which may be random (Cohen 1960)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from attnaudit.arrays import Floats, Integers
from attnaudit.statistics.groups import Groups
from attnaudit.statistics.interval_estimate import IntervalEstimate
from attnaudit.statistics.intervals import linearised_interval


@dataclass(frozen=True, slots=True)
class CohensKappa:
    """The agreement of decisions that exceeds the one expected by chance, as a share of the largest possible excess.

    κ = (p_o - p_e) / (1 - p_e), where p_o is the share of equal decisions, and p_e the share that independent decisions
    with the same class frequencies would have. κ is 1 if no decision changes, and 0 if the changed decisions tell
    nothing about the original ones. Build it with `CohensKappa.of`.

    Attributes:
        columns: (n_all, 2 C + 1) decisions, changed decisions, and whether they agree, whose sums determine κ.
    """

    columns: Floats

    @classmethod
    def of(cls, decisions: Integers, changed: Floats) -> CohensKappa:
        """Compare decisions with changed ones.

        Args:
            decisions: (n_all,) class indices.
            changed: (n_all, C) probability of each class after the change.
        """
        own = np.eye(changed.shape[1])[decisions]
        return cls(np.column_stack([own, changed, (own * changed).sum(1)]))

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
        """Return κ of the instances in the groups; None if there are none, or all decisions fall into one class."""
        if not len(groups):
            return None
        kappa = float(self.kappa(groups.sums(self.columns).sum(0)[None])[0])
        return None if np.isnan(kappa) else kappa

    def interval(self, groups: Groups, *, confidence: float) -> IntervalEstimate | None:
        """Return the interval of κ, by linearisation; None where κ is undefined."""
        if self.value(groups) is None:
            return None
        return linearised_interval(
            self.kappa, self.columns, groups, pseudo=self._pairs(groups), confidence=confidence, bounds=(-1.0, 1.0)
        )

    def _pairs(self, groups: Groups) -> Floats:
        """Return (P, D) pseudo-rows: each class that occurs stays, or changes to the next one and back."""
        classes = self.columns.shape[1] // 2
        totals = self.columns[groups.rows].sum(0)
        occur = np.flatnonzero(totals[:classes] + totals[classes : 2 * classes])
        units = np.eye(classes)
        return np.array(
            [
                [*units[a], *units[b], float(a == b)]
                for one, other in zip(occur, np.roll(occur, 1), strict=True)
                for a in (one, other)
                for b in (one, other)
            ]
        )
