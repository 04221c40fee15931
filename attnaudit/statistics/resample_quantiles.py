"""Quantiles of resampled values, extrapolated where there are too few resamples."""

from __future__ import annotations

import numpy as np

from attnaudit.arrays import Floats
from attnaudit.statistics.interval_estimate import normal_quantile

#: A quantile is extrapolated if fewer resamples than this lie beyond it.
TAIL_DRAWS = 5


def upper_tail(values: Floats, tail: float) -> float:
    """Return the upper quantile of resampled values.

    Args:
        values: (S,) values of the resamples.
        tail: The share of values above the quantile. If fewer than 5 values make up this share, the quantile is
            extrapolated from the quantile with 5 values above it, as in a normal distribution.
    """
    least = TAIL_DRAWS / len(values)
    quantile = float(np.quantile(values, 1 - max(tail, least), method="higher"))
    if tail < least and quantile > 0:
        quantile *= normal_quantile(1 - 2 * tail) / normal_quantile(1 - 2 * least)
    return quantile
