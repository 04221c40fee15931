"""Shares of rows: Wilson's interval, and the effective number of independent rows.

The variance of a share p is p (1 - p) / N, where N is the effective number of independent rows. The variance is
therefore also known for shares that were not observed. `detectable_change` uses this.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from attnaudit.arrays import Floats
from attnaudit.statistics.groups import Groups

#: Because of rounding, numbers of rows may differ from a whole number by this much.
ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class ShareSample:
    """The effective size of a sample from which a share is estimated, and how precisely this size is known.

    Attributes:
        rows: The effective number of independent rows with equal weights.
        freedom: The degrees of freedom of Student's t.
        weighty: The number of sources that the uncertainty of `rows` comes from (see `weighty_sources`). It is infinite
            if all weights are equal, because `rows` is then known exactly.
    """

    rows: float
    freedom: float
    weighty: float = math.inf

    def bounds(self, share: float, confidence: float) -> tuple[float, float]:
        """Return the bounds of the interval around a share (see `wilson`)."""
        from scipy.special import stdtrit

        return wilson(share, self.rows, float(stdtrit(self.freedom, (1 + confidence) / 2)))

    def cautious(self, power: float) -> ShareSample:
        """Return a copy of the sample in which `rows` is replaced by its lower limit at the confidence `power`.

        The variance of the share is proportional to Σ w², where w are the weights of the sources. The lower limit of
        `rows` follows from the upper limit of Σ w², as in `ResampledLimits.reach`.
        """
        from scipy.special import gammaincinv

        if math.isinf(self.weighty):
            return self
        return replace(self, rows=self.rows * self.weighty / float(gammaincinv(self.weighty + 1, power)))

    def chance(self, least: float, true: float) -> float:
        """Return the probability that the share in a sample is at least `least`, if the true share is `true`.

        The number of rows that count follows a binomial distribution. If the effective number of rows is not a whole
        number, the incomplete beta function interpolates between binomial distributions.
        """
        from scipy.special import betainc

        count = math.ceil(self.rows * least - ROUNDING)
        if count <= 0:
            return 1.0
        return 0.0 if count >= self.rows + 1 else float(betainc(count, self.rows - count + 1, true))


def wilson(share: float, rows: float, quantile: float) -> tuple[float, float]:
    """Return the bounds of the interval of a share by Wilson's method (Wilson 1927).

    The interval consists of all shares p with |share - p| ≤ quantile · √(p (1 - p) / rows).

    Args:
        share: The observed share.
        rows: The effective number of independent rows.
        quantile: The two-sided quantile of the normal distribution or of Student's t.
    """
    z2 = quantile**2
    centre = (share + z2 / (2 * rows)) / (1 + z2 / rows)
    half_width = float(np.sqrt(z2 * share * (1 - share) / rows + z2**2 / (4 * rows**2))) / (1 + z2 / rows)
    return max(0.0, min(share, centre - half_width)), min(1.0, max(share, centre + half_width))


def weighty_sources(weights: Floats) -> float:
    """Return the number of sources that the uncertainty of Σ w² comes from: (Σ w²)² / (Σ w⁴ - (Σ w²)² / G).

    This is the inverse of the squared relative standard error of Σ w². It is infinite for equal weights.

    Args:
        weights: (G,) weights of the sources.
    """
    squares = weights**2
    spread = float(((squares - squares.mean()) ** 2).sum())
    total = float(squares.sum()) ** 2
    return total / spread if spread > ROUNDING * total else math.inf


def weighted_share(above: Floats, below: Floats, groups: Groups, *, error: float, freedom: float) -> ShareSample | None:
    """Return the `ShareSample` of the ratio Σ above / Σ below, if the ratio is a weighted share of rows.

    In a weighted share, every numerator is 0 or equals its denominator. The effective number of rows is the smaller of
    two numbers. The first is p (1 - p) / error², where p is the observed share. For other shares, this number is too
    large if the rows of the rarer kind happen to have small weights. The second is Kish's effective sample size (Σ b)²
    / Σ b², where b is the sum of the denominators of a source (Kish 1965). It does not depend on which rows count.

    Args:
        above: (n_all,) numerators.
        below: (n_all,) denominators, which are the weights of the rows.
        groups: The instances to sum over, grouped by source.
        error: The standard error of the ratio; 0 if it is unknown because all rows are of one kind.
        freedom: The degrees of freedom of the error.

    Returns:
        The sample; None if the ratio is not a weighted share.
    """
    numerators, denominators = above[groups.rows], below[groups.rows]
    counted = numerators == denominators
    if not (counted | (numerators == 0)).all() or not (denominators >= 0).all():
        return None
    weights = groups.sums(np.column_stack([above, below]))
    share = float(weights[:, 0].sum() / weights[:, 1].sum())
    rows = float(weights[:, 1].sum() ** 2 / (weights[:, 1] ** 2).sum())
    if error > 0 and 0 < share < 1:
        rows = min(rows, share * (1 - share) / error**2)
    return ShareSample(rows, freedom, weighty_sources(weights[:, 1]))
