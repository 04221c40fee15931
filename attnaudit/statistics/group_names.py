"""Names of groups, stored as numbers, so that a million rows do not need a million strings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import overload

import numpy as np
from numpy.typing import NDArray

from attnaudit.arrays import Integers


class GroupNames(Sequence[str]):
    """The group names of n instances, one per instance. The instances are sorted by id.

    Args:
        codes: (n,) the group of each instance. The order of the codes is the order of the names.
        name_of: Code -> name.
    """

    def __init__(self, codes: Integers, name_of: Callable[[int], str]) -> None:
        self.codes = codes
        self.name_of = name_of

    def __len__(self) -> int:
        return len(self.codes)

    @overload
    def __getitem__(self, row: int) -> str: ...
    @overload
    def __getitem__(self, row: slice) -> list[str]: ...
    def __getitem__(self, row: int | slice) -> str | list[str]:
        if isinstance(row, slice):
            return [self.name_of(code) for code in self.codes[row].tolist()]
        return self.name_of(int(self.codes[row]))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and len(self) == len(other) and all(map(str.__eq__, self, other))

    def __hash__(self) -> int:
        return hash(tuple(self))

    def distinct(self) -> int:
        """Return the number of groups."""
        ordered = np.sort(self.codes)
        return int(np.count_nonzero(ordered[1:] != ordered[:-1])) + bool(len(ordered))

    def only(self, chosen: NDArray[np.bool_]) -> GroupNames:
        """Return the names of the groups of the instances at which `chosen` (n,) is True."""
        return GroupNames(self.codes[chosen], self.name_of)
