"""Bootstrap samples of statistics that are computed from sums over groups."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from attnaudit.arrays import Floats
from attnaudit.disk_arrays.filed_arrays import blocks

RESAMPLES = 4000
#: The largest number of array elements in a block of resamples, unless one resample has more. It limits the memory.
CHUNK = 1_000_000
#: The largest number of groups that are drawn at once, unless one resample has more.
DRAWN_AT_ONCE = 2**18

#: If there are more groups, they are joined to this many before samples are drawn. This limits the memory and the time:
#: for a million groups, 4 billion numbers would have to be drawn.
MOST_GROUPS = 2**17

#: A function that computes (b, ...) values from (b, D) totals.
Statistic = Callable[[Floats], Floats]


def resampled(statistic: Statistic, sums: Floats, generator: np.random.Generator) -> Floats:
    """Draw 4,000 bootstrap samples from (G, D) sums per group, and return (4000, ...) values of the statistic.

    If there are more than 131,072 groups, they are joined to this many random sets of nearly equal size, and each set
    is drawn as a whole. The groups are independent of each other, so the totals of such samples have the same mean and
    nearly the same variance.
    """
    joined = _joined(sums, generator)
    return np.concatenate([statistic(block @ joined) for block in _draws(len(joined), generator)])


def _joined(sums: Floats, generator: np.random.Generator) -> Floats:
    """Add up the sums of groups in random sets, so that at most 131,072 sums are left.

    Neighbours must not be joined: groups with similar names may have similar values, and the variance between sets
    would then be too large or too small.
    """
    if len(sums) <= MOST_GROUPS:
        return sums
    joined = np.zeros((MOST_GROUPS, sums.shape[1]))
    free = np.diff(np.arange(MOST_GROUPS + 1) * len(sums) // MOST_GROUPS)  # how many more groups each set can take
    for rows, values in blocks(len(sums), sums):
        some = values[rows]
        drawn = generator.multivariate_hypergeometric(free, len(some), method="marginals")
        free -= drawn
        sets = generator.permutation(np.repeat(np.arange(MOST_GROUPS), drawn))
        joined += np.column_stack([np.bincount(sets, column, MOST_GROUPS) for column in some.T])
    return joined


def _draws(groups: int, generator: np.random.Generator) -> Iterator[Floats]:
    """Yield (b, G) blocks of counts: how often each of G groups occurs in each of b bootstrap samples.

    A block is overwritten by the next one, so that only one of them is in memory.
    """
    step, at_once = max(1, CHUNK // groups), max(1, DRAWN_AT_ONCE // groups)
    block = np.empty((min(step, RESAMPLES), groups))
    for start in range(0, RESAMPLES, step):
        counts = block[: RESAMPLES - start]
        for first in range(0, len(counts), at_once):
            some = counts[first : first + at_once]
            drawn = generator.integers(0, groups, some.shape)
            drawn += groups * np.arange(len(some))[:, None]
            some[:] = np.bincount(drawn.ravel(), minlength=some.size).reshape(some.shape)
        yield counts
