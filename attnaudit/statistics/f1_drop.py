"""How far F1 falls when predictions are replaced, as a function of sums over instances."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from attnaudit.arrays import Floats
from attnaudit.engine.measurements import Measurements
from attnaudit.statistics.groups import Groups
from attnaudit.statistics.interval_estimate import IntervalEstimate
from attnaudit.statistics.intervals import linearised_interval


@dataclass(frozen=True, slots=True)
class F1Drop:
    """F1 of the model minus the mean F1 over R replaced predictions (T §3.2), over labelled instances; or the mean F1
    of Q predictions minus that of R others.

    F1 is that of class 1 for two classes and macro otherwise; a class that neither occurs nor is predicted is left out,
    as scikit-learn does. labels, predicted: (n,) class indices, -1 unlabelled. replaced: (n, R).
    own: (n, Q), the model's predictions by default.
    """

    classes: tuple[int, ...]
    columns: Floats
    replacements: int
    first: int = 1

    @classmethod
    def of(cls, measurements: Measurements, replaced: Floats, *, own: Floats | None = None) -> F1Drop:
        count = len(measurements.classes)
        classes = (1,) if count == 2 else tuple(range(count))
        labels = measurements.labels
        first = measurements.predicted.astype(np.float64)[:, None] if own is None else own
        both = np.column_stack([first, replaced])
        columns = []
        for c in classes:
            true, said = (labels == c)[:, None], both == c
            columns += [true, said, true & said]
        return cls(classes, np.concatenate(columns, axis=1).astype(np.float64), replaced.shape[1], first.shape[1])

    @property
    def sets(self) -> int:
        """Q + R, how many sets of predictions there are."""
        return self.first + self.replacements

    def scores(self, totals: Floats) -> Floats:
        """(b, D) totals -> (b, Q + R) F1: of the model's own predictions, then of each replacement."""
        width = 1 + 2 * self.sets
        found = np.full((len(self.classes), len(totals), self.sets), np.nan)
        for i in range(len(self.classes)):
            part = totals[:, i * width : (i + 1) * width]
            true, said, hit = part[:, :1], part[:, 1 : 1 + self.sets], part[:, 1 + self.sets :]
            np.divide(2 * hit, true + said, out=found[i], where=true + said > 0)
        known = ~np.isnan(found)
        summed: Floats = np.where(known, found, 0.0).sum(0)
        macro: Floats = np.divide(summed, known.sum(0), out=np.full_like(summed, np.nan), where=known.any(0))
        return macro

    def drop(self, totals: Floats) -> Floats:
        scores = self.scores(totals)
        fall: Floats = scores[:, : self.first].mean(1) - scores[:, self.first :].mean(1)
        return fall

    def value(self, groups: Groups) -> tuple[float, float, float]:
        """F1, mean F1 of the replacements, and the drop; NaN where F1 is undefined."""
        scores = self.scores(groups.sums(self.columns).sum(0)[None])[0]
        ours, others = float(scores[: self.first].mean()), float(scores[self.first :].mean())
        return ours, others, ours - others

    def interval(self, groups: Groups, *, confidence: float) -> IntervalEstimate | None:
        return linearised_interval(
            self.drop,
            self.columns,
            groups,
            pseudo=self._changes(groups),
            confidence=confidence,
            bounds=(-1.0, 1.0),
        )

    def _changes(self, groups: Groups) -> Floats:
        """(P, D) one row per change of decision from a class to the next that occurs, right or wrong before."""
        width = 1 + 2 * self.sets
        totals = self.columns[groups.rows].sum(0).reshape(len(self.classes), width)
        occur = [c for c, part in zip(self.classes, totals, strict=True) if part.any()]
        kinds = [0, 1] if self.classes == (1,) else occur
        rows = []
        for a, b in zip(kinds, kinds[1:] + kinds[:1], strict=True):
            both = np.array([a] * self.first + [b] * self.replacements)
            for label in (a, b):
                parts = [[[label == c], both == c, (both == c) & (label == c)] for c in self.classes]
                rows.append(np.concatenate([np.asarray(x, dtype=np.float64) for part in parts for x in part]))
        return np.array(rows) if rows else np.zeros((1, self.columns.shape[1]))
