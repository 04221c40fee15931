"""Rows by source: rows that share one are drawn together, and say less than as many unrelated ones.

Nothing depends on the order of the rows: groups are sorted by the name of their source.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from attnaudit.arrays import Floats
from attnaudit.instances import Instance, sources_of

FEW_GROUPS = 10


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


def few_sources(groups: Groups) -> str:
    """Words for fewer than 10 sources, or more that weigh no more than that, else nothing."""
    if groups.effective >= FEW_GROUPS:
        return ""
    if len(groups) < FEW_GROUPS:
        return f"there are only {len(groups)} independent sources"
    return f"a few of the {len(groups)} sources hold most rows: they weigh as {groups.effective:.1f} of equal size"


def leverage(parts: Floats) -> Floats:
    """(G,) 1 / (1 - share of the total)²: what a delete-one-group jackknife gives the squared sum of each group."""
    found: Floats = 1 / (1 - np.clip(parts / parts.sum(), 0.0, 1 - 1e-6)) ** 2
    return found


def jackknife_error(sums: Floats, parts: Floats) -> float:
    """Standard error of a sum of (G,) deviations by the delete-one-group jackknife; parts: each group's share."""
    count = len(sums)
    return float(np.sqrt((sums**2 * leverage(parts)).sum() * (count - 1) / count))


def share_error(values: Floats, groups: Groups) -> float:
    """Standard error of the mean of the values over groups."""
    kept = values[groups.rows]
    sums = groups.sums((values - kept.mean())[:, None])[:, 0]
    return jackknife_error(sums, groups.sizes.astype(np.float64)) / len(kept)
