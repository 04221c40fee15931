"""Confidence intervals of means, ratios, medians, proportions and smooth functions of sums.

The unit of sampling is the source: the instances of one source are always drawn together. A seeded generator makes
every interval reproducible. The script benchmarks/coverage.py measures by simulation how often each kind of interval
contains the true value.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from attnaudit.arrays import Floats, Integers
from attnaudit.disk_arrays.filed_arrays import filled, written
from attnaudit.records import Interval
from attnaudit.statistics.bootstrap_samples import Statistic, resampled
from attnaudit.statistics.groups import (
    FEW_GROUPS,
    Groups,
    few_sources_warning,
    jackknife_error,
    leverage,
    mean_error,
    narrow_interval_warning,
    rows_without_copies,
)
from attnaudit.statistics.interval_estimate import (
    IntervalEstimate,
    clip,
    equal_up_to,
    normal_quantile,
    point,
    tilting_slope,
)
from attnaudit.statistics.resample_quantiles import upper_tail
from attnaudit.statistics.resampled_limits import ResampledLimits
from attnaudit.statistics.shares import ShareSample, weighted_share

#: The number of pseudo-sources that `linearised_interval` adds.
PSEUDO_SOURCES = 2.0
#: The step of the numerical derivative in `linearised_interval`, as a fraction of a row.
STEP = 1e-3
#: A quantile of the studentised bootstrap is at most this many times that of Student's t.
WIDEST = 4.0
#: The denominator of a ratio must be more than this many standard errors above 0.
CLEARLY_POSITIVE = 4.0
#: Sums over groups up to this share of the spread of their rows count as rounding errors.
ROUNDING = 1e-12


def mean_interval(
    values: Floats,
    groups: Groups,
    *,
    confidence: float,
    generator: np.random.Generator,
    bounds: tuple[float, float] = (-np.inf, np.inf),
) -> IntervalEstimate | None:
    """Estimate the interval of a mean by the studentised bootstrap (see `ratio_interval`).

    Args:
        values: (n_all,) values.
        groups: The instances to average over, grouped by source.
        confidence: Nominal confidence of the estimate's `low` and `high`.
        generator: Draws the bootstrap samples.
        bounds: The lowest and the highest possible value.

    Returns:
        The interval; None with fewer than two groups, or if all groups have the same mean and `bounds` are infinite.
    """
    return ratio_interval(
        values, np.ones_like(values), groups, confidence=confidence, generator=generator, bounds=bounds, extremes=bounds
    )


def ratio_interval(
    above: Floats,
    below: Floats,
    groups: Groups,
    *,
    confidence: float,
    generator: np.random.Generator,
    bounds: tuple[float, float] = (-np.inf, np.inf),
    extremes: tuple[float, float] = (-np.inf, np.inf),
    effective: float | None = None,
    freedom: float | None = None,
    tolerance: float = 0.0,
) -> IntervalEstimate | None:
    """Estimate the interval of Σ above / Σ below by the studentised bootstrap (Davison & Hinkley 1997, §5.2).

    Groups are resampled with replacement. The standard error is estimated by the delete-one-group jackknife. Unlike a
    normal interval, the interval is asymmetric for skewed values. With fewer than 10 effective groups, the interval
    uses Student's t instead of the bootstrap. The degrees of freedom are the effective number of groups minus 1, but at
    least 1.

    If every row (instance) has the same ratio, or a ratio of 0 up to rounding, resamples vary by rounding at most. The
    interval then allows for rows that the sample may have missed, with numerators at `extremes` (see
    `_unvaried_interval`).

    Args:
        above: (n_all,) numerators.
        below: (n_all,) denominators.
        groups: The instances to sum over, grouped by source.
        confidence: Nominal confidence of the estimate's `low` and `high`.
        generator: Draws the bootstrap samples.
        bounds: The lowest and the highest possible ratio.
        extremes: The lowest and the highest possible numerator of a row whose denominator is 1.
        effective: The effective number of groups, if rows have weights; None if all rows have the same weight.
        freedom: The degrees of freedom of the standard error; None for the effective number of groups minus 1.
        tolerance: How far the ratios of rows may be from the ratio of all rows and still count as the same.

    Returns:
        The interval, or None in three cases: there are fewer than two groups; all groups have the same ratio and
        `extremes` are infinite; or the sum of the denominators is at most 4 standard errors above 0, so the ratio could
        have any value.
    """
    from scipy.special import stdtrit

    count = len(groups)
    if count < 2:
        return None
    effective = groups.effective if effective is None else effective
    freedom = max(1.0, effective - 1 if freedom is None else freedom)
    parts = _sums_of_two(above, below, groups)
    total = parts.sum(0)
    error = jackknife_error(parts[:, 1] - total[1] * groups.sizes / len(groups.rows), parts[:, 1])
    del parts
    if total[1] <= CLEARLY_POSITIVE * error:
        return None
    ratio = float(total[0] / total[1])
    is_share = extremes == (0.0, 1.0)
    mean = float(below[groups.rows].mean())
    sums = filled((count, 5), 0.0)
    base = sums[:, :2]
    base[:] = _sums_of_two(above, below, groups, ratio)
    # Rows may differ although every source has the same ratio. Their spread then has no effect on the standard error.
    numerators, residuals = above[groups.rows], (above - ratio * below)[groups.rows]
    same_in_sources = float(np.abs(base[:, 0]).max()) <= ROUNDING * float(np.ptp(residuals)) * int(groups.sizes.max())
    same = np.ptp(numerators) == np.ptp(below[groups.rows]) == 0 or np.abs(residuals).max() <= mean * tolerance
    # A value that should be 0 is a difference of equal numbers: whether it is exactly 0 depends on the processor.
    if same_in_sources or same or np.abs(numerators).max() <= mean * equal_up_to(0.0, extremes):
        unvaried = _unvaried_interval(
            ratio, mean, groups, effective, confidence=confidence, bounds=bounds, extremes=extremes
        )
        share = weighted_share(above, below, groups, error=0.0, freedom=freedom) if is_share else None
        return replace(unvaried, share=share) if unvaried else None
    del numerators, residuals
    factors = leverage(base[:, 1])
    for column, (one, other) in zip(sums[:, 2:].T, ((0, 0), (0, 1), (1, 1)), strict=True):
        np.multiply(base[:, one] * base[:, other], factors, out=column)
    del factors

    def centre_and_error(totals: Floats) -> tuple[Floats, Floats]:
        """Compute, for each resample, the ratio minus the observed ratio, and the standard error of the ratio."""
        s, size, ss, sn, nn = totals.T
        size = np.maximum(size, 1e-300)
        centre = s / size
        estimate = np.maximum(ss - 2 * centre * sn + centre**2 * nn, 0.0)
        return centre, np.sqrt(estimate * (count - 1) / count) / size

    error = float(centre_and_error(sums.sum(0)[None])[1][0])
    coverage_warning = narrow_interval_warning(
        (above - ratio * below)[groups.rows], groups, min(effective, freedom + 1)
    )
    share = weighted_share(above, below, groups, error=error, freedom=freedom) if is_share else None
    del above, below  # they need not be in memory while samples are drawn

    with np.errstate(over="ignore", invalid="ignore"):
        centres, errors = resampled(lambda totals: np.column_stack(centre_and_error(totals)), sums, generator).T
        t = np.where(
            errors > 1e-9 * error,
            centres / np.maximum(errors, 1e-300),
            np.where(centres == 0, 0.0, np.sign(centres) * np.inf),
        )
    bootstrapped = freedom + 1 >= FEW_GROUPS

    def quantile(level: float, upper: bool) -> float:
        """Return the distance of a limit of the interval from the ratio, in standard errors."""
        tail = (1 - level) / 2
        student = float(stdtrit(freedom, 1 - tail))
        # A resample of nearly equal values has a standard error near 0, so its t can be arbitrarily large.
        return min(upper_tail(-t if upper else t, tail), WIDEST * student) if bootstrapped else student

    def interval_at(level: float) -> Interval:
        low, high = clip(ratio - quantile(level, False) * error, ratio + quantile(level, True) * error, bounds)
        method = "studentised bootstrap over sources" if bootstrapped else "Student's t over sources"
        return Interval(low=low, high=high, confidence=level, method=method)

    def unseen(level: float, upper: bool) -> float:
        """Return how far a limit of the interval is from the ratio, for a sample in which every row has this ratio."""
        unvaried = _unvaried_interval(
            ratio, mean, groups, groups.effective, confidence=level, bounds=(-np.inf, np.inf), extremes=extremes
        )
        return np.inf if unvaried is None else unvaried.high - ratio if upper else ratio - unvaried.low

    limits = ResampledLimits(
        error=error,
        centres=centres,
        errors=errors,
        sources=float((base[:, 0] ** 2).sum() ** 2 / (base[:, 0] ** 4).sum()),
        quantile=quantile,
        unseen=unseen,
    )
    return IntervalEstimate(
        error=error,
        confidence=confidence,
        interval_at=interval_at,
        coverage_warning=coverage_warning,
        slope=tilting_slope(base * count / total[1]),
        limits=limits,
        share=share,
    )


def _sums_of_two(above: Floats, below: Floats, groups: Groups, ratio: float | None = None) -> Floats:
    """Return the (G, 2) sums over groups of `above` and `below`; with a ratio, of above - ratio · below and `below`."""

    def columns(rows: Integers) -> Floats:
        one, other = above[rows], below[rows]
        return np.column_stack([one if ratio is None else one - ratio * other, other])

    return groups.sums_of(columns, 2)


def _unvaried_interval(
    ratio: float,
    mean: float,
    groups: Groups,
    size: float,
    *,
    confidence: float,
    bounds: tuple[float, float],
    extremes: tuple[float, float],
) -> IntervalEstimate | None:
    """Estimate the interval of a ratio that is the same in every group.

    The sample may have missed groups with other ratios. Their share is assumed to be t² / (G + t²), where G is the
    effective number of groups and t is the quantile of Student's t. This is the upper limit of Wilson (1927) for the
    share of an event that does not occur in the sample. At each bound of the interval, this share of rows lies at one
    of the extremes.

    Args:
        ratio: The ratio of every group.
        mean: The mean of the denominators.
        groups: The instances, grouped by source.
        size: The effective number of groups.
        confidence: Nominal confidence of the estimate's `low` and `high`.
        bounds: The lowest and the highest possible ratio.
        extremes: The lowest and the highest possible numerator of a row whose denominator is 1.

    Returns:
        The interval; None if the extremes are infinite.
    """
    from scipy.special import stdtrit

    if not np.isfinite(extremes).all():
        return None
    freedom = max(1.0, size - 1)

    def interval_at(level: float) -> Interval:
        z2 = float(stdtrit(freedom, (1 + level) / 2)) ** 2
        missed = z2 / (size + z2)
        low, high = (((1 - missed) * ratio * mean + missed * end) / ((1 - missed) * mean + missed) for end in extremes)
        low, high = clip(min(low, ratio), max(high, ratio), bounds)
        return Interval(
            low=low, high=high, confidence=level, method="all values are equal; Wilson limit for unseen values"
        )

    nominal = interval_at(confidence)
    return IntervalEstimate(
        error=(nominal.high - nominal.low) / (2 * normal_quantile(confidence)),
        confidence=confidence,
        interval_at=interval_at,
        coverage_warning=few_sources_warning(groups, size),
    )


def median_interval(values: Floats, groups: Groups, *, confidence: float) -> IntervalEstimate | None:
    """Estimate the interval of a median by Woodruff's method (Woodruff 1952).

    First, the method computes an interval for the share of values below the median, by Student's t. Then, it returns
    the quantiles of the values at the two ends of this interval, rounded outwards to observed values. The standard
    error of the share is estimated over groups. It is never smaller than it would be for independent instances, of
    which copies count once (see `rows_without_copies`).

    Args:
        values: (n_all,) values.
        groups: The instances, grouped by source.
        confidence: Nominal confidence of the estimate's `low` and `high`.

    Returns:
        The interval; None with fewer than two groups.
    """
    from scipy.special import stdtrit

    if len(groups) < 2:
        return None
    ordered = np.sort(values[groups.rows])
    median, size = float(np.median(ordered)), len(ordered)
    if ordered[0] == ordered[-1]:
        return point(median, confidence, "all values are equal")
    # Values that are equal to the median can count as below it, as not below it, or as half. Counting half keeps the
    # share at one half, but can make its error too small. Therefore, the error is the largest of four: those of the
    # three counts, and the error of independent rows.
    shares = (values < median, values <= median, np.where(values == median, 0.5, values < median))
    independent = 0.5 / float(np.sqrt(rows_without_copies(values, groups)))
    error = max(independent, *(mean_error(share.astype(np.float64), groups) for share in shares))
    freedom = max(1.0, groups.effective - 1)

    def interval_at(level: float) -> Interval:
        half_width = float(stdtrit(freedom, (1 + level) / 2)) * error
        low = ordered[max(0, int(np.floor(size * (0.5 - half_width))))]
        high = ordered[min(size - 1, int(np.ceil(size * (0.5 + half_width))) - 1)]
        return Interval(low=float(low), high=float(high), confidence=level, method="Woodruff interval over sources")

    nominal = interval_at(confidence)
    return IntervalEstimate(
        error=(nominal.high - nominal.low) / (2 * normal_quantile(confidence)),
        confidence=confidence,
        interval_at=interval_at,
        coverage_warning=few_sources_warning(groups),
    )


def proportion_interval(values: Floats, groups: Groups, *, confidence: float) -> IntervalEstimate | None:
    """Estimate the interval of a proportion by Wilson's method (Wilson 1927), with Student's t.

    The method needs the number of independent observations. This number is p (1 - p) / error², but at most n, in which
    copies count once (see `rows_without_copies`). Here, p is the proportion, and error is its standard error over
    groups. If fewer than 10 groups contain the rarer value, the similarity of the instances within a group cannot be
    estimated. The number is then at most the effective number of groups.

    Args:
        values: (n_all,) zeros and ones.
        groups: The instances, grouped by source.
        confidence: Nominal confidence of the estimate's `low` and `high`.

    Returns:
        The interval; None with fewer than two groups.
    """
    if len(groups) < 2:
        return None
    share = float(values[groups.rows].mean())
    effective = groups.effective
    if 0 < share < 1:
        size, estimate = rows_without_copies(values, groups), mean_error(values, groups) ** 2
        effective = min(size, share * (1 - share) / estimate) if estimate > 0 else size
        rarer = values if share <= 0.5 else 1 - values
        if np.count_nonzero(groups.sums(rarer[:, None])) < FEW_GROUPS:
            effective = min(effective, groups.effective)
    sample = ShareSample(effective, max(1.0, groups.effective - 1))

    def interval_at(level: float) -> Interval:
        low, high = sample.bounds(share, level)
        return Interval(low=low, high=high, confidence=level, method="Wilson interval over sources")

    nominal = interval_at(confidence)
    middle = (nominal.low + nominal.high) / 2
    return IntervalEstimate(
        error=float(np.sqrt(middle * (1 - middle) / effective)),
        confidence=confidence,
        interval_at=interval_at,
        coverage_warning=few_sources_warning(groups),
        share=sample,
    )


def linearised_interval(
    statistic: Statistic,
    columns: Callable[[Integers], Floats],
    groups: Groups,
    *,
    pseudo: Floats,
    confidence: float,
    bounds: tuple[float, float] = (-np.inf, np.inf),
) -> IntervalEstimate | None:
    """Estimate the interval of a smooth function of sums, such as F1, by linearisation.

    The standard error is computed from the numerical derivative of the statistic, by the delete-one-group jackknife.
    The interval uses Student's t.

    Two pseudo-sources are added to the data, as in the adjusted interval of a difference of paired proportions (Agresti
    & Min 2005; Bonett & Price 2012). Without them, the interval would have width 0 if no instance in the sample changed
    the statistic. A bootstrap does not solve this problem: if instances that change the statistic are rare, bootstrap
    intervals are far too narrow.

    All rows of a pseudo-source are drawn together. A pseudo-source of m rows, each of which has the derivative d, adds
    (m d)² to the variance, not m d². The interval therefore stays the same if every row of a source is repeated.

    Args:
        statistic: Computes (b,) values from (b, D) totals, which are sums of `columns`.
        columns: Takes (m,) positions of instances, and returns their (m, D) numbers.
        groups: The instances to sum over, grouped by source.
        pseudo: (P, D) rows of the pseudo-sources. Together, the rows have the weight of two sources of average size.
        confidence: Nominal confidence of the estimate's `low` and `high`.
        bounds: The lowest and the highest possible value.

    Returns:
        The interval; None with fewer than two groups, or if the statistic is undefined.
    """
    from scipy.special import stdtrit

    count = len(groups)
    if count < 2:
        return None
    width = pseudo.shape[1]
    without_pseudo = groups.totals_of(columns, width)
    observed = float(statistic(without_pseudo[None])[0])
    sizes = groups.sizes.astype(np.float64)
    weight = PSEUDO_SOURCES * float((sizes**2).sum() / sizes.sum())
    total = without_pseudo + weight * pseudo.mean(0)

    def derivative(rows: Floats) -> Floats:
        """Return the derivative of the statistic in the direction of each row."""
        part = rows * STEP
        return (statistic(total + part) - statistic(total - part)) / (2 * STEP)

    value = float(statistic(total[None])[0])
    derivatives = written(derivative(part.sums_of(columns, width)) for part in groups.parts())
    variance = jackknife_error(derivatives, sizes) ** 2
    variance += weight * (weight / PSEUDO_SOURCES) * float((derivative(pseudo) ** 2).mean())
    if not np.isfinite([observed, value, variance]).all():
        return None
    error, freedom = float(np.sqrt(variance)), max(1.0, groups.effective - 1)

    def interval_at(level: float) -> Interval:
        half_width = float(stdtrit(freedom, (1 + level) / 2)) * error
        low, high = clip(min(observed, value - half_width), max(observed, value + half_width), bounds)
        return Interval(
            low=low, high=high, confidence=level, method="linearisation over sources, with two pseudo-sources"
        )

    return IntervalEstimate(
        error=error, confidence=confidence, interval_at=interval_at, coverage_warning=few_sources_warning(groups)
    )
