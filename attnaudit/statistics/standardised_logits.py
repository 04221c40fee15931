"""The softmax of standardised logits, which depends neither on the scale of the logits nor on a bias per class."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from attnaudit.arrays import Floats, Integers
from attnaudit.statistics.balanced_rows import WeightedRows

#: Differences of logits count as rounding errors if they are at most this fraction of the size of the logits. Logits
#: with a smaller standard deviation do not vary, and an output does not change if its logits move by less.
ROUNDING = 1e-6


@dataclass(frozen=True, slots=True)
class OtherLogits:
    """The logits that some rows have under other attention weights. Build it with `of`.

    Attributes:
        logits: (M, C) logits minus their mean over the classes, without NaN.
        rows: (M,) the row that each of the M logits belongs to.
        count: n, the number of all rows.
    """

    logits: Floats
    rows: Integers
    count: int

    @classmethod
    def of(cls, logits: Mapping[int, Floats], *, count: int, classes: int) -> OtherLogits:
        """Collect the logits of rows.

        Args:
            logits: Row -> its logits under K different attention weights, as K · C numbers. Logits with a NaN are left
                out.
            count: The number of all rows.
            classes: C, the number of classes.
        """
        parts = [each.reshape(-1, classes) for each in logits.values()]
        stacked = np.concatenate([np.zeros((0, classes)), *parts])
        rows = np.repeat(np.array([*logits], dtype=np.int64), [len(part) for part in parts])
        defined = ~np.isnan(stacked).any(1)
        return cls(stacked[defined], rows[defined], count)

    def mean_of_rows(self, values: Floats) -> Floats:
        """Average (M, D) values over each row, and return (n, D) means; NaN for rows without any values."""
        counts = np.bincount(self.rows, minlength=self.count).astype(np.float64)
        sums = [np.bincount(self.rows, column, self.count) for column in values.T]
        means: Floats = np.column_stack(sums) / np.where(counts == 0, np.nan, counts)[:, None]
        return means


@dataclass(frozen=True, slots=True)
class StandardisedLogits:
    """The mean and the scale of centred logits. They determine standardised probabilities. Build it with `of`.

    Attributes:
        mean: (C,) weighted mean of the centred logits of each class.
        scale: √(V / C), where V is the weighted variance of the centred logits, summed over the classes. Logits that
            are divided by the scale have variance 1 on average over the classes. With two classes, the difference
            between the two logits has standard deviation 2.
        rounding: A squared distance between two vectors of logits is a rounding error if it is at most this number.
    """

    mean: Floats
    scale: float
    rounding: float

    @classmethod
    def of(cls, logits: Floats, rows: WeightedRows) -> StandardisedLogits | None:
        """Estimate the mean and the scale.

        Args:
            logits: (n_all, C) logits minus their mean over the classes.
            rows: The rows to estimate from, and their weights.

        Returns:
            The mean and the scale; None if there are no rows, or if their logits do not vary.
        """
        if not len(rows.groups):
            return None
        mean = rows.mean(logits)
        variance = float(rows.mean(((logits - mean) ** 2).sum(1)))
        rounding = ROUNDING**2 * float(rows.mean((logits**2).sum(1)))
        if variance <= rounding:
            return None
        return cls(mean, float(np.sqrt(variance / logits.shape[1])), rounding)

    def probabilities(self, logits: Floats) -> Floats:
        """Return the softmax of the standardised logits.

        Args:
            logits: (..., C) logits minus their mean over the classes.

        Returns:
            (..., C) probabilities; NaN where a logit is NaN.
        """
        scores = (logits - self.mean) / self.scale
        scores = np.exp(scores - scores.max(-1, keepdims=True))
        probabilities: Floats = scores / scores.sum(-1, keepdims=True)
        return probabilities

    def squared_changes(self, logits: Floats, others: OtherLogits) -> Floats:
        """Return the mean squared Euclidean distance between standardised probabilities.

        Args:
            logits: (n, C) logits minus their mean over the classes.
            others: Other logits of each row. Logits that differ by at most a rounding error count as equal.

        Returns:
            (n,) means over the other logits of each row; NaN for rows without other logits.
        """
        return others.mean_of_rows((self._moves(logits, others) ** 2).sum(1)[:, None])[:, 0]

    def derivatives_of_changes(self, logits: Floats, others: OtherLogits) -> Floats:
        """Return the derivatives of `squared_changes` with respect to each mean and the logarithm of the scale.

        Args:
            logits: (n, C) logits minus their mean over the classes.
            others: Other logits of each row.

        Returns:
            (n, C + 1) derivatives, with the logarithm of the scale last; NaN for rows without other logits.
        """
        moves, own = self._moves(logits, others), logits[others.rows]
        return others.mean_of_rows(2 * (self._derivatives(others.logits, moves) - self._derivatives(own, moves)))

    def derivatives_of_deviation(self, logits: Floats, deviations: Floats) -> Floats:
        """Return the derivatives of the squared distance of standardised probabilities from a fixed point.

        Args:
            logits: (n, C) logits minus their mean over the classes.
            deviations: (n, C) standardised probabilities of the logits minus the fixed point.

        Returns:
            (n, C + 1) derivatives in the order of `derivatives_of_changes`.
        """
        return 2 * self._derivatives(logits, deviations)

    def influences(self, logits: Floats) -> Floats:
        """Return the influence of each row on each mean and on the logarithm of the scale, per unit of weight.

        Args:
            logits: (n, C) logits minus their mean over the classes.

        Returns:
            (n, C + 1) influences. Their weighted mean over the rows that were passed to `of` is 0.
        """
        deviations = logits - self.mean
        relative = (deviations**2).mean(1) / self.scale**2
        return np.column_stack([deviations, (relative - 1) / 2])

    def _moves(self, logits: Floats, others: OtherLogits) -> Floats:
        """Return the (M, C) changes of the probabilities under the M other logits; 0 if they differ by rounding."""
        distances = ((others.logits - logits[others.rows]) ** 2).sum(1)
        moves = self.probabilities(others.logits) - self.probabilities(logits)[others.rows]
        return np.where((distances <= self.rounding)[:, None], 0.0, moves)

    def _derivatives(self, logits: Floats, direction: Floats) -> Floats:
        """Return (..., C + 1) derivatives of the standardised probabilities, projected on a (..., C) direction."""
        probabilities = self.probabilities(logits)
        along = probabilities * direction
        along = along - probabilities * along.sum(-1, keepdims=True)
        by_scale = (along * (logits - self.mean)).sum(-1, keepdims=True)
        derivatives: Floats = -np.concatenate([along, by_scale], axis=-1) / self.scale
        return derivatives
