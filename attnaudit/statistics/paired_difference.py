"""The difference between two models on the same instances, and its interval.

Each instance is measured with both models, so the difficulty of an instance affects both values and cancels. The
interval is therefore shorter than for two independent samples.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from attnaudit.arrays import Floats, Integers
from attnaudit.statistics.groups import FEW_GROUPS, Groups
from attnaudit.statistics.interval_estimate import IntervalEstimate, equal_up_to
from attnaudit.statistics.intervals import ratio_interval

#: The kurtosis of a normal distribution.
NORMAL_KURTOSIS = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedDifference:
    """The difference between two models.

    Attributes:
        value: The value of the candidate minus that of the baseline; None if one of the two is undefined.
        interval: The interval of the difference; None if there is none.
        differences: (n,) numbers whose mean is the difference. Instances that count in neither value have NaN. If both
            models have a number for every instance, these are the differences of the two numbers.
    """

    value: float | None
    interval: IntervalEstimate | None
    differences: Floats


def paired_difference(
    candidate: Floats,
    baseline: Floats,
    groups: Groups,
    *,
    confidence: float,
    generator: np.random.Generator,
    bounds: tuple[float, float] = (-np.inf, np.inf),
) -> PairedDifference:
    """Estimate the difference between two means over the same instances, by the studentised bootstrap over sources.

    If an instance has a number for only one of the models, it counts in the mean of that model only. The difference
    therefore always equals the difference between the two reported values.

    Sometimes, most of the variance comes from a few sources, for example if most instances have the same number with
    both models, or if a class is rare. If the variance comes from fewer than 10 sources, the interval uses Student's t
    instead of the bootstrap (see `intervals.ratio_interval`). This number of sources is estimated as 3 (Σ s²)² / Σ s⁴,
    where s is the sum of the deviations from the mean over one source. For normally distributed sums, it is about the
    number of all sources.

    Args:
        candidate: (n,) numbers of the candidate, such as `Check.linearised_values` returns; NaN where undefined.
        baseline: (n,) numbers of the baseline for the same instances in the same order.
        groups: The instances to compare, grouped by source.
        confidence: Nominal confidence of the estimate's `low` and `high`.
        generator: Draws the bootstrap samples.
        bounds: The lowest and the highest possible value of one model. If all differences are equal, the bounds limit
            how much unseen instances could change the result. If they are infinite, the range of the observed numbers
            is used.

    Returns:
        The difference. It has no interval with fewer than two sources, or if all numbers of both models are equal and
        `bounds` are infinite.

    Raises:
        ValueError: The two arrays have different lengths.
    """
    if candidate.shape != baseline.shape:
        raise ValueError(
            f"Expected one number per instance of both models, but got {len(candidate):,} and {len(baseline):,}. Pair "
            "the numbers by the ids of the instances."
        )
    differences = np.full(len(candidate), np.nan)
    rows = groups.rows
    rows = rows[~np.isnan(candidate[rows]) | ~np.isnan(baseline[rows])]
    means = [_mean(numbers[rows]) for numbers in (candidate, baseline)]
    if any(np.isnan(means)):
        return PairedDifference(value=None, interval=None, differences=differences)
    first, second = (
        mean + _influence(numbers[rows], mean) for numbers, mean in zip((candidate, baseline), means, strict=True)
    )
    differences[rows] = first - second
    compared = _only(groups, rows)
    low, high = bounds if np.isfinite(bounds).all() else _range(candidate[rows], baseline[rows])
    extremes = (low - high, high - low) if high > low else (-np.inf, np.inf)
    difference = float(differences[rows].mean())
    tolerance = equal_up_to(difference, extremes)
    equal = float(np.abs(differences[rows] - difference).max()) <= tolerance
    effective = compared.effective if equal else _sources_with_variance(differences, compared)
    interval = ratio_interval(
        differences,
        np.ones_like(differences),
        compared,
        confidence=confidence,
        generator=generator,
        bounds=(bounds[0] - bounds[1], bounds[1] - bounds[0]),
        extremes=extremes,
        effective=effective,
        tolerance=tolerance,
    )
    if interval is not None and effective < FEW_GROUPS <= compared.effective:
        warning = (
            f"only a few of the {len(compared)} sources account for the variance of the difference (effectively about "
            f"{effective:.0f} sources), so the interval may be too narrow"
        )
        interval = replace(interval, coverage_warning=warning)
    return PairedDifference(value=means[0] - means[1], interval=interval, differences=differences)


def _mean(numbers: Floats) -> float:
    """Return the mean of the numbers that are not NaN; NaN if all numbers are NaN."""
    defined = numbers[~np.isnan(numbers)]
    return float(defined.mean()) if len(defined) else float("nan")


def _influence(numbers: Floats, mean: float) -> Floats:
    """Return (n,) influences of the instances on the mean of the numbers that are not NaN; 0 where a number is NaN."""
    defined = ~np.isnan(numbers)
    influence: Floats = np.where(defined, numbers - mean, 0.0) * (len(numbers) / np.count_nonzero(defined))
    return influence


def _only(groups: Groups, rows: Integers) -> Groups:
    """Return the groups restricted to `rows`, which must be in the order of the groups."""
    numbers = np.repeat(np.arange(len(groups)), groups.sizes)[np.isin(groups.rows, rows)]
    return Groups(rows, np.flatnonzero(np.diff(numbers, prepend=-1)))


def _range(*numbers: Floats) -> tuple[float, float]:
    """Return the smallest and the largest of all numbers that are not NaN."""
    together = np.concatenate(numbers)
    return float(np.nanmin(together)), float(np.nanmax(together))


def _sources_with_variance(differences: Floats, groups: Groups) -> float:
    """Return how many sources the variance of the differences comes from.

    It is the effective number of sources if the differences do not vary.
    """
    sums = groups.sums((differences - differences[groups.rows].mean())[:, None])[:, 0]
    fourth = float((sums**4).sum())
    if fourth == 0:
        return groups.effective
    return max(1.0, min(groups.effective, NORMAL_KURTOSIS * float((sums**2).sum()) ** 2 / fourth))
