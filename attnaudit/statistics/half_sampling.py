"""Intervals from half samples, for statistics that the duplicates of a bootstrap would bias, as they do information."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from attnaudit.arrays import Floats
from attnaudit.records import Interval
from attnaudit.statistics.groups import Groups
from attnaudit.statistics.interval_estimate import IntervalEstimate, clip
from attnaudit.statistics.intervals import upper_tail

SUBSAMPLES = 400
FEWEST_TO_HALVE = 4


def half_samples(groups: Groups, generator: np.random.Generator) -> list[NDArray[np.int64]]:
    """Positions of the instances of half of the groups, drawn without replacement, many times."""
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
    """Symmetric interval by subsampling half of the groups without replacement (Politis, Romano & Wolf 1999).

    statistic: positions of instances -> value. For statistics that duplicates bias, as they do mutual information.
    None with fewer than four groups, or where a tenth of the half samples leave the statistic undefined.
    """
    if len(groups) < FEWEST_TO_HALVE:
        return None
    found = np.array([statistic(rows) for rows in half_samples(groups, generator)])
    return from_half_samples(found, observed=observed, confidence=confidence, bounds=bounds)


def from_half_samples(
    found: Floats, *, observed: float, confidence: float, bounds: tuple[float, float] = (-np.inf, np.inf)
) -> IntervalEstimate | None:
    """The interval from the (S,) values of half samples. A half sample's deviation has the variance of the whole
    sample's error, so no rescaling is left to do."""
    found = found[np.isfinite(found)]
    if len(found) < 0.9 * SUBSAMPLES:
        return None
    away = np.abs(found - observed)

    def find(asked: float) -> Interval:
        reach = upper_tail(away, 1 - asked)
        low, high = clip(observed - reach, observed + reach, bounds)
        return Interval(low=low, high=high, confidence=asked, method="subsampling of half of the sources")

    return IntervalEstimate(error=float(np.sqrt((away**2).mean())), confidence=confidence, find=find)
