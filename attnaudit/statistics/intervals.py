"""Seeded confidence intervals over instances; rows that share a source are resampled together.

How often each kind of interval holds the true value is measured by benchmarks/coverage.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from attnaudit.arrays import Floats
from attnaudit.records import Interval
from attnaudit.statistics.groups import FEW_GROUPS, Groups, few_sources, jackknife_error, leverage, share_error
from attnaudit.statistics.interval_estimate import IntervalEstimate, clip, normal_reach, point

RESAMPLES = 4000
#: A tail with fewer draws than this is extended from the last one that has as many.
TAIL_DRAWS = 5
#: Of `linearised_interval`: how many sources are added, and the step of the derivative, in rows.
PSEUDO_SOURCES = 2.0
STEP = 1e-3
#: Where benchmarks/coverage.md finds intervals of means short: skewness beyond the one, sources below the other.
SKEWED = 2.0
SOURCES_OF_SKEWED = 500
#: How many times Student's reach a studentised one may have.
WIDEST = 4.0
#: Standard errors by which the sum below a ratio must exceed 0.
CLEARLY = 4.0
CHUNK = 4_000_000

Statistic = Callable[[Floats], Floats]


def upper_tail(values: Floats, tail: float) -> float:
    """The quantile that `tail` of the values lie beyond; past the last few draws it grows as a normal tail does."""
    least = TAIL_DRAWS / len(values)
    found = float(np.quantile(values, 1 - max(tail, least), method="higher"))
    if tail < least and found > 0:
        found *= normal_reach(1 - 2 * tail) / normal_reach(1 - 2 * least)
    return found


def _draws(groups: int, generator: np.random.Generator) -> Iterator[Floats]:
    """Blocks of (b, G) counts: how often each group is drawn in a bootstrap sample of G groups."""
    step = max(1, CHUNK // groups)
    for start in range(0, RESAMPLES, step):
        size = min(step, RESAMPLES - start)
        drawn = generator.integers(0, groups, (size, groups)) + groups * np.arange(size)[:, None]
        counts = np.bincount(drawn.ravel(), minlength=size * groups).reshape(size, groups)
        yield counts.astype(np.float64)


def _resampled(statistic: Statistic, sums: Floats, generator: np.random.Generator) -> Floats:
    return np.concatenate([statistic(block @ sums) for block in _draws(len(sums), generator)])


def mean_interval(
    values: Floats,
    groups: Groups,
    *,
    confidence: float,
    generator: np.random.Generator,
    bounds: tuple[float, float] = (-np.inf, np.inf),
) -> IntervalEstimate | None:
    """Interval of the mean of `values` (n_all,), which lie within `bounds`, over the rows of `groups`; None with fewer
    than two groups.

    As `ratio_interval`, with the number of rows below the line.
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
) -> IntervalEstimate | None:
    """Interval of sum(above) / sum(below), both (n_all,), over the rows of `groups`.

    The studentised bootstrap (bootstrap-t; Davison & Hinkley 1997, 5.2) with the delete-one-group jackknife's standard
    error of a ratio: it follows skewed values where a normal interval does not. Where the groups weigh as few as fewer
    than 10 of equal size, Student's t on that number less one. bounds: of the ratio. extremes: the least and the
    largest that one row may have above, with 1 below; where all rows have the same ratio, rows that were not drawn may
    still have those (see `_all_alike`). None with fewer than two groups, where all rows are alike and nothing is known
    of extremes, or where the sum below is not clearly above 0 (less than 4 standard errors): a ratio to it may be
    anything.
    """
    from scipy.special import stdtrit

    count = len(groups)
    if count < 2:
        return None
    parts = groups.sums(np.column_stack([above, below]))
    total = parts.sum(0)
    error = jackknife_error(parts[:, 1] - total[1] * groups.sizes / len(groups.rows), parts[:, 1])
    if total[1] <= CLEARLY * error:
        return None
    ratio = float(total[0] / total[1])
    kept = above[groups.rows]
    if np.ptp(kept - ratio * below[groups.rows]) == 0 or (np.ptp(kept) == 0 and np.ptp(below[groups.rows]) == 0):
        mean = float(below[groups.rows].mean())
        return _all_alike(ratio, mean, groups, confidence=confidence, bounds=bounds, extremes=extremes)
    base = groups.sums(np.column_stack([above - ratio * below, below]))
    squares = np.column_stack([base[:, 0] ** 2, base[:, 0] * base[:, 1], base[:, 1] ** 2])
    sums = np.column_stack([base, squares * leverage(base[:, 1])[:, None]])

    def centre_and_error(totals: Floats) -> tuple[Floats, Floats]:
        s, size, ss, sn, nn = totals.T
        size = np.maximum(size, 1e-300)
        centre = s / size
        estimate = np.maximum(ss - 2 * centre * sn + centre**2 * nn, 0.0)
        return centre, np.sqrt(estimate * (count - 1) / count) / size

    error = float(centre_and_error(sums.sum(0)[None])[1][0])

    def studentised(totals: Floats) -> Floats:
        centre, own = centre_and_error(totals)
        moved = np.sign(centre) * np.inf
        return np.where(own > 1e-9 * error, centre / np.maximum(own, 1e-300), np.where(centre == 0, 0.0, moved))

    t = np.empty(0)
    if groups.effective >= FEW_GROUPS:
        with np.errstate(over="ignore", invalid="ignore"):
            t = _resampled(studentised, sums, generator)
    freedom = max(1.0, groups.effective - 1)

    def find(asked: float) -> Interval:
        tail = (1 - asked) / 2
        down = up = float(stdtrit(freedom, 1 - tail))
        method = "Student's t over sources"
        if len(t):
            # Resamples of nearly equal values have hardly an error of their own, and a t without limit.
            down, up = (min(upper_tail(side, tail), WIDEST * down) for side in (t, -t))
            method = "studentised bootstrap over sources"
        low, high = clip(ratio - down * error, ratio + up * error, bounds)
        return Interval(low=low, high=high, confidence=asked, method=method)

    caution = _caution((above - ratio * below)[groups.rows], groups)
    return IntervalEstimate(error=error, confidence=confidence, find=find, caution=caution)


def _caution(residuals: Floats, groups: Groups) -> str:
    """What measured coverage says against an interval of a mean of such values, or nothing."""
    few, sources = few_sources(groups), len(groups)
    if few:
        return f"{few}: with so few, a 95% interval of skewed values was measured to hold the truth in 91% of samples"
    skewness = float((residuals**3).mean() / max(float((residuals**2).mean()) ** 1.5, 1e-300))
    if abs(skewness) <= SKEWED or sources >= SOURCES_OF_SKEWED:
        return ""
    return (
        f"the values are strongly skewed (skewness {skewness:.1f}): with fewer than {SOURCES_OF_SKEWED} sources a 95% "
        "interval of such a mean was measured to hold the truth in as few as 90% of samples"
    )


def _all_alike(
    ratio: float,
    mean: float,
    groups: Groups,
    *,
    confidence: float,
    bounds: tuple[float, float],
    extremes: tuple[float, float],
) -> IntervalEstimate | None:
    """Where every row has the same ratio: as far as it comes when a share z² / (G + z²) of the rows, which G effective
    groups may all have missed (Wilson's upper end at none), are at an extreme instead. mean: of what is below."""
    from scipy.special import stdtrit

    if not np.isfinite(extremes).all():
        return None
    size = groups.effective
    freedom = max(1.0, size - 1)

    def find(asked: float) -> Interval:
        z2 = float(stdtrit(freedom, (1 + asked) / 2)) ** 2
        missed = z2 / (size + z2)
        low, high = (((1 - missed) * ratio * mean + missed * end) / ((1 - missed) * mean + missed) for end in extremes)
        low, high = clip(min(low, ratio), max(high, ratio), bounds)
        return Interval(low=low, high=high, confidence=asked, method="all values are alike; others may be missed")

    own = find(confidence)
    return IntervalEstimate(
        error=(own.high - own.low) / (2 * normal_reach(confidence)),
        confidence=confidence,
        find=find,
        caution=few_sources(groups),
    )


def median_interval(values: Floats, groups: Groups, *, confidence: float) -> IntervalEstimate | None:
    """Woodruff's interval (1952) of the median: the quantiles at the ends of an interval of the share below it.

    The share's standard error is over groups, the ends are rounded outwards to observed values. None with fewer than
    two groups.
    """
    from scipy.special import stdtrit

    if len(groups) < 2:
        return None
    kept = np.sort(values[groups.rows])
    median, size = float(np.median(kept)), len(kept)
    if kept[0] == kept[-1]:
        return point(median, confidence, "all values are equal")
    # A value on the median counts half, so that ties on it do not make the share differ from one half.
    # They make its error smaller than that of the share below or at it, and than that of independent rows.
    shares = (values < median, values <= median, np.where(values == median, 0.5, values < median))
    error = max(0.5 / float(np.sqrt(size)), *(share_error(np.asarray(one, dtype=np.float64), groups) for one in shares))
    freedom = max(1.0, groups.effective - 1)

    def find(asked: float) -> Interval:
        reach = float(stdtrit(freedom, (1 + asked) / 2)) * error
        low = kept[max(0, int(np.floor(size * (0.5 - reach))))]
        high = kept[min(size - 1, int(np.ceil(size * (0.5 + reach))) - 1)]
        return Interval(low=float(low), high=float(high), confidence=asked, method="Woodruff interval over sources")

    own = find(confidence)
    return IntervalEstimate(
        error=(own.high - own.low) / (2 * normal_reach(confidence)),
        confidence=confidence,
        find=find,
        caution=few_sources(groups),
    )


def proportion_interval(values: Floats, groups: Groups, *, confidence: float) -> IntervalEstimate | None:
    """Wilson's interval of the share of ones, with the effective number of rows that the grouping leaves: no more than
    that of its groups where fewer than 10 hold the rarer value, which is too few to see how alike their rows are."""
    from scipy.special import stdtrit

    if len(groups) < 2:
        return None
    size = len(groups.rows)
    share = float(values[groups.rows].mean())
    effective = groups.effective
    if 0 < share < 1:
        estimate = share_error(values, groups) ** 2
        effective = min(float(size), share * (1 - share) / estimate) if estimate > 0 else float(size)
        rarer = values if share <= 0.5 else 1 - values
        if np.count_nonzero(groups.sums(rarer[:, None])) < FEW_GROUPS:
            effective = min(effective, groups.effective)
    freedom = max(1.0, groups.effective - 1)

    def wilson(asked: float) -> tuple[float, float]:
        z2 = float(stdtrit(freedom, (1 + asked) / 2)) ** 2
        centre = (share + z2 / (2 * effective)) / (1 + z2 / effective)
        estimate = z2 * share * (1 - share) / effective + z2**2 / (4 * effective**2)
        return centre, float(np.sqrt(estimate)) / (1 + z2 / effective)

    def find(asked: float) -> Interval:
        centre, reach = wilson(asked)
        low, high = clip(min(share, centre - reach), max(share, centre + reach), (0.0, 1.0))
        return Interval(low=low, high=high, confidence=asked, method="Wilson interval over sources")

    middle = wilson(confidence)[0]
    return IntervalEstimate(
        error=float(np.sqrt(middle * (1 - middle) / effective)),
        confidence=confidence,
        find=find,
        caution=few_sources(groups),
    )


def linearised_interval(
    statistic: Statistic,
    columns: Floats,
    groups: Groups,
    *,
    pseudo: Floats,
    confidence: float,
    bounds: tuple[float, float] = (-np.inf, np.inf),
) -> IntervalEstimate | None:
    """Interval of a smooth function of sums, such as F1 of counts, with two pseudo-sources added.

    statistic: (b, D) totals -> (b,) values. columns: (n_all, D) per instance. pseudo: (P, D) kinds of row, which share
    the weight of two sources as large as that of an average row: where nothing differs in the sample they keep the
    interval from being a point, as in the adjusted interval of a difference of paired proportions (Agresti & Min 2005;
    Bonett & Price 2012). The error is that of the derivative, by the delete-one-group jackknife, with Student's t; a
    resampled interval of a rare difference is far too short. None with fewer than two groups, or where the statistic
    is undefined.
    """
    from scipy.special import stdtrit

    count = len(groups)
    if count < 2:
        return None
    sums = groups.sums(columns)
    observed = float(statistic(sums.sum(0)[None])[0])
    sizes = groups.sizes.astype(np.float64)
    weight = PSEUDO_SOURCES * float((sizes**2).sum() / sizes.sum())
    total = sums.sum(0) + weight * pseudo.mean(0)

    def derivative(rows: Floats) -> Floats:
        step = max(1, CHUNK // max(1, rows.shape[1]))
        parts = [rows[i : i + step] * STEP for i in range(0, len(rows), step)]
        return np.concatenate([statistic(total + part) - statistic(total - part) for part in parts]) / (2 * STEP)

    value = float(statistic(total[None])[0])
    estimate = jackknife_error(derivative(sums), sizes) ** 2
    estimate += weight * (derivative(pseudo) ** 2).mean()
    if not np.isfinite([observed, value, estimate]).all():
        return None
    error, freedom = float(np.sqrt(estimate)), max(1.0, groups.effective - 1)

    def find(asked: float) -> Interval:
        reach = float(stdtrit(freedom, (1 + asked) / 2)) * error
        low, high = clip(min(observed, value - reach), max(observed, value + reach), bounds)
        return Interval(
            low=low, high=high, confidence=asked, method="linearised over sources, two pseudo-sources added"
        )

    return IntervalEstimate(error=error, confidence=confidence, find=find, caution=few_sources(groups))
