"""Measure rows in a random order, block by block, until there are enough of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

from attnaudit.engine.joined_measurements import joined
from attnaudit.engine.measurements import Measurements
from attnaudit.instances import Dataset

#: The number of rows in a block.
BLOCK = 250


def candidate_samples(
    dataset: Dataset,
    seed: int,
    *,
    measure: Callable[[Dataset], Measurements],
    is_enough: Callable[[Measurements], bool],
) -> Iterator[Dataset]:
    """Yield samples of a data set that seem to be enough, each larger than the one before, and then the data set.

    Args:
        dataset: The data set.
        seed: The seed of the random order. It is that of `attnaudit.data.sample`.
        measure: Measures a block of rows.
        is_enough: Whether the gates have settled after these rows.
    """
    from attnaudit.data import sample

    count, measured = len(dataset.instances), None
    for end in range(BLOCK, count, BLOCK):
        rows = sample(dataset, end, seed)
        part = measure(dataclasses.replace(rows, instances=rows.instances[end - BLOCK :]))
        measured = part if measured is None else joined(measured, part)
        if is_enough(measured):
            yield rows
    yield dataset
