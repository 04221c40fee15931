"""Intervals from random halves of the sources.

Duplicates bias some statistics: mutual information, for example, becomes larger. Bootstrap samples contain duplicates,
but half samples contain none.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from attnaudit.arrays import Floats
from attnaudit.records import Interval
from attnaudit.statistics.groups import Groups
from attnaudit.statistics.interval_estimate import IntervalEstimate, clip
from attnaudit.statistics.resample_quantiles import upper_tail

SUBSAMPLES = 400
#: With fewer groups than this, there is no interval.
FEWEST_TO_HALVE = 4
#: The statistic must be defined on at least this fraction of the half samples.
DEFINED_SHARE = 0.9


def half_samples(groups: Groups, generator: np.random.Generator) -> list[NDArray[np.int64]]:
    """Draw half of the groups without replacement, 400 times.

    Returns:
        400 arrays, one per half sample, with the positions of its instances among all instances.
    """
    parts = np.split(groups.rows, groups.starts[1:])
    count = len(groups)
    return [
        np.concatenate([parts[g] for g in np.sort(generator.permutation(count)[: count // 2])])
        for _ in range(SUBSAMPLES)
    ]


def subsampling_interval(
    statistic: Callable[[NDArray[np.int64]], float],
    groups: Groups,
    *,
    observed: float,
    confidence: float,
    generator: np.random.Generator,
    bounds: tuple[float, float] = (-np.inf, np.inf),
) -> IntervalEstimate | None:
    """Estimate a symmetric interval by subsampling half of the groups (Politis, Romano & Wolf 1999).

    Args:
        statistic: Takes the positions of instances, and returns the value on them; NaN if it is undefined.
        groups: The instances, grouped by source.
        observed: The value on all instances of `groups`.
        confidence: Nominal confidence of the estimate's `low` and `high`.
        generator: Draws the half samples.
        bounds: The lowest and the highest possible value.

    Returns:
        The interval; None with fewer than 4 groups, or if the value is undefined in over a tenth of the half samples.
    """
    if len(groups) < FEWEST_TO_HALVE:
        return None
    values = np.array([statistic(rows) for rows in half_samples(groups, generator)])
    return from_half_samples(values, observed=observed, confidence=confidence, bounds=bounds)


def from_half_samples(
    values: Floats, *, observed: float, confidence: float, bounds: tuple[float, float] = (-np.inf, np.inf)
) -> IntervalEstimate | None:
    """Estimate a symmetric interval from the values of half samples.

    The deviation of a half sample from the observed value has the same variance as the deviation of the observed value
    from the true value. Therefore, it is used without rescaling.

    Args:
        values: (400,) values of the statistic on the half samples; NaN where undefined.
        observed: The value on the whole sample.
        confidence: Nominal confidence of the estimate's `low` and `high`.
        bounds: The lowest and the highest possible value.

    Returns:
        The interval; None if over a tenth of the values are undefined.
    """
    values = values[np.isfinite(values)]
    if len(values) < DEFINED_SHARE * SUBSAMPLES:
        return None
    deviations = np.abs(values - observed)

    def interval_at(level: float) -> Interval:
        half_width = upper_tail(deviations, 1 - level)
        low, high = clip(observed - half_width, observed + half_width, bounds)
        return Interval(low=low, high=high, confidence=level, method="subsampling of half of the sources")

    return IntervalEstimate(
        error=float(np.sqrt((deviations**2).mean())), confidence=confidence, interval_at=interval_at
    )
