"""Probabilities that depend neither on the scale of the logits nor on a bias per class: softmax of standard scores."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from attnaudit.arrays import Floats
from attnaudit.statistics.balanced_rows import WeightedRows

#: Logits do not vary if their standard deviation is at most this share of their size: such differences are rounding.
#: Nor does a text's output change if its logits move by no more.
ROUNDING = 1e-6


@dataclass(frozen=True, slots=True)
class StandardisedLogits:
    """The mean and the scale of centred logits, from which standardised probabilities follow. Build it with `of`.

    Attributes:
        mean: (C,) weighted mean of the centred logits of each class.
        scale: √(V / C), where V is their weighted variance, summed over the classes. Divided by it, each centred logit
            has the variance 1 on average over the classes, and the two logits of two classes differ with standard
            deviation 2.
        rounding: Squared distances between two vectors of logits up to this one are rounding errors.
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

    def squared_change(self, logits: Floats, others: Floats) -> float:
        """Return the mean squared Euclidean distance between standardised probabilities.

        Args:
            logits: (C,) logits minus their mean over the classes.
            others: (K, C) other logits. Those that differ from `logits` by no more than rounding count as equal.
        """
        distances = ((self.probabilities(others) - self.probabilities(logits)) ** 2).sum(1)
        return float(np.where(((others - logits) ** 2).sum(1) <= self.rounding, 0.0, distances).mean())
