"""Some rows of a sequence, which are read only when they are needed. This module does not import torch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar, overload

from attnaudit.arrays import Integers
from attnaudit.disk_arrays.filed_arrays import release

T = TypeVar("T")
#: Number of positions that are read from a file at once.
POSITIONS_AT_ONCE = 256


class ChosenRows(Sequence[T]):
    """Some rows of a sequence. They are read only when they are needed, so that rows in a file stay there.

    Args:
        rows: The sequence.
        chosen: (n,) the positions of the chosen rows in the sequence, in any order. A position may occur several times.
    """

    def __init__(self, rows: Sequence[T], chosen: Integers) -> None:
        self.rows = rows
        self.chosen = chosen

    def __len__(self) -> int:
        return len(self.chosen)

    @overload
    def __getitem__(self, row: int) -> T: ...
    @overload
    def __getitem__(self, row: slice) -> list[T]: ...
    def __getitem__(self, row: int | slice) -> T | list[T]:
        if isinstance(row, slice):
            return [self.rows[one] for one in self.chosen[row].tolist()]
        return self.rows[int(self.chosen[row])]

    def __iter__(self) -> Iterator[T]:
        for first in range(0, len(self), POSITIONS_AT_ONCE):
            for one in self.chosen[first : first + POSITIONS_AT_ONCE].tolist():
                yield self.rows[one]
            release(self.chosen)
