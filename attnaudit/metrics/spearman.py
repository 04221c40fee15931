"""Spearman's rank correlation."""

from __future__ import annotations

import numpy as np

from attnaudit.arrays import Floats


def spearman(first: Floats, second: Floats) -> float:
    """Return Spearman's rank correlation ρ of two lists of n numbers; NaN if one of them is constant.

    It is Pearson's correlation of the ranks, where equal numbers have the mean of their ranks (Spearman 1904).

    Examples:
        >>> round(spearman(np.array([1.0, 2.0, 3.0]), np.array([0.1, 0.5, 0.2])), 3)
        0.5
    """
    from scipy.stats import rankdata

    ranks = [rankdata(values) for values in (first, second)]
    centred = [one - one.mean() for one in ranks]
    size = float(np.sqrt((centred[0] ** 2).sum() * (centred[1] ** 2).sum()))
    return float((centred[0] * centred[1]).sum()) / size if size > 0 else float("nan")
