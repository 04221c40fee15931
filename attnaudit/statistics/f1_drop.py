"""The drop in F1 between two kinds of predictions, computed from sums over instances."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from attnaudit.arrays import Floats, Integers
from attnaudit.statistics.groups import Groups
from attnaudit.statistics.interval_estimate import IntervalEstimate
from attnaudit.statistics.intervals import linearised_interval


@dataclass(frozen=True, slots=True)
class F1Drop:
    """The mean F1 of Q sets of predictions minus the mean F1 of R other sets (Tutek & Šnajder 2020, §3.2).

    A set contains one prediction per instance. Usually, the first Q sets are predictions of the unchanged model, and
    the other R sets are predictions with replaced attention. With two classes, F1 is the score of class 1. With more
    classes, it is the macro average. As in scikit-learn, a class that neither occurs nor is predicted is left out of
    the average.

    Use `F1Drop.of` to create an instance.

    Attributes:
        classes: The indices of the classes whose F1 is averaged.
        labels: (n,) class indices; -1 where there is no label.
        predicted: (n, Q + R) predicted class indices.
        first: Q, the number of sets in the first mean. The mean of the other sets is subtracted.
    """

    classes: tuple[int, ...]
    labels: NDArray[np.int64]
    predicted: Floats
    first: int = 1

    @classmethod
    def of(cls, labels: NDArray[np.int64], own: Floats, replaced: Floats, *, classes: int) -> F1Drop:
        """Create the drop in F1 from two kinds of predictions.

        Args:
            labels: (n,) class indices; -1 where there is no label.
            own: (n, Q) predicted class indices of the first kind, such as the predictions of the unchanged model.
            replaced: (n, R) predicted class indices of the second kind, such as the predictions with replaced
                attention.
            classes: Number of classes of the model.
        """
        averaged = (1,) if classes == 2 else tuple(range(classes))
        return cls(averaged, labels, np.column_stack([own, replaced]), own.shape[1])

    @property
    def sets(self) -> int:
        """Q + R, the number of all sets of predictions."""
        return int(self.predicted.shape[1])

    @property
    def width(self) -> int:
        """D, the number of columns."""
        return len(self.classes) * (1 + 2 * self.sets)

    def columns(self, rows: Integers) -> Floats:
        """Return numbers whose sums over instances determine F1, for the rows of a block.

        Args:
            rows: (m,) positions of instances.

        Returns:
            (m, D) zeros and ones that mark labels, predictions and correct predictions.
        """
        labels, predicted = self.labels[rows], self.predicted[rows]
        columns = []
        for c in self.classes:
            is_true, is_predicted = (labels == c)[:, None], predicted == c
            columns += [is_true, is_predicted, is_true & is_predicted]
        return np.concatenate(columns, axis=1).astype(np.float64)

    def scores(self, totals: Floats) -> Floats:
        """Compute the F1 of each set of predictions.

        Args:
            totals: (b, D) sums of `columns` over b samples of the instances.

        Returns:
            (b, Q + R) F1 scores, starting with the Q sets of the first kind; NaN where F1 is undefined.
        """
        width = 1 + 2 * self.sets
        f1 = np.full((len(self.classes), len(totals), self.sets), np.nan)
        for i in range(len(self.classes)):
            part = totals[:, i * width : (i + 1) * width]
            true, predicted, hits = part[:, :1], part[:, 1 : 1 + self.sets], part[:, 1 + self.sets :]
            np.divide(2 * hits, true + predicted, out=f1[i], where=true + predicted > 0)
        known = ~np.isnan(f1)
        summed: Floats = np.where(known, f1, 0.0).sum(0)
        macro: Floats = np.divide(summed, known.sum(0), out=np.full_like(summed, np.nan), where=known.any(0))
        return macro

    def drop(self, totals: Floats) -> Floats:
        """Compute the (b,) drops from (b, D) totals (see `scores`); NaN where the F1 of a set is undefined."""
        scores = self.scores(totals)
        drops: Floats = scores[:, : self.first].mean(1) - scores[:, self.first :].mean(1)
        return drops

    def value(self, groups: Groups) -> tuple[float, float, float]:
        """Return the mean F1 of the first Q sets, the mean F1 of the other R sets, and the drop; NaN if undefined."""
        scores = self.scores(groups.totals_of(self.columns, self.width)[None])[0]
        ours, others = float(scores[: self.first].mean()), float(scores[self.first :].mean())
        return ours, others, ours - others

    def interval(self, groups: Groups, *, confidence: float) -> IntervalEstimate | None:
        """Return the interval of the drop, by linearisation; None if it cannot be estimated."""
        return linearised_interval(
            self.drop,
            self.columns,
            groups,
            pseudo=self._changes(groups),
            confidence=confidence,
            bounds=(-1.0, 1.0),
        )

    def _changes(self, groups: Groups) -> Floats:
        """Return (P, D) `columns` of artificial instances, one per pair of classes (see `linearised_interval`).

        For such an instance, the first Q sets predict one class, the other R sets predict another class, and one of
        these two classes is the label.
        """
        width = 1 + 2 * self.sets
        totals = groups.totals_of(self.columns, self.width).reshape(len(self.classes), width)
        occur = [c for c, part in zip(self.classes, totals, strict=True) if part.any()]
        kinds = [0, 1] if self.classes == (1,) else occur
        rows = []
        for a, b in zip(kinds, kinds[1:] + kinds[:1], strict=True):
            both = np.array([a] * self.first + [b] * (self.sets - self.first))
            for label in (a, b):
                parts = [[[label == c], both == c, (both == c) & (label == c)] for c in self.classes]
                rows.append(np.concatenate([np.asarray(x, dtype=np.float64) for part in parts for x in part]))
        return np.array(rows) if rows else np.zeros((1, self.width))
