"""The sources of many rows, in temporary files. This module does not import torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import overload

import numpy as np

from attnaudit.arrays import Integers
from attnaudit.data.sorted_strings import StoredStrings, in_order


@dataclass(slots=True, kw_only=True)
class StoredSources:
    """The source of every row (see `attnaudit.instances.CodedSources`).

    Attributes:
        codes: (n,) The place of the source of each row in `names`; negative for rows without a source.
        names: The names of the sources, in ascending order.
    """

    codes: Integers
    names: Sequence[str]


def stored_sources(strings: StoredStrings, order: Integers) -> StoredSources:
    """Return the sources of rows.

    Args:
        strings: The source of each row, "" for rows without a source.
        order: (n,) The rows in the order of the result.
    """
    found = in_order(strings)
    is_first = found.earlier[found.order] == 0  # of the rows with the same source
    ranks = np.cumsum(is_first.astype(np.int64)) - 1
    without = int(len(strings) > 0 and not found.strings[0])  # "" comes first
    codes = ranks[np.argsort(found.order, kind="stable")][order] - without
    return StoredSources(codes=codes, names=_Names(found.strings, np.flatnonzero(is_first)[without:]))


class _Names(Sequence[str]):
    """Some of the strings of a sequence.

    Args:
        strings: All strings.
        places: The places of the strings.
    """

    def __init__(self, strings: StoredStrings, places: Integers) -> None:
        self._strings = strings
        self._places = places

    def __len__(self) -> int:
        return len(self._places)

    @overload
    def __getitem__(self, row: int) -> str: ...
    @overload
    def __getitem__(self, row: slice) -> list[str]: ...
    def __getitem__(self, row: int | slice) -> str | list[str]:
        if isinstance(row, slice):
            return [self._strings[place] for place in self._places[row].tolist()]
        return self._strings[int(self._places[row])]
