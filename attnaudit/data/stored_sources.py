"""The sources of many rows, in temporary files. This module does not import torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from attnaudit.arrays import Integers
from attnaudit.data.sorted_strings import StoredStrings, in_order
from attnaudit.disk_arrays.chosen_rows import ChosenRows


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
    return StoredSources(codes=codes, names=ChosenRows(found.strings, np.flatnonzero(is_first)[without:]))
