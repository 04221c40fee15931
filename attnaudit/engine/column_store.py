"""Store the columns of a shard, to which each of its batches adds, in arrays on the CPU."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from attnaudit.arrays import Floats, Integers
from attnaudit.engine.batch import Batch
from attnaudit.engine.columns import Columns
from attnaudit.engine.planning import PlannedMeasure
from attnaudit.engine.ragged_columns import Array
from attnaudit.readings import named


class ColumnStore:
    """The columns of one shard. Each batch adds the numbers of its instances.

    `ShardNumbers` has attributes with the same names: `predicted`, `scalars`, `vectors`, `states`, `per_token`, `facts`
    and `shared`.

    Args:
        n: number of instances in the shard.
        first: index of the first instance of the shard in the whole data set.
    """

    def __init__(self, n: int, first: int) -> None:
        self.n = n
        self.first = first
        self.predicted: Integers = np.zeros(n, dtype=np.int64)
        self.scalars: dict[str, Floats] = {}
        self.vectors: dict[str, list[Floats]] = {}
        self.states: dict[str, list[Array]] = {}
        self.per_token: set[str] = set()
        self.facts: dict[str, str] = {}
        self.shared: set[str] = set()

    def add(self, batch: Batch, columns: Columns, planned: PlannedMeasure) -> None:
        """Store the columns that a measure returned for a batch. Their names are extended by the reading."""
        positions = [position - self.first for position in batch.positions]
        real = batch.real_on_cpu
        self.predicted[positions] = batch.predicted_on_cpu
        plain = (*columns.scalars, *columns.tokens, *columns.vectors, *columns.facts)
        if not planned.measure.depends_on_reading:
            self.shared.update(plain)
        full_name = {name: named(name, planned.reading) for name in plain}
        groups = (columns.scalars, columns.tokens, columns.vectors)
        found = iter(_on_cpu([one for group in groups for one in group.values()]))
        for name in columns.scalars:
            column = self.scalars.setdefault(full_name[name], np.full(self.n, np.nan))
            column[positions] = next(found)
        ends = real.sum(1).cumsum()[:-1]
        for name in columns.tokens:
            self.per_token.add(full_name[name])
            # The rows are views of one array per batch, because thousands of small arrays would fragment the memory.
            self._add_vectors(full_name[name], positions, np.split(next(found)[real], ends))
        for name in columns.vectors:
            self._add_vectors(full_name[name], positions, list(next(found)))
        self.facts.update({full_name[name]: fact for name, fact in columns.facts.items()})
        for name, rows in columns.states.items():
            stored = self.states.setdefault(named(name, planned.reading), [np.empty(0)] * self.n)
            for position, array in zip(positions, rows, strict=True):
                stored[position] = array

    def _add_vectors(self, name: str, positions: Sequence[int], rows: list[Floats]) -> None:
        column = self.vectors.setdefault(name, [np.empty(0)] * self.n)
        for position, row in zip(positions, rows, strict=True):
            column[position] = row


def _on_cpu(tensors: Sequence[Tensor]) -> list[Floats]:
    """Return tensors as arrays of float64. Tensors on another device are copied to the CPU together.

    Each copy waits until the device has finished its work.
    """
    wide = [tensor.double() for tensor in tensors]
    if len({tensor.device for tensor in wide}) != 1 or wide[0].device.type == "cpu":
        return [tensor.cpu().numpy() for tensor in wide]
    entries = torch.cat([tensor.reshape(-1) for tensor in wide]).cpu().numpy()
    parts = np.split(entries, np.cumsum([tensor.numel() for tensor in wide])[:-1])
    return [part.reshape(tuple(tensor.shape)) for part, tensor in zip(parts, wide, strict=True)]
