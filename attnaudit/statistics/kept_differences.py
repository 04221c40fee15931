"""How much of the differences between the outputs of texts stays if the outputs change."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from attnaudit.arrays import Floats
from attnaudit.statistics.balanced_rows import WeightedRows, squared_distances
from attnaudit.statistics.centred_logits import CentredLogits, mean_where_open

#: The tolerance of the factor, as a fraction of its largest possible value.
TOLERANCE = 1e-8
#: A residual counts as 0 if it is at most this fraction of the mean size of the outputs. The factor is not more exact.
ROUNDING = 1e-6


@dataclass(frozen=True)
class KeptDifferences:
    """The share of the differences between outputs that stays: 1 - min_a Σ ‖u - a v‖ / Σ ‖u‖, with 0 ≤ a ≤ 1.

    Here, u is the output of a row minus the weighted mean of the outputs, and v is the same for the changed outputs.
    The sums are weighted. If the outputs differ as before, the value is 1. If all changed outputs are the same, it is
    0. If the differences become larger, but keep their directions and proportions, nothing is lost: the factor a makes
    up for it. Build it with `of`.

    Attributes:
        rows: The rows that count, and their weights.
        outputs: (n_all, C) the vectors u; 0 for classes that are not open.
        kept: (n_all, C) the vectors v; 0 for classes that are not open. NaN for rows that do not count.
        residuals: (n_all, C) the vectors u - a v; 0 for classes that are not open. NaN for rows that do not count.
        factor: The factor a.
        open_classes: (n_all, C) True at the classes that are possible answers for the row; None if all are.
    """

    rows: WeightedRows
    outputs: Floats
    kept: Floats
    residuals: Floats
    factor: float
    open_classes: NDArray[np.bool_] | None = None

    @classmethod
    def of(cls, centred: CentredLogits, changes: Floats, rows: WeightedRows) -> KeptDifferences:
        """Centre the outputs, and choose the factor a.

        Args:
            centred: The outputs. They must vary.
            changes: (n_all, C) changes of the logits minus their mean over the open classes; NaN for rows that do not
                count.
            rows: The rows from which the means and the factor are computed, and their weights. At least one row.
        """
        outputs, is_open = centred.outputs(rows), centred.open_classes
        outputs = outputs - rows.mean(outputs)
        deviations = changes - mean_where_open(changes, rows, is_open)
        if is_open is not None:
            deviations = np.where(is_open, deviations, 0.0)
        kept = outputs + deviations
        factor = _best_factor(outputs, kept, rows)
        residuals = outputs - factor * kept
        least = ROUNDING * float(rows.mean(_lengths(outputs)))
        residuals = np.where((_lengths(residuals) <= least)[:, None], 0.0, residuals)
        return cls(rows, outputs, kept, residuals, factor, is_open)

    @property
    def lost(self) -> Floats:
        """The (n_all,) distances ‖u - a v‖; NaN for rows that do not count."""
        return _lengths(self.residuals)

    @property
    def sizes(self) -> Floats:
        """The (n_all,) distances ‖u‖."""
        return _lengths(self.outputs)

    @property
    def value(self) -> float:
        """The share of the differences that stays."""
        return 1.0 - float(self.rows.mean(self.lost)) / float(self.rows.mean(self.sizes))

    @cached_property
    def terms(self) -> tuple[Floats, Floats]:
        """Numerators and denominators (n_all,) whose weighted sums have the ratio `value`.

        The means and the factor come from the rows, too. The terms contain the influence of each row on the value
        through the means, as a first-order approximation, so that an interval from the terms takes it into account. The
        influence through the factor is 0 to first order, because the factor minimises the sum.
        """
        below = self._with_influence_on_mean(self.outputs, self.sizes)
        return below - self._with_influence_on_mean(self.residuals, self.lost), below

    def _with_influence_on_mean(self, deviations: Floats, distances: Floats) -> Floats:
        """Subtract the derivative of the mean distance with respect to the mean, times the deviation of the row.

        The mean of the result is that of the distances, because the deviations have the mean 0.
        """
        with np.errstate(invalid="ignore", divide="ignore"):
            directions = np.where(distances[:, None] == 0.0, 0.0, deviations / distances[:, None])
        slope = mean_where_open(directions, self.rows, self.open_classes)
        result: Floats = distances - (deviations * slope).sum(1)
        return result


def _lengths(vectors: Floats) -> Floats:
    """Return the (n_all,) Euclidean norms of vectors (n_all, C). Large arrays are read in blocks of rows."""
    lengths: Floats = np.sqrt(squared_distances(vectors))
    return lengths


def _best_factor(outputs: Floats, kept: Floats, rows: WeightedRows) -> float:
    """Return the factor a, 0 ≤ a ≤ 1, that minimises Σ ‖u - a v‖ over the rows.

    Args:
        outputs: (n_all, C) the vectors u.
        kept: (n_all, C) the vectors v.
        rows: The rows, and their weights.
    """
    from scipy.optimize import minimize_scalar

    sizes, products, squares = squared_distances(outputs), (outputs * kept).sum(1), squared_distances(kept)
    length = float(rows.mean(np.sqrt(squares)))
    if not length:
        return 1.0

    def lost(factor: float) -> float:
        distances = sizes - 2 * factor * products + factor**2 * squares
        return float(rows.mean(np.sqrt(np.maximum(distances, 0.0))))

    # A larger factor loses more than the factor 0, by the triangle inequality. The sum is convex in the factor.
    largest = min(1.0, 2 * float(rows.mean(np.sqrt(sizes))) / length)
    search = minimize_scalar(lost, bounds=(0.0, largest), method="bounded", options={"xatol": TOLERANCE * largest})
    return min((largest, 0.0, float(search.x)), key=lost)
