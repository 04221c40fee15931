"""The softmax of standardised logits, which depends neither on the scale of the logits nor on a bias per class."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from attnaudit.arrays import Floats, Integers
from attnaudit.disk_arrays.filed_arrays import written
from attnaudit.statistics.balanced_rows import WeightedRows, squared_distances

#: Differences of logits count as rounding errors if they are at most this fraction of the size of the logits. Logits
#: count as constant if their standard deviation is at most this fraction of their size. An output counts as unchanged
#: if its logits move by at most this fraction.
ROUNDING = 1e-6
#: The number of rows whose other logits are in memory at once.
ROWS_AT_ONCE = 256


@dataclass(frozen=True, slots=True)
class OtherLogits:
    """The logits that some rows have under other attention weights. Only a block of rows is in memory at once.

    Attributes:
        logits: n arrays of K · C numbers, one array per row. Each array contains the logits of the row under K
            different attention weights, minus their mean over the classes. Logits with a NaN are left out.
        chosen: (n,) True at the rows whose logits are read.
        classes: C, the number of classes.
    """

    logits: Sequence[Floats]
    chosen: NDArray[np.bool_]
    classes: int

    def mean_of_rows(self, function: Callable[[Floats, Integers], Floats]) -> Floats:
        """Average a function of the logits over each row.

        Args:
            function: Takes (M, C) logits and the (M,) rows that they belong to, and returns (M, D) numbers.

        Returns:
            (n, D) means; NaN for rows without any logits.
        """
        means: Floats = written(self._means(function))
        return means

    def _means(self, function: Callable[[Floats, Integers], Floats]) -> Iterator[Floats]:
        """Yield the means of the rows of each block, as `mean_of_rows` returns them."""
        for first in range(0, max(1, len(self.chosen)), ROWS_AT_ONCE):
            chosen = self.chosen[first : first + ROWS_AT_ONCE]
            read = self.logits[first : first + ROWS_AT_ONCE] if chosen.any() else []
            parts = [
                one.reshape(-1, self.classes) for one, wanted in zip(read, chosen.tolist(), strict=False) if wanted
            ]
            stacked = np.concatenate([np.zeros((0, self.classes)), *parts])
            rows = np.repeat(np.flatnonzero(chosen), [len(part) for part in parts])
            defined = ~np.isnan(stacked).any(1)
            stacked, rows = stacked[defined], rows[defined]
            counts = np.bincount(rows, minlength=len(chosen)).astype(np.float64)
            values = function(stacked, first + rows)
            sums = [np.bincount(rows, column, len(chosen)) for column in values.T]
            yield np.column_stack(sums) / np.where(counts == 0, np.nan, counts)[:, None]


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
        variance = float(rows.mean(squared_distances(logits, mean)))
        rounding = ROUNDING**2 * float(rows.mean(squared_distances(logits)))
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
        scores = logits - self.mean
        scores /= self.scale
        scores -= scores.max(-1, keepdims=True)
        np.exp(scores, out=scores)
        scores /= scores.sum(-1, keepdims=True)
        return scores

    def squared_changes(self, logits: Floats, others: OtherLogits) -> Floats:
        """Return the mean squared Euclidean distance between standardised probabilities.

        Args:
            logits: (n, C) logits minus their mean over the classes.
            others: Other logits of each row. Logits that differ by at most a rounding error count as equal.

        Returns:
            (n,) means over the other logits of each row; NaN for rows without other logits.
        """

        def squared(changed: Floats, rows: Integers) -> Floats:
            moves = self._moves(logits[rows], changed)
            distances: Floats = (moves**2).sum(1)[:, None]
            return distances

        return others.mean_of_rows(squared)[:, 0]

    def derivatives_of_changes(self, logits: Floats, others: OtherLogits) -> Floats:
        """Return the derivatives of `squared_changes` with respect to each mean and the logarithm of the scale.

        Args:
            logits: (n, C) logits minus their mean over the classes.
            others: Other logits of each row.

        Returns:
            (n, C + 1) derivatives, with the logarithm of the scale last; NaN for rows without other logits.
        """

        def derivatives(changed: Floats, rows: Integers) -> Floats:
            moves = self._moves(logits[rows], changed)
            return 2 * (self._derivatives(changed, moves) - self._derivatives(logits[rows], moves))

        return others.mean_of_rows(derivatives)

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

    def _moves(self, logits: Floats, others: Floats) -> Floats:
        """Return the (M, C) changes of the probabilities between M pairs of logits; 0 for a difference by rounding."""
        distances = ((others - logits) ** 2).sum(1)
        moves = self.probabilities(others) - self.probabilities(logits)
        return np.where((distances <= self.rounding)[:, None], 0.0, moves)

    def _derivatives(self, logits: Floats, direction: Floats) -> Floats:
        """Return (..., C + 1) derivatives of the standardised probabilities, projected on a (..., C) direction."""
        probabilities = self.probabilities(logits)
        along = probabilities * direction
        along = along - probabilities * along.sum(-1, keepdims=True)
        by_scale = (along * (logits - self.mean)).sum(-1, keepdims=True)
        derivatives: Floats = -np.concatenate([along, by_scale], axis=-1) / self.scale
        return derivatives
