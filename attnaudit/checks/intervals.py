"""Seeded confidence intervals over instances; rows that share a source are resampled together.

Nothing depends on the order of the rows: groups are sorted by the name of their source before anything is drawn. How
often each kind of interval holds the true value is measured by benchmarks/coverage.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from attnaudit.instances import Instance, sources_of
from attnaudit.measurement.measurements import Floats
from attnaudit.records import Interval

RESAMPLES = 4000
FEW_GROUPS = 10
#: A tail with fewer draws than this is extended from the last one that has as many.
TAIL_DRAWS = 5
#: Of `linearised_interval`: how many rows are added, and the step of the derivative, in rows.
PSEUDO_ROWS = 2.0
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """How far a statistic may lie from the truth: an interval at any confidence, from one set of resamples.

    error: the standard error of the statistic. confidence: the level of `low` and `high`. caution: what measured
    coverage says against the interval, in words, or nothing. find: confidence -> interval.
    """

    error: float
    confidence: float
    find: Callable[[float], Interval] = field(repr=False)
    caution: str = ""

    def at(self, confidence: float) -> Interval:
        return self.find(confidence)

    @property
    def low(self) -> float:
        return self.at(self.confidence).low

    @property
    def high(self) -> float:
        return self.at(self.confidence).high

    @property
    def method(self) -> str:
        return self.at(self.confidence).method


def _normal(confidence: float) -> float:
    from scipy.special import ndtri

    return float(ndtri((1 + confidence) / 2))


def upper_tail(values: Floats, tail: float) -> float:
    """The quantile that `tail` of the values lie beyond; past the last few draws it grows as a normal tail does."""
    least = TAIL_DRAWS / len(values)
    found = float(np.quantile(values, 1 - max(tail, least), method="higher"))
    if tail < least and found > 0:
        found *= _normal(1 - 2 * tail) / _normal(1 - 2 * least)
    return found


@dataclass(frozen=True, slots=True)
class Groups:
    """Rows by source, in an order of their own.

    rows: (n,) positions of the chosen instances, sorted by source and id. starts: (G,) where each group begins in
    `rows`.
    """

    rows: NDArray[np.int64]
    starts: NDArray[np.int64]

    @classmethod
    def of(cls, instances: Sequence[Instance], chosen: NDArray[np.bool_]) -> Groups:
        """Groups of those instances for which `chosen` is true."""
        names = list(zip(sources_of(instances), (one.id for one in instances), strict=True))
        rows = sorted(np.flatnonzero(chosen).tolist(), key=names.__getitem__)
        starts = [i for i, row in enumerate(rows) if i == 0 or names[row][0] != names[rows[i - 1]][0]]
        return cls(np.array(rows, dtype=np.int64), np.array(starts, dtype=np.int64))

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def sizes(self) -> NDArray[np.int64]:
        return np.diff(np.append(self.starts, len(self.rows)))

    @property
    def effective(self) -> float:
        """The number of equally large groups that would hold as much: less than G where a few hold most rows."""
        sizes = self.sizes.astype(np.float64)
        return float(sizes.sum() ** 2 / (sizes**2).sum())

    def sums(self, columns: Floats) -> Floats:
        """(n_all, D) numbers per instance -> (G, D) sums per group."""
        if not len(self):
            return np.zeros((0, columns.shape[1]))
        return np.add.reduceat(columns[self.rows], self.starts, axis=0)


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


def clip(low: float, high: float, bounds: tuple[float, float]) -> tuple[float, float]:
    """Both ends brought within the bounds."""
    return float(np.clip(low, *bounds)), float(np.clip(high, *bounds))


def _leverage(parts: Floats) -> Floats:
    """(G,) 1 / (1 - share of the total)²: what a delete-one-group jackknife gives the squared sum of each group."""
    found: Floats = 1 / (1 - np.clip(parts / parts.sum(), 0.0, 0.99)) ** 2
    return found


def mean_interval(
    values: Floats,
    groups: Groups,
    *,
    confidence: float,
    generator: np.random.Generator,
    bounds: tuple[float, float] = (-np.inf, np.inf),
) -> Spread | None:
    """Interval of the mean of `values` (n_all,) over the rows of `groups`; None with fewer than two groups.

    As `ratio_interval`, with the number of rows below the line.
    """
    return ratio_interval(
        values, np.ones_like(values), groups, confidence=confidence, generator=generator, bounds=bounds
    )


def ratio_interval(
    above: Floats,
    below: Floats,
    groups: Groups,
    *,
    confidence: float,
    generator: np.random.Generator,
    bounds: tuple[float, float] = (-np.inf, np.inf),
) -> Spread | None:
    """Interval of sum(above) / sum(below), both (n_all,), over the rows of `groups`.

    The studentised bootstrap (bootstrap-t; Davison & Hinkley 1997, 5.2) with the delete-one-group jackknife's standard
    error of a ratio: it follows skewed values where a normal interval does not. With fewer than 10 groups, Student's t
    on the effective number of groups less one. None with fewer than
    two groups, or where the sum below is not clearly above 0 (less than 4 standard errors): a ratio to it may be
    anything.
    """
    from scipy.special import stdtrit

    count = len(groups)
    if count < 2:
        return None
    parts = groups.sums(np.column_stack([above, below]))
    total = parts.sum(0)
    error = _jackknife_error(parts[:, 1] - total[1] * groups.sizes / len(groups.rows), parts[:, 1])
    if total[1] <= CLEARLY * error:
        return None
    ratio = float(total[0] / total[1])
    kept = above[groups.rows]
    if np.ptp(kept - ratio * below[groups.rows]) == 0 or (np.ptp(kept) == 0 and np.ptp(below[groups.rows]) == 0):
        return _point(float(kept[0]) / float(below[groups.rows][0]), confidence, "all values are equal")
    base = groups.sums(np.column_stack([above - ratio * below, below]))
    squares = np.column_stack([base[:, 0] ** 2, base[:, 0] * base[:, 1], base[:, 1] ** 2])
    sums = np.column_stack([base, squares * _leverage(base[:, 1])[:, None]])

    def centre_and_error(totals: Floats) -> tuple[Floats, Floats]:
        s, size, ss, sn, nn = totals.T
        size = np.maximum(size, 1e-300)
        centre = s / size
        spread = np.maximum(ss - 2 * centre * sn + centre**2 * nn, 0.0)
        return centre, np.sqrt(spread * (count - 1) / count) / size

    error = float(centre_and_error(sums.sum(0)[None])[1][0])

    def studentised(totals: Floats) -> Floats:
        centre, own = centre_and_error(totals)
        moved = np.sign(centre) * np.inf
        return np.where(own > 1e-9 * error, centre / np.maximum(own, 1e-300), np.where(centre == 0, 0.0, moved))

    t = np.empty(0)
    if count >= FEW_GROUPS:
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

    caution = _caution((above - ratio * below)[groups.rows], count)
    return Spread(error=error, confidence=confidence, find=find, caution=caution)


def _caution(residuals: Floats, sources: int) -> str:
    """What measured coverage says against an interval of a mean of such values, or nothing."""
    skewness = float((residuals**3).mean() / max(float((residuals**2).mean()) ** 1.5, 1e-300))
    if sources < FEW_GROUPS:
        return (
            f"there are only {sources} independent sources: with so few, a 95% interval of skewed values was measured "
            "to hold the truth in 92% of samples"
        )
    if abs(skewness) <= SKEWED or sources >= SOURCES_OF_SKEWED:
        return ""
    return (
        f"the values are strongly skewed (skewness {skewness:.1f}): with fewer than {SOURCES_OF_SKEWED} sources a 95% "
        "interval of such a mean was measured to hold the truth in as few as 90% of samples"
    )


def _point(value: float, confidence: float, why: str) -> Spread:
    return Spread(
        error=0.0,
        confidence=confidence,
        find=lambda asked: Interval(low=value, high=value, confidence=asked, method=why),
    )


def bracket(below: Spread, above: Spread) -> Spread:
    """From the lower end of one to the upper end of the other: of a value that is only known to lie between two."""

    def find(asked: float) -> Interval:
        low, high = below.at(asked), above.at(asked)
        return Interval(
            low=low.low, high=high.high, confidence=asked, method=f"{low.method}, from the found to the upper bound"
        )

    return Spread(
        error=max(below.error, above.error),
        confidence=below.confidence,
        find=find,
        caution=below.caution or above.caution,
    )


def shifted(spread: Spread, by: float, what: str) -> Spread:
    """The same spread around another point."""

    def find(asked: float) -> Interval:
        one = spread.at(asked)
        return Interval(low=one.low + by, high=one.high + by, confidence=asked, method=f"{one.method}, {what}")

    return Spread(error=spread.error, confidence=spread.confidence, find=find, caution=spread.caution)


def median_interval(values: Floats, groups: Groups, *, confidence: float) -> Spread | None:
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
        return _point(median, confidence, "all values are equal")
    # A value on the median counts half, so that ties on it do not make the share differ from one half.
    share = np.where(values < median, 1.0, np.where(values == median, 0.5, 0.0))
    error = max(_share_error(share, groups), 0.0)
    # Independent rows would have one half; ties on the median make the observed error smaller, never the true one.
    error = max(error, 0.5 / float(np.sqrt(size))) if len(groups) == size else max(error, 0.5 / size)
    freedom = max(1.0, groups.effective - 1)

    def find(asked: float) -> Interval:
        reach = float(stdtrit(freedom, (1 + asked) / 2)) * error
        low = kept[max(0, int(np.floor(size * (0.5 - reach))))]
        high = kept[min(size - 1, int(np.ceil(size * (0.5 + reach))) - 1)]
        return Interval(low=float(low), high=float(high), confidence=asked, method="Woodruff interval over sources")

    own = find(confidence)
    return Spread(error=(own.high - own.low) / (2 * _normal(confidence)), confidence=confidence, find=find)


def _jackknife_error(sums: Floats, parts: Floats) -> float:
    """Standard error of a sum of (G,) deviations by the delete-one-group jackknife; parts: each group's share."""
    count = len(sums)
    return float(np.sqrt((sums**2 * _leverage(parts)).sum() * (count - 1) / count))


def _share_error(values: Floats, groups: Groups) -> float:
    """Standard error of the mean of the values over groups."""
    kept = values[groups.rows]
    sums = groups.sums((values - kept.mean())[:, None])[:, 0]
    return _jackknife_error(sums, groups.sizes.astype(np.float64)) / len(kept)


def proportion_interval(values: Floats, groups: Groups, *, confidence: float) -> Spread | None:
    """Wilson's interval of the share of ones, with the effective number of rows that the grouping leaves."""
    from scipy.special import stdtrit

    if len(groups) < 2:
        return None
    size = len(groups.rows)
    share = float(values[groups.rows].mean())
    effective = groups.effective
    if 0 < share < 1:
        spread = _share_error(values, groups) ** 2
        effective = min(float(size), share * (1 - share) / spread) if spread > 0 else float(size)
    freedom = max(1.0, groups.effective - 1)

    def wilson(asked: float) -> tuple[float, float]:
        z2 = float(stdtrit(freedom, (1 + asked) / 2)) ** 2
        centre = (share + z2 / (2 * effective)) / (1 + z2 / effective)
        spread = z2 * share * (1 - share) / effective + z2**2 / (4 * effective**2)
        return centre, float(np.sqrt(spread)) / (1 + z2 / effective)

    def find(asked: float) -> Interval:
        centre, reach = wilson(asked)
        low, high = clip(min(share, centre - reach), max(share, centre + reach), (0.0, 1.0))
        return Interval(low=low, high=high, confidence=asked, method="Wilson interval over sources")

    middle = wilson(confidence)[0]
    return Spread(error=float(np.sqrt(middle * (1 - middle) / effective)), confidence=confidence, find=find)


def linearised_interval(
    statistic: Statistic,
    columns: Floats,
    groups: Groups,
    *,
    pseudo: Floats,
    confidence: float,
    bounds: tuple[float, float] = (-np.inf, np.inf),
) -> Spread | None:
    """Interval of a smooth function of sums, such as F1 of counts, with two pseudo-rows added.

    statistic: (b, D) totals -> (b,) values. columns: (n_all, D) per instance. pseudo: (P, D) kinds of row, which share
    the weight of two rows: where nothing differs in the sample they keep the interval from being a point, as in the
    adjusted interval of a difference of paired proportions (Agresti & Min 2005; Bonett & Price 2012). The error is that
    of the derivative, by the delete-one-group jackknife, with Student's t; a resampled interval of a rare difference
    is far too short. None with fewer than two groups, or where the statistic is undefined.
    """
    from scipy.special import stdtrit

    count = len(groups)
    if count < 2:
        return None
    sums = groups.sums(columns)
    observed = float(statistic(sums.sum(0)[None])[0])
    total = sums.sum(0) + PSEUDO_ROWS * pseudo.mean(0)

    def derivative(rows: Floats) -> Floats:
        step = max(1, CHUNK // max(1, rows.shape[1]))
        parts = [rows[i : i + step] * STEP for i in range(0, len(rows), step)]
        return np.concatenate([statistic(total + part) - statistic(total - part) for part in parts]) / (2 * STEP)

    value = float(statistic(total[None])[0])
    spread = _jackknife_error(derivative(sums), groups.sizes.astype(np.float64)) ** 2
    spread += PSEUDO_ROWS * (derivative(pseudo) ** 2).mean()
    if not np.isfinite([observed, value, spread]).all():
        return None
    error, freedom = float(np.sqrt(spread)), max(1.0, groups.effective - 1)

    def find(asked: float) -> Interval:
        reach = float(stdtrit(freedom, (1 + asked) / 2)) * error
        low, high = clip(min(observed, value - reach), max(observed, value + reach), bounds)
        return Interval(
            low=low, high=high, confidence=asked, method="linearised over sources, two pseudo-instances added"
        )

    return Spread(error=error, confidence=confidence, find=find)
