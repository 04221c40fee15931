"""Group instances by source, and estimate standard errors over the groups.

Instances of the same source, such as the sentences of one review, are not independent. Every interval therefore treats
the source, not the instance, as the unit of sampling.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from attnaudit.arrays import Floats, Integers
from attnaudit.disk_arrays.filed_arrays import filled
from attnaudit.statistics.group_names import GroupNames

#: With fewer effective groups than this, a bootstrap is unreliable, and Student's t is used instead.
FEW_GROUPS = 10
#: Intervals of means are too narrow if the skewness is above `SKEWED` and there are fewer than `SOURCES_OF_SKEWED`
#: sources (see benchmarks/coverage.md).
SKEWED = 2.0
SOURCES_OF_SKEWED = 500
#: The largest number of rows, and of numbers of these rows, that are summed at once. It limits the memory.
ROWS_AT_ONCE = 2**16
NUMBERS_AT_ONCE = 2**19
#: The number of groups of a block, if a statistic needs many numbers per group.
GROUPS_AT_ONCE = 2**12


@dataclass(frozen=True, slots=True)
class Groups:
    """Selected instances, grouped by source.

    Groups are sorted by the name of their source, and the instances of a group by their id. Results therefore do not
    depend on the order of the instances. G is the number of groups.

    Attributes:
        rows: (n,) positions of the selected instances among all instances, group by group.
        starts: (G,) positions in `rows` at which the groups begin.
    """

    rows: NDArray[np.int64]
    starts: NDArray[np.int64]

    @classmethod
    def of(cls, sources: Sequence[str], ids: Sequence[str], chosen: NDArray[np.bool_]) -> Groups:
        """Group the selected instances.

        Args:
            sources: The name of the source of each instance; n_all names for n_all instances.
            ids: The id of each instance; n_all ids.
            chosen: (n_all,) mask, True at the instances to select.
        """
        if isinstance(sources, GroupNames):  # its instances are sorted by id
            some = np.flatnonzero(chosen)
            codes = sources.codes[some]
            if (codes[1:] < codes[:-1]).any():
                order = np.argsort(codes, kind="stable")
                some, codes = some[order], codes[order]
            return cls(some, np.flatnonzero(np.append(True, codes[1:] != codes[:-1])[: len(codes)]))
        names = list(zip(sources, ids, strict=True))
        rows = sorted(np.flatnonzero(chosen).tolist(), key=names.__getitem__)
        starts = [i for i, row in enumerate(rows) if i == 0 or names[row][0] != names[rows[i - 1]][0]]
        return cls(np.array(rows, dtype=np.int64), np.array(starts, dtype=np.int64))

    def __len__(self) -> int:
        """Return G, the number of groups."""
        return len(self.starts)

    @property
    def sizes(self) -> NDArray[np.int64]:
        """The (G,) numbers of instances in the groups."""
        return np.diff(np.append(self.starts, len(self.rows)))

    @property
    def effective(self) -> float:
        """The effective number of groups, (Σ size)² / Σ size². It is G for groups of equal size, otherwise less."""
        sizes = self.sizes.astype(np.float64)
        return float(sizes.sum() ** 2 / (sizes**2).sum())

    def sums(self, columns: Floats) -> Floats:
        """Sum columns over each group.

        Args:
            columns: (n_all, D) numbers, with one row per instance.

        Returns:
            (G, D) sums over the selected instances of each group.
        """
        return self.sums_of(lambda rows: columns[rows], columns.shape[1])

    def sums_of(self, columns: Callable[[Integers], Floats], width: int) -> Floats:
        """Sum columns that are computed for a block of rows at a time, so that they are never all in memory.

        Args:
            columns: Takes (m,) positions of instances, and returns their (m, D) numbers.
            width: D.

        Returns:
            (G, D) sums over the selected instances of each group.
        """
        sums: Floats = filled((len(self), width), 0.0)
        for first, block in self._blocks(columns, width):
            sums[first : first + len(block)] += block
        return sums

    def totals_of(self, columns: Callable[[Integers], Floats], width: int) -> Floats:
        """Sum columns over all selected instances, a block of rows at a time. The arguments are those of `sums_of`.

        Returns:
            (D,) sums.
        """
        totals = np.zeros(width)
        for _, block in self._blocks(columns, width):
            totals += block.sum(0)
        return totals

    def parts(self) -> Iterator[Groups]:
        """Divide the groups into blocks of consecutive groups, and yield the groups of each block."""
        for first in range(0, len(self), GROUPS_AT_ONCE):
            starts = self.starts[first : first + GROUPS_AT_ONCE]
            after = first + len(starts)
            stop = self.starts[after] if after < len(self) else len(self.rows)
            yield Groups(self.rows[starts[0] : stop], starts - starts[0])

    def _blocks(self, columns: Callable[[Integers], Floats], width: int) -> Iterator[tuple[int, Floats]]:
        """Yield the first group of each block of rows, and the sums over the rows of each group in the block.

        A group may continue in the next block.
        """
        step = max(1, min(ROWS_AT_ONCE, NUMBERS_AT_ONCE // max(1, width)))
        for first in range(0, len(self.rows), step):
            rows = self.rows[first : first + step]
            begin, end = np.searchsorted(self.starts, [first, first + len(rows)]).tolist()
            starts = self.starts[begin:end] - first
            if not len(starts) or starts[0]:  # the first rows belong to a group of the block before
                begin, starts = begin - 1, np.append(0, starts)
            yield begin, np.add.reduceat(columns(rows), np.asarray(starts), axis=0)


def few_sources_warning(groups: Groups, effective: float | None = None) -> str:
    """Return a clause that warns of fewer than 10 effective groups; "" if there are at least 10.

    Args:
        groups: The instances, grouped by source.
        effective: The effective number of groups, if rows have weights; None if all rows have the same weight.
    """
    if min(groups.effective, groups.effective if effective is None else effective) >= FEW_GROUPS:
        return ""
    if groups.effective >= FEW_GROUPS:
        return (
            f"a rare class has as much weight as the others, but its rows give only as much information as "
            f"{effective:.1f} of the {len(groups)} sources"
        )
    if len(groups) < FEW_GROUPS:
        return f"there are only {len(groups)} independent sources"
    return (
        f"most rows come from a few of the {len(groups)} sources, and all sources together give only as much "
        f"information as {groups.effective:.1f} sources of equal size"
    )


def narrow_interval_warning(residuals: Floats, groups: Groups, effective: float) -> str:
    """Return a clause that warns of an interval that may be too narrow according to simulations; "" for no warning."""
    few, sources = few_sources_warning(groups, effective), len(groups)
    if few:
        return (
            f"{few}, so the interval may be too narrow: in simulations of skewed values from so few sources, 95% "
            "intervals contained the true mean in 91% of samples"
        )
    skewness = float((residuals**3).mean() / max(float((residuals**2).mean()) ** 1.5, 1e-300))
    if abs(skewness) <= SKEWED or sources >= SOURCES_OF_SKEWED:
        return ""
    return (
        f"the values are strongly skewed (skewness {skewness:.1f}) and come from fewer than {SOURCES_OF_SKEWED} "
        "sources, so the interval may be too narrow: in simulations of such values, 95% intervals contained the true "
        "mean in as few as 90% of samples"
    )


def rows_without_copies(values: Floats, groups: Groups) -> float:
    """Return n / k, where k is the number of times that every selected row may have been repeated.

    The copies of a row have the same source and the same value. Therefore, k is the greatest common divisor of the
    numbers of equal values within the sources. It is 1 if any value occurs only once in its source.

    Args:
        values: (n_all,) values; none of the selected ones is NaN.
        groups: The n selected instances, grouped by source.
    """
    size = len(groups.rows)
    if np.gcd.reduce(groups.sizes) == 1:  # k divides the size of every source
        return float(size)
    numbers, selected = np.repeat(np.arange(len(groups)), groups.sizes), values[groups.rows]
    order = np.lexsort((selected, numbers))
    numbers, selected = numbers[order], selected[order]
    changes = np.flatnonzero((numbers[1:] != numbers[:-1]) | (selected[1:] != selected[:-1])) + 1
    return size / float(np.gcd.reduce(np.diff(changes, prepend=0, append=size)))


def leverage(parts: Floats) -> Floats:
    """Compute one factor per group, by which the delete-one-group jackknife multiplies the squared sum of the group.

    Args:
        parts: (G,) sizes of the groups. For a ratio, the (G,) sums of their denominators.

    Returns:
        (G,) factors 1 / (1 - share of the total)².
    """
    factors: Floats = 1 / (1 - np.clip(parts / parts.sum(), 0.0, 1 - 1e-6)) ** 2
    return factors


def jackknife_error(sums: Floats, parts: Floats) -> float:
    """Compute the standard error of a total by the delete-one-group jackknife.

    Args:
        sums: (G,) sums over each group of the deviations from the mean. They add up to nearly 0.
        parts: (G,) sizes of the groups, as in `leverage`.
    """
    count = len(sums)
    return float(np.sqrt((sums**2 * leverage(parts)).sum() * (count - 1) / count))


def mean_error(values: Floats, groups: Groups) -> float:
    """Compute the cluster-robust standard error of the mean of values over the selected instances.

    Each group is one cluster.

    Args:
        values: (n_all,) values.
        groups: The groups of the selected instances.
    """
    selected = values[groups.rows]
    sums = groups.sums((values - selected.mean())[:, None])[:, 0]
    return jackknife_error(sums, groups.sizes.astype(np.float64)) / len(selected)
