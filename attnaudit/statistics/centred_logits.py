"""Logits minus a constant per class and their mean over the open classes, so that a bias per class has no effect."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from attnaudit.arrays import Floats, Integers
from attnaudit.statistics.balanced_rows import WeightedRows, squared_distances

#: Differences of logits count as rounding errors if they are at most this fraction of the size of the logits.
ROUNDING = 1e-6
#: The distance between 1 and the next larger number in float32. If the logits of a class vary by at most this fraction
#: of their size, the class counts as constant: a very large bias leaves only rounding errors of the class.
CLASS_ROUNDING = 2.0**-23
#: A change counts as a rounding error only if it is also at most this fraction of the standard deviation of the logits.
#: Leaving such a change out alters the total-effect index by less than 1e-6, however large a bias is.
NEGLIGIBLE = 1e-3


@dataclass(frozen=True, slots=True)
class CentredLogits:
    """The centred logits of n_all rows. Build them with `of`.

    Attributes:
        values: (n_all, C) logits minus the mean of their class, and then minus their mean over the open classes of the
            row; -inf for classes that are not open.
        class_means: (C,) the mean of each class over the rows in which it is open.
        open_classes: (n_all, C) True at the classes that are possible answers for the row; None if all are.
        rounding: A squared distance between two vectors of centred logits is a rounding error if it is at most this
            number.
        dropped: (n_all, C) the rounding errors that `values` leaves out, of classes that count as constant; None if no
            class does.
    """

    values: Floats
    class_means: Floats
    open_classes: NDArray[np.bool_] | None
    rounding: float
    dropped: Floats | None = None

    @classmethod
    def of(
        cls, logits: Floats, rows: WeightedRows, open_classes: NDArray[np.bool_] | None = None
    ) -> CentredLogits | None:
        """Centre logits.

        Args:
            logits: (n_all, C) logits.
            rows: The rows from which the means of the classes are computed, and their weights.
            open_classes: As in the attributes.

        Returns:
            The centred logits; None if there are no rows, or if their logits do not vary.
        """
        if not len(rows.groups):
            return None
        if open_classes is not None and bool(open_classes.all()):
            open_classes = None
        means = mean_where_open(logits, rows, open_classes)
        deviations = logits - means
        sizes = mean_where_open(logits**2, rows, open_classes)
        constant = mean_where_open(deviations**2, rows, open_classes) <= CLASS_ROUNDING**2 * sizes
        dropped = np.where(constant, deviations, 0.0) if constant.any() else None
        deviations[:, constant] = 0.0
        centred = _minus_mean(deviations, open_classes)
        variances = mean_where_open(centred**2, rows, open_classes)
        if not bool((variances > ROUNDING**2 * sizes).any()):
            return None
        size = float(rows.mean(squared_distances(_minus_mean(logits, open_classes))))
        rounding = min(ROUNDING**2 * size, NEGLIGIBLE**2 * float(rows.mean(squared_distances(centred))))
        if open_classes is not None:
            centred = np.where(open_classes, centred, -np.inf)
        return cls(centred, means, open_classes, rounding, dropped)

    def like(self, others: Floats, rows: Integers) -> Floats:
        """Subtract from other logits of some rows what was subtracted from the logits of these rows.

        Args:
            others: (M, C) logits minus their mean over the open classes of the row.
            rows: (M,) the row that each of them belongs to.

        Returns:
            (M, C) logits that can be compared with `values`; -inf for classes that are not open.
        """
        is_open = None if self.open_classes is None else self.open_classes[rows]
        subtracted = self.class_means if self.dropped is None else self.class_means + self.dropped[rows]
        found: Floats = others - _minus_mean(np.broadcast_to(subtracted, others.shape), is_open)
        return found if is_open is None else np.where(is_open, found, -np.inf)

    def outputs(self, rows: WeightedRows) -> Floats:
        """Return the (n_all, C) values. Classes that are not open in a row have the mean of the class.

        These entries then add nothing to the variance of their class.
        """
        if self.open_classes is None:
            return self.values
        finite = np.where(self.open_classes, self.values, 0.0)
        return np.where(self.open_classes, finite, mean_where_open(finite, rows, self.open_classes))


def mean_where_open(values: Floats, rows: WeightedRows, open_classes: NDArray[np.bool_] | None) -> Floats:
    """Return the (C,) weighted means of values (n_all, C) over the rows in which each class is open.

    The mean of a class that is never open is 0.
    """
    if open_classes is None:
        return rows.mean(values)
    shares = rows.mean(open_classes.astype(np.float64))
    return rows.mean(np.where(open_classes, values, 0.0)) / np.where(shares > 0, shares, 1.0)


def _minus_mean(values: Floats, open_classes: NDArray[np.bool_] | None) -> Floats:
    """Subtract from values (n, C) their mean over the open classes of the row; 0 at the other classes."""
    if open_classes is None:
        centred: Floats = values - values.mean(1, keepdims=True)
        return centred
    kept = np.where(open_classes, values, 0.0)
    means = kept.sum(1, keepdims=True) / np.maximum(open_classes.sum(1, keepdims=True), 1)
    return np.where(open_classes, values - means, 0.0)
