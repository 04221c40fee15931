"""Store the columns of a shard, to which each of its batches adds, in arrays on the CPU."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from attnaudit.arrays import Floats, Integers
from attnaudit.engine.batches.batch import Batch
from attnaudit.engine.columns import Columns
from attnaudit.engine.measurements import ALWAYS
from attnaudit.engine.planning import PlannedMeasure
from attnaudit.engine.ragged_columns import Array
from attnaudit.engine.shard_numbers import Rows
from attnaudit.errors import CheckError
from attnaudit.readings import named


class ColumnStore:
    """The columns of one shard. Each batch adds the numbers of its instances.

    `ShardNumbers` has attributes with the same names: `predicted`, `scalars`, `states`, `per_token`, `facts` and
    `shared`.

    Args:
        n: Number of instances in the shard.
        first: Index of the first instance of the shard in the whole data set.
    """

    def __init__(self, n: int, first: int) -> None:
        self.n = n
        self.first = first
        self.predicted: Integers = np.zeros(n, dtype=np.int64)
        self.scalars: dict[str, Floats] = {}
        self._vectors: defaultdict[str, list[tuple[Integers, Rows]]] = defaultdict(list)
        self.states: dict[str, list[Array]] = {}
        self.per_token: set[str] = set()
        self.facts: dict[str, str] = {}
        self.shared: set[str] = set()
        self._measure_of: dict[str, str] = {}

    def add(self, batch: Batch, columns: Columns, planned: PlannedMeasure) -> None:
        """Store the columns that a measure returned for a batch. Their names are extended by the reading.

        Raises:
            CheckError: A column does not have the shape that `Columns` requires.
        """
        positions = np.array(batch.positions) - self.first
        real = batch.real_on_cpu
        _require_shapes(columns, planned, real.shape)
        self.predicted[positions] = batch.predicted_on_cpu
        plain = (*columns.scalars, *columns.tokens, *columns.vectors, *columns.facts)
        self._require_own((*columns.scalars, *columns.tokens, *columns.vectors, *columns.states), planned)
        if not planned.measure.depends_on_reading:
            self.shared.update(plain)
        full_name = {name: named(name, planned.reading) for name in plain}
        groups = (columns.scalars, columns.tokens, columns.vectors)
        found = iter(_on_cpu([one for group in groups for one in group.values()]))
        for name in columns.scalars:
            column = self.scalars.setdefault(full_name[name], np.full(self.n, np.nan))
            column[positions] = next(found)
        for name in columns.tokens:
            self.per_token.add(full_name[name])
            self._vectors[full_name[name]].append((positions, Rows(next(found)[real], real.sum(1))))
        for name in columns.vectors:
            rows = next(found)
            counts = np.full(len(rows), rows.shape[1])
            self._vectors[full_name[name]].append((positions, Rows(rows.reshape(-1), counts)))
        self.facts.update({full_name[name]: fact for name, fact in columns.facts.items()})
        for name, arrays in columns.states.items():
            stored = self.states.setdefault(named(name, planned.reading), [np.empty(0)] * self.n)
            for position, array in zip(positions.tolist(), arrays, strict=True):
                stored[position] = array

    def _require_own(self, names: Sequence[str], planned: PlannedMeasure) -> None:
        """Require that no other measure has returned a column of the same name, which would replace its numbers.

        Raises:
            CheckError: Another measure has.
        """
        for name in names:
            other = self._measure_of.setdefault(named(name, planned.reading), planned.name)
            if other != planned.name:
                raise CheckError(
                    f"measure '{planned.name}': its column '{name}' has the name of a column of the measure '{other}', "
                    "whose numbers it would replace. Begin the names of columns with `request.name`."
                )

    def vectors(self) -> dict[str, Rows]:
        """Return column name -> the rows of the column in the order of the instances.

        If a batch ran again after memory ran out, its latest rows count.
        """
        return {name: self._in_order(batches) for name, batches in self._vectors.items()}

    def _in_order(self, batches: Sequence[tuple[Integers, Rows]]) -> Rows:
        """Return the rows of several batches in the order of the instances. Instances without a row have no values.

        Args:
            batches: The positions of the instances of each batch, and their rows.
        """
        positions = np.concatenate([positions for positions, _ in batches])
        latest = np.full(self.n, -1)
        latest[positions] = np.arange(len(positions))  # If a position occurs several times, its last number is kept.
        values = np.concatenate([rows.values for _, rows in batches])
        counts = np.concatenate([rows.counts for _, rows in batches])
        order = latest[latest >= 0]
        starts, kept = (counts.cumsum() - counts)[order], counts[order]
        places = np.arange(kept.sum()) + np.repeat(starts - (kept.cumsum() - kept), kept)
        return Rows(values[places], np.where(latest >= 0, counts[latest], 0))


def require_columns(columns: object, planned: PlannedMeasure) -> None:
    """Require that a measure returned columns, and that their names begin with the name of the measure.

    A check sees only the columns that are named after the measures that it needs.

    Args:
        columns: What the measure returned for a batch.
        planned: The measure.

    Raises:
        CheckError: The measure returned something else, or a column has another name.
    """
    name = planned.measure.name
    if not isinstance(columns, Columns):
        found = "None" if columns is None else f"an object of type {type(columns).__name__}"
        raise CheckError(
            f"measure '{name}' returned {found}; expected Columns. Import Columns from attnaudit.measures, and return, "
            "for example, Columns(scalars={request.name: values})."
        )
    for column in (*columns.scalars, *columns.tokens, *columns.vectors):
        if column != name and not column.startswith(f"{name}.") and column not in ALWAYS:
            raise CheckError(
                f"measure '{name}' returned the column '{column}'; expected '{name}', or this name with a suffix, such "
                f"as '{name}.{column}'. Write request.name, or f\"{{request.name}}.{column}\"."
            )


def _require_shapes(columns: Columns, planned: PlannedMeasure, batch: tuple[int, ...]) -> None:
    """Require one row of numbers per instance, because a single number would be copied to all instances.

    Args:
        columns: The columns of a batch.
        planned: The measure that returned them.
        batch: The numbers of instances and of tokens.

    Raises:
        CheckError: A column has another shape.
    """
    rows, tokens = batch
    for kind, dimensions, described in (
        ("scalars", 1, f"({rows},), one number per instance"),
        ("tokens", 2, f"({rows}, {tokens}), one number per token"),
        ("vectors", 2, f"({rows}, L), L numbers per instance"),
    ):
        for name, column in getattr(columns, kind).items():
            if not isinstance(column, Tensor):
                raise CheckError(
                    f"measure '{planned.name}': the column '{name}' in Columns.{kind} is of type "
                    f"{type(column).__name__}; expected a torch tensor of shape {described}."
                )
            shape = tuple(column.shape)
            if len(shape) != dimensions or shape[0] != rows or (kind == "tokens" and shape[1] != tokens):
                raise CheckError(
                    f"measure '{planned.name}': the column '{name}' in Columns.{kind} has shape {shape}; expected "
                    f"{described}."
                )


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
