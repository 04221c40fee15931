"""Seeded confidence intervals over instances; rows that share a source are resampled together.

Nothing depends on the order of the rows: groups are sorted by the name of their source before anything is drawn. How
often each kind of interval holds the true value is measured by benchmarks/coverage.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from attnaudit.instances import Instance
from attnaudit.measurement.measurements import Floats
from attnaudit.records import Interval

RESAMPLES = 4000
SUBSAMPLES = 400
FEW_GROUPS = 10
#: A tail with fewer draws than this is extended from the last one that has as many.
TAIL_DRAWS = 5
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


def _upper_tail(values: Floats, tail: float) -> float:
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
        names = [(one.source or one.id, one.id) for one in instances]
        rows = sorted(np.flatnonzero(chosen).tolist(), key=names.__getitem__)
        starts = [i for i, row in enumerate(rows) if i == 0 or names[row][0] != names[rows[i - 1]][0]]
        return cls(np.array(rows, dtype=np.int64), np.array(starts, dtype=np.int64))

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def sizes(self) -> NDArray[np.int64]:
        return np.diff(np.append(self.starts, len(self.rows)))

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


def _clip(low: float, high: float, bounds: tuple[float, float]) -> tuple[float, float]:
    return float(np.clip(low, *bounds)), float(np.clip(high, *bounds))


def mean_interval(
    values: Floats,
    groups: Groups,
    *,
    confidence: float,
    generator: np.random.Generator,
    bounds: tuple[float, float] = (-np.inf, np.inf),
) -> Spread | None:
    """Interval of the mean of `values` (n_all,) over the rows of `groups`; None with fewer than two groups.

    The studentised bootstrap (bootstrap-t; Davison & Hinkley 1997, 5.2) with the standard error of a ratio estimator
    over groups: it follows skewed values where a normal interval does not. With fewer than 10 groups, or where
    resamples have no spread of their own, Student's t on G - 1 degrees of freedom.
    """
    from scipy.special import stdtrit

    if len(groups) < 2:
        return None
    kept = values[groups.rows]
    if np.ptp(kept) == 0:
        return _point(float(kept[0]), confidence, "all values are equal")
    mean, count = float(kept.mean()), len(groups)
    base = groups.sums(np.column_stack([values - mean, np.ones_like(values)]))
    sums = np.column_stack([base, base[:, 0] ** 2, base[:, 0] * base[:, 1], base[:, 1] ** 2])

    def centre_and_error(totals: Floats) -> tuple[Floats, Floats]:
        s, size, ss, sn, nn = totals.T
        centre = s / size
        spread = np.maximum(ss - 2 * centre * sn + centre**2 * nn, 0.0)
        return centre, np.sqrt(spread * count / (count - 1)) / size

    error = float(centre_and_error(sums.sum(0)[None])[1][0])

    def studentised(totals: Floats) -> Floats:
        centre, own = centre_and_error(totals)
        moved = np.sign(centre) * np.inf
        return np.where(own > 1e-9 * error, centre / np.maximum(own, 1e-300), np.where(centre == 0, 0.0, moved))

    t = np.empty(0)
    if count >= FEW_GROUPS:
        with np.errstate(over="ignore", invalid="ignore"):
            t = _resampled(studentised, sums, generator)

    def find(asked: float) -> Interval:
        tail = (1 - asked) / 2
        below = above = float(stdtrit(count - 1, 1 - tail))
        method = "Student's t over sources"
        if len(t):
            ends = _upper_tail(t, tail), _upper_tail(-t, tail)
            if np.isfinite(ends).all():
                below, above = ends
                method = "studentised bootstrap over sources"
        low, high = _clip(mean - below * error, mean + above * error, bounds)
        return Interval(low=low, high=high, confidence=asked, method=method)

    return Spread(error=error, confidence=confidence, find=find)


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


def median_interval(
    values: Floats, groups: Groups, *, confidence: float, generator: np.random.Generator
) -> Spread | None:
    """Percentile bootstrap of the median (the jackknife of a median is not consistent, so neither is BCa)."""
    if len(groups) < 2:
        return None
    kept = values[groups.rows]
    order = np.argsort(kept, kind="stable")
    ordered, member = kept[order], np.repeat(np.arange(len(groups)), groups.sizes)[order]
    medians = []
    for block in _draws(len(groups), generator):
        for weights in np.array_split(block, max(1, len(block) * len(kept) // CHUNK)):
            reached = np.cumsum(weights[:, member], axis=1)
            total = reached[:, -1:]
            lower = (reached > (total - 1) // 2).argmax(1)
            upper = (reached > total // 2).argmax(1)
            medians.append((ordered[lower] + ordered[upper]) / 2)
    found = np.concatenate(medians)

    def find(asked: float) -> Interval:
        low, high = np.quantile(found, [(1 - asked) / 2, (1 + asked) / 2])
        return Interval(low=float(low), high=float(high), confidence=asked, method="percentile bootstrap over sources")

    return Spread(error=float(found.std()), confidence=confidence, find=find)


def proportion_interval(values: Floats, groups: Groups, *, confidence: float) -> Spread | None:
    """Wilson's interval of the share of ones, with the effective number of rows that the grouping leaves."""
    from scipy.special import stdtrit

    if len(groups) < 2:
        return None
    size, count = len(groups.rows), len(groups)
    share = float(values[groups.rows].mean())
    effective = float(count)
    if 0 < share < 1:
        base = groups.sums(np.column_stack([values, np.ones_like(values)]))
        spread = float(((base[:, 0] - share * base[:, 1]) ** 2).sum()) / size**2
        effective = min(float(size), share * (1 - share) / spread) if spread > 0 else float(size)

    def wilson(asked: float) -> tuple[float, float]:
        z2 = float(stdtrit(count - 1, (1 + asked) / 2)) ** 2
        centre = (share + z2 / (2 * effective)) / (1 + z2 / effective)
        spread = z2 * share * (1 - share) / effective + z2**2 / (4 * effective**2)
        return centre, float(np.sqrt(spread)) / (1 + z2 / effective)

    def find(asked: float) -> Interval:
        centre, reach = wilson(asked)
        low, high = _clip(min(share, centre - reach), max(share, centre + reach), (0.0, 1.0))
        return Interval(low=low, high=high, confidence=asked, method="Wilson interval over sources")

    middle = wilson(confidence)[0]
    return Spread(error=float(np.sqrt(middle * (1 - middle) / effective)), confidence=confidence, find=find)


def bca_interval(
    statistic: Statistic,
    sums: Floats,
    *,
    confidence: float,
    generator: np.random.Generator,
    bounds: tuple[float, float] = (-np.inf, np.inf),
) -> Spread | None:
    """BCa bootstrap (Efron 1987) of a smooth function of sums over groups.

    sums: (G, D) per group. statistic: (b, D) totals -> (b,) values, such as F1 from counts. None with fewer than two
    groups, or where a tenth of the resamples leave the statistic undefined.
    """
    from scipy.special import ndtr, ndtri

    count = len(sums)
    if count < 2:
        return None
    observed = float(statistic(sums.sum(0)[None])[0])
    found = _resampled(statistic, sums, generator)
    found = found[np.isfinite(found)]
    if not np.isfinite(observed) or len(found) < 0.9 * RESAMPLES:
        return None
    if np.ptp(found) == 0:
        return _point(observed, confidence, "no resample differs")
    below = (np.count_nonzero(found < observed) + 0.5 * np.count_nonzero(found == observed)) / len(found)
    shift = float(ndtri(np.clip(below, 1 / (2 * len(found)), 1 - 1 / (2 * len(found)))))
    total = sums.sum(0)
    step = max(1, CHUNK // max(1, sums.shape[1]))
    without = np.concatenate([statistic(total - sums[i : i + step]) for i in range(0, count, step)])
    without = without[np.isfinite(without)]
    away = without.mean() - without
    scale = float((away**2).sum()) ** 1.5
    bend = float((away**3).sum()) / (6 * scale) if scale > 0 else 0.0

    def find(asked: float) -> Interval:
        z = shift + ndtri([(1 - asked) / 2, (1 + asked) / 2])
        low, high = np.quantile(found, ndtr(shift + z / (1 - bend * z)))
        low, high = _clip(float(low), float(high), bounds)
        return Interval(low=low, high=high, confidence=asked, method="BCa bootstrap over sources")

    return Spread(error=float(found.std()), confidence=confidence, find=find)


def subsampling_interval(
    statistic: Callable[[NDArray[np.int64]], float],
    groups: Groups,
    *,
    observed: float,
    confidence: float,
    generator: np.random.Generator,
    bounds: tuple[float, float] = (-np.inf, np.inf),
) -> Spread | None:
    """Symmetric interval by subsampling half of the groups without replacement (Politis, Romano & Wolf 1999).

    statistic: positions of instances -> value. A half sample's deviation has the variance of the whole sample's
    error, so no rescaling is left to do. For statistics that duplicates bias, as they do mutual information.
    """
    count = len(groups)
    if count < 4:
        return None
    parts = np.split(groups.rows, groups.starts[1:])
    found = np.array(
        [
            statistic(np.concatenate([parts[g] for g in np.sort(generator.permutation(count)[: count // 2])]))
            for _ in range(SUBSAMPLES)
        ]
    )
    found = found[np.isfinite(found)]
    if len(found) < 0.9 * SUBSAMPLES:
        return None
    away = np.abs(found - observed)

    def find(asked: float) -> Interval:
        reach = _upper_tail(away, 1 - asked)
        low, high = _clip(observed - reach, observed + reach, bounds)
        return Interval(low=low, high=high, confidence=asked, method="subsampling of half of the sources")

    return Spread(error=float(np.sqrt((away**2).mean())), confidence=confidence, find=find)
