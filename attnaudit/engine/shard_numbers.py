"""The numbers of one shard, and their form as the content of a Parquet file. This module does not import torch."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from attnaudit.arrays import Floats, Integers
from attnaudit.engine.ragged_columns import Array
from attnaudit.errors import ReportError

#: The metadata key of the Parquet file under which everything is stored that does not belong to a single row.
METADATA = b"attnaudit"
#: The beginnings of the names of the columns of the Parquet file.
SCALAR, VECTOR, STATE = "scalar ", "vector ", "state "
#: The names of the vectors that contain the boxes (four numbers per unit) and the times (two numbers per unit). No
#: measure has such a name, because a measure's name has no space.
BOXES, TIMES = "unit boxes", "unit times"


class Rows(NamedTuple):
    """Rows of different lengths: their values, one after the other, and the number of values of each row."""

    values: Array
    counts: Integers

    @classmethod
    def of(cls, rows: Sequence[Array]) -> Rows:
        """Join rows, which may be empty."""
        filled = [row for row in rows if len(row)]
        counts = np.array([len(row) for row in rows], dtype=np.int64)
        return cls(np.concatenate(filled) if filled else np.zeros(0), counts)


@dataclass(slots=True, kw_only=True)
class ShardNumbers:
    """The numbers measured on the n rows of one shard.

    Attributes:
        ids: The ids of the instances.
        tokens: The real units (tokens or words) of each instance, as strings.
        sequences: A hash of the tokens of each instance. It is equal for instances that the model cannot distinguish.
        predicted: (n,) predicted class indices.
        summaries: (n, S) a summary of the attention of each instance (see `attnaudit.engine.repeated_pass`).
        scalars: Column name -> (n,) numbers.
        vectors: Column name -> the arrays of the rows.
        states: Name -> the arrays of the rows that `StatefulMeasure.finish` reads.
        per_token: Names of the vector columns with one number per real unit.
        facts: Name -> a short text that says how something was measured.
        shared: Names of the columns that do not depend on the reading.
        passes: Kind of work -> how often it was done.
        batch_size: The largest number of instances in a batch.
        repeated_rows: The number of instances that ran a second time.
        repeated_difference: The largest difference between the two results of these instances.
        seconds: The wall-clock time that measuring took.
        measure_seconds: Name of a measure -> the wall-clock time that it took, without the measures before it. Work
            that several measures share counts for the first of them.
        measure_passes: Name of a measure -> kind of work -> how often it was done for this measure.
        measure_uses: Name of a measure or of a result that several measures share -> the names of the shared results
            that it uses. Shared results have their own entries in `measure_seconds` and `measure_passes`.
    """

    ids: list[str]
    tokens: list[list[str]]
    sequences: list[bytes]
    predicted: Integers
    summaries: Floats
    scalars: dict[str, Floats] = field(default_factory=dict)
    vectors: dict[str, Rows] = field(default_factory=dict)
    states: dict[str, Rows] = field(default_factory=dict)
    per_token: set[str] = field(default_factory=set)
    facts: dict[str, str] = field(default_factory=dict)
    shared: set[str] = field(default_factory=set)
    passes: dict[str, int] = field(default_factory=dict)
    batch_size: int = 0
    repeated_rows: int = 0
    repeated_difference: float = 0.0
    seconds: float = 0.0
    measure_seconds: dict[str, float] = field(default_factory=dict)
    measure_passes: dict[str, dict[str, int]] = field(default_factory=dict)
    measure_uses: dict[str, list[str]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.ids)

    def to_parquet(self) -> bytes:
        """Return the numbers as the content of a Parquet file. It does not contain the time or the passes."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        summaries = Rows(self.summaries.reshape(-1), np.full(len(self), self.summaries.shape[1], dtype=np.int64))
        columns: dict[str, Any] = {
            "instance": pa.array(self.ids, type=pa.string()),
            "tokens": pa.array(self.tokens, type=pa.list_(pa.string())),
            "sequence": pa.array(self.sequences, type=pa.binary()),
            "predicted": pa.array(self.predicted, type=pa.int64()),
            "summary": _as_lists(summaries),
        }
        columns |= {SCALAR + name: pa.array(column, type=pa.float64()) for name, column in self.scalars.items()}
        columns |= {VECTOR + name: _as_lists(rows) for name, rows in self.vectors.items()}
        columns |= {STATE + name: _as_lists(rows) for name, rows in self.states.items()}
        facts = {
            "facts": self.facts,
            "per_token": sorted(self.per_token),
            "shared": sorted(self.shared),
            "shapes": {name: list(rows.values.shape[1:]) for name, rows in self.states.items()},
        }
        table = pa.table(columns).replace_schema_metadata({METADATA: json.dumps(facts, sort_keys=True).encode()})
        file = io.BytesIO()
        # Numbers hardly get smaller by compression, but it would take most of the time.
        pq.write_table(table, file, compression="none", use_dictionary=["tokens.list.element"], write_statistics=False)
        return file.getvalue()

    @classmethod
    def from_parquet(cls, content: bytes, name: str) -> ShardNumbers:
        """Read the content of a Parquet file that `to_parquet` wrote.

        Args:
            content: The content.
            name: The path of the file, for messages.

        Raises:
            ReportError: The content is not such a file.
        """
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            table = pq.read_table(pa.BufferReader(content), use_threads=False).combine_chunks()
            facts = json.loads(table.schema.metadata[METADATA])
            for column_field in table.schema:
                is_number = not column_field.name.startswith(SCALAR) or column_field.type == pa.float64()
                if table.column(column_field.name).null_count or not is_number:
                    raise ValueError(f"column '{column_field.name}' has empty cells or another type")
            columns = {one: table.column(one) for one in table.column_names}
            summaries = _from_lists(columns.pop("summary"), ())
            # Equal tokens of all shards share their memory.
            tokens = [list(map(sys.intern, row)) for row in columns.pop("tokens").to_pylist()]
            numbers = cls(
                ids=columns.pop("instance").to_pylist(),
                tokens=tokens,
                sequences=columns.pop("sequence").to_pylist(),
                predicted=columns.pop("predicted").to_numpy().copy(),
                summaries=summaries.values.reshape(len(tokens), -1).astype(np.float64),
                scalars={
                    one.removeprefix(SCALAR): column.to_numpy().copy()
                    for one, column in columns.items()
                    if one.startswith(SCALAR)
                },
                vectors={
                    one.removeprefix(VECTOR): _from_lists(column, ())
                    for one, column in columns.items()
                    if one.startswith(VECTOR)
                },
                states={
                    one.removeprefix(STATE): _from_lists(column, tuple(facts["shapes"][one.removeprefix(STATE)]))
                    for one, column in columns.items()
                    if one.startswith(STATE)
                },
                per_token=set(facts["per_token"]),
                facts=facts["facts"],
                shared=set(facts["shared"]),
            )
            lengths = [len(row) for row in tokens]
            for column_name in sorted(numbers.per_token):
                if numbers.vectors[column_name].counts.tolist() != lengths:
                    raise ValueError(f"column '{column_name}' does not have one number per token")
            return numbers
        except (pa.ArrowException, KeyError, TypeError, ValueError, OSError) as error:
            first = (str(error).splitlines() or ["unknown"])[0]
            raise ReportError(
                f"{name} does not contain the numbers of a shard: {first}. Delete it, and measure the shard "
                "again: resume the run, or repeat `attnaudit measure`."
            ) from error


def _as_lists(rows: Rows) -> Any:
    """Convert rows to an Arrow array of lists."""
    import pyarrow as pa

    width = int(np.prod(rows.values.shape[1:], dtype=np.int64))
    ends = np.concatenate([[0], np.cumsum(rows.counts) * width]).astype(np.int64)
    return pa.LargeListArray.from_arrays(pa.array(ends), pa.array(np.ascontiguousarray(rows.values).reshape(-1)))


def _from_lists(column: Any, shape: tuple[int, ...]) -> Rows:
    """Convert an Arrow array of lists to rows of values of a shape."""
    import pyarrow.compute as pc

    width = int(np.prod(shape, dtype=np.int64)) or 1
    counts = pc.list_value_length(column).to_numpy().astype(np.int64) // width
    values = pc.list_flatten(column).to_numpy().copy().reshape(-1, *shape)
    return Rows(values, counts)
