"""The softmax of standardised logits, which depends neither on the scale of the logits nor on a bias per class.

A class that is not a possible answer for a row has the logit -inf. Such entries have the probability 0, and count in no
mean and in no variance.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from attnaudit.arrays import Floats, Integers
from attnaudit.disk_arrays.filed_arrays import written
from attnaudit.statistics.balanced_rows import WeightedRows
from attnaudit.statistics.centred_logits import ROUNDING, CentredLogits, mean_where_open

#: The number of rows whose other logits are in memory at once.
ROWS_AT_ONCE = 256


@dataclass(frozen=True, slots=True)
class OtherLogits:
    """The logits that some rows have under other attention weights. Only a block of rows is in memory at once.

    Attributes:
        logits: n arrays of K · C numbers, one array per row. Each array contains the logits of the row under K
            different attention weights, minus their mean over the open classes. Logits with a NaN are left out.
        chosen: (n,) True at the rows whose logits are read.
        classes: C, the number of classes.
        centred: The centred logits that the others are compared with; None if the means of the classes stay.
    """

    logits: Sequence[Floats]
    chosen: NDArray[np.bool_]
    classes: int
    centred: CentredLogits | None = None

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
            if self.centred is not None:
                stacked = self.centred.like(stacked, first + rows)
            counts = np.bincount(rows, minlength=len(chosen)).astype(np.float64)
            values = function(stacked, first + rows)
            sums = [np.bincount(rows, column, len(chosen)) for column in values.T]
            yield np.column_stack(sums) / np.where(counts == 0, np.nan, counts)[:, None]


@dataclass(frozen=True, slots=True)
class StandardisedLogits:
    """The mean and the scale of centred logits. They determine standardised probabilities. Build it with `of`.

    Attributes:
        mean: (C,) weighted mean of the centred logits of each class.
        scale: √(V / C), where V is the weighted variance of the centred logits, summed over the classes, and C is the
            mean number of open classes. Logits that are divided by the scale have variance 1 on average over the
            classes. With two classes, the difference between the two logits has standard deviation 2.
        rounding: A squared distance between two vectors of logits is a rounding error if it is at most this number.
        shares: (C,) weighted share of the rows in which each class is open.
    """

    mean: Floats
    scale: float
    rounding: float
    shares: Floats

    @classmethod
    def of(cls, logits: Floats, rows: WeightedRows, rounding: float | None = None) -> StandardisedLogits | None:
        """Estimate the mean and the scale.

        Args:
            logits: (n_all, C) logits minus their mean over the classes.
            rows: The rows to estimate from, and their weights.
            rounding: As in the attributes. If None, differences of at most 1e-6 of the size of the logits are rounding
                errors, and logits whose standard deviation is at most this fraction do not vary.

        Returns:
            The mean and the scale; None if there are no rows, or if their logits do not vary.
        """
        if not len(rows.groups):
            return None
        is_open = np.isfinite(logits)
        open_classes = None if is_open.all() else is_open
        shares = np.ones(logits.shape[1]) if open_classes is None else rows.mean(is_open.astype(np.float64))
        mean = mean_where_open(logits, rows, open_classes)
        variance = float(rows.mean((_finite(logits - mean) ** 2).sum(1)))
        least = ROUNDING**2 * float(rows.mean((_finite(logits) ** 2).sum(1))) if rounding is None else rounding
        if variance <= least:
            return None
        return cls(mean, float(np.sqrt(variance / shares.sum())), least, shares)

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
        deviations = _finite(logits - self.mean)
        number = float(self.shares.sum())
        relative = (deviations**2).sum(1) / (number * self.scale**2) - np.isfinite(logits).sum(1) / number
        return np.column_stack([deviations / np.where(self.shares > 0, self.shares, 1.0), relative / 2])

    def _moves(self, logits: Floats, others: Floats) -> Floats:
        """Return the (M, C) changes of the probabilities between M pairs of logits; 0 for a difference by rounding."""
        distances = (_difference(others, logits) ** 2).sum(1)
        moves = self.probabilities(others) - self.probabilities(logits)
        return np.where((distances <= self.rounding)[:, None], 0.0, moves)

    def _derivatives(self, logits: Floats, direction: Floats) -> Floats:
        """Return (..., C + 1) derivatives of the standardised probabilities, projected on a (..., C) direction."""
        probabilities = self.probabilities(logits)
        along = probabilities * direction
        along = along - probabilities * along.sum(-1, keepdims=True)
        by_scale = (along * _finite(logits - self.mean)).sum(-1, keepdims=True)
        derivatives: Floats = -np.concatenate([along, by_scale], axis=-1) / self.scale
        return derivatives


def _finite(logits: Floats) -> Floats:
    """Replace -inf, the logit of a class that is not open, by 0."""
    return np.where(np.isneginf(logits), 0.0, logits)


def _difference(first: Floats, second: Floats) -> Floats:
    """Return the difference of logits; 0 for classes that are not open in the second ones."""
    return _finite(first) - _finite(second)
