"""Write measurements.parquet, which has one row per instance and measured column."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from attnaudit.arrays import Floats
from attnaudit.engine.measurements import Measurements
from attnaudit.engine.ragged_columns import RaggedColumn
from attnaudit.instances import labels_of
from attnaudit.processes import return_free_memory

#: Number of instances that are written at once.
ROWS_AT_ONCE = 16_384
#: Number of instances whose tokens are converted at once.
TOKENS_OF_ROWS_AT_ONCE = 1_024
#: The largest number of numbers in the vectors of one table, unless one instance has more.
NUMBERS_AT_ONCE = 2**20
SCHEMA = pa.schema(
    [
        ("model", pa.string()),
        ("data", pa.string()),
        ("seed", pa.int64()),
        ("instance", pa.string()),
        ("source", pa.string()),
        ("label", pa.string()),
        ("predicted", pa.string()),
        ("measure", pa.string()),
        ("value", pa.float64()),
        ("values", pa.list_(pa.float64())),
        ("tokens", pa.list_(pa.string())),
    ]
)
#: Further columns of a run whose units have a place in a picture or a recording.
PLACES = pa.schema(
    [
        ("file", pa.string()),
        ("file_sha256", pa.string()),
        ("boxes", pa.list_(pa.list_(pa.float32()))),
        ("times", pa.list_(pa.list_(pa.float32()))),
    ]
)


def write_measurements(measurements: Measurements, path: Path) -> None:
    """Write every scalar and vector of every instance.

    The column `source` names the group to which the instance belongs when groups are resampled. Undefined values (NaN)
    are written as null. The column `tokens` is null except for measures with one value per token. The columns `label`
    and `predicted` are null if the output is not a decision.

    If the units have a place, there are further columns: `file` and `file_sha256` name the file that the instance was
    read from. `boxes` and `times` are filled in the rows with `tokens`. `boxes` has x, y, width and height of each
    unit, as fractions of the picture. `times` has the start and the end of each unit in seconds.

    Args:
        measurements: The numbers of one model on one data set.
        path: The Parquet file to write.
    """
    schema = pa.schema([*SCHEMA, *PLACES]) if measurements.boxes or measurements.times else SCHEMA
    ids, labels = measurements.ids, labels_of(measurements.instances)
    return_free_memory()
    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        for first in range(0, len(measurements), ROWS_AT_ONCE):
            rows = slice(first, min(first + ROWS_AT_ONCE, len(measurements)))
            for table in _tables(measurements, rows, ids[rows], labels[rows], schema):
                writer.write_table(table)
            if rows.stop < len(measurements):
                del table
                return_free_memory()


def _tables(
    measurements: Measurements, rows: slice, ids: Sequence[str], labels: Sequence[str | None], schema: pa.Schema
) -> Iterator[pa.Table]:
    """Yield the scalars and vectors of consecutive instances as tables of a single measure.

    A table has one row per instance. A vector with many numbers per instance is divided into several tables.
    """
    n = rows.stop - rows.start
    tokens = _tokens(measurements, rows)
    shared = {
        "model": pa.array([measurements.model] * n, type=pa.string()),
        "data": pa.array([measurements.data] * n, type=pa.string()),
        "seed": pa.array([measurements.seed] * n, type=pa.int64()),
        "instance": pa.array(ids, type=pa.string()),
        "source": pa.array(measurements.sources[rows], type=pa.string()),
        "label": pa.array(_labels(measurements, labels, rows), type=pa.string()),
        "predicted": pa.nulls(n, pa.string())
        if measurements.no_decision
        else pa.array([measurements.classes[i] for i in measurements.predicted[rows]], type=pa.string()),
    }
    places: dict[str, pa.Array] = {}
    if measurements.boxes or measurements.times:
        instances = measurements.instances[rows]
        shared["file"] = pa.array([instance.file for instance in instances], type=pa.string())
        hashes = [instance.file_sha256 or None for instance in instances]
        shared["file_sha256"] = pa.array(hashes, type=pa.string())
        for name in ("boxes", "times"):
            given = [row.tolist() for row in getattr(measurements, name)[rows]] or [None] * n
            places[name] = pa.array(given, type=PLACES.field(name).type)
    for name in sorted({*measurements.scalars, *measurements.vectors}):
        scalar = measurements.scalars.get(name)
        vector = measurements.vectors.get(name)
        step = n if vector is None else _rows_of_table(vector, rows)
        for first in range(0, n, step):
            stop = min(first + step, n)
            some = slice(rows.start + first, rows.start + stop)
            columns = {
                **shared,
                "measure": pa.array([name] * n, type=pa.string()),
                "value": pa.nulls(n, pa.float64()) if scalar is None else pa.array(scalar[rows], from_pandas=True),
                "tokens": tokens if name in measurements.per_token else pa.nulls(n, pa.list_(pa.string())),
            }
            for place, of_rows in places.items():
                columns[place] = of_rows if name in measurements.per_token else pa.nulls(n, of_rows.type)
            columns = {column: array[first:stop] for column, array in columns.items()}
            columns["values"] = (
                pa.nulls(stop - first, pa.list_(pa.float64())) if vector is None else _lists(vector[some])
            )
            yield pa.table(columns, schema=schema)


def _rows_of_table(vector: Sequence[Floats], rows: slice) -> int:
    """Return the number of rows of a table of a vector: fewer than `rows` if they have very many numbers."""
    count: int = rows.stop - rows.start
    if not isinstance(vector, RaggedColumn):
        return count
    numbers = int(vector.ends[rows.stop - 1]) - (int(vector.ends[rows.start - 1]) if rows.start else 0)
    return max(1, count // -(-max(1, numbers) // NUMBERS_AT_ONCE))


def _tokens(measurements: Measurements, rows: slice) -> pa.Array:
    """Return the tokens of consecutive instances, of which only a few are converted at once."""
    bounds = [*range(rows.start, rows.stop, TOKENS_OF_ROWS_AT_ONCE), rows.stop]
    return pa.concat_arrays(
        pa.array([list(row) for row in measurements.tokens[first:stop]], type=pa.list_(pa.string()))
        for first, stop in pairwise(bounds)
    )


def _labels(measurements: Measurements, labels: Sequence[str | None], rows: slice) -> list[str | None]:
    """Return the labels of consecutive instances.

    Each is the label in the data or, if an instance has several labels, the class that follows from them. It is None if
    the output is not a decision.
    """
    if measurements.no_decision:
        return [None] * len(labels)
    return [
        label if label is not None or index < 0 else measurements.classes[index]
        for label, index in zip(labels, measurements.labels[rows].tolist(), strict=True)
    ]


def _lists(rows: Sequence[np.ndarray[tuple[int, ...], np.dtype[np.float64]]]) -> pa.Array:
    """Convert rows of different lengths to an Arrow array of lists."""
    offsets = np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.int32)
    flat = np.concatenate([np.asarray(row, dtype=np.float64).ravel() for row in rows]) if rows else np.empty(0)
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(flat, type=pa.float64(), from_pandas=True))


def merge_measurements(parts: Sequence[Path], path: Path) -> None:
    """Concatenate Parquet files, one row group at a time to save memory. A single part is moved, not copied.

    Args:
        parts: The files, in the order of the result.
        path: The file to write.
    """
    if len(parts) == 1:
        parts[0].replace(path)
        return
    partial = path.with_name(path.name + ".partial")
    # Some of the parts may lack the columns of places.
    schema = pa.unify_schemas([SCHEMA, *(pq.read_schema(part) for part in parts)])
    with pq.ParquetWriter(partial, schema, compression="zstd") as writer:
        for part in parts:
            with pq.ParquetFile(part) as file:
                for group in range(file.num_row_groups):
                    table = file.read_row_group(group)
                    for absent in (one for one in schema if one.name not in table.column_names):
                        table = table.append_column(absent, pa.nulls(len(table), absent.type))
                    writer.write_table(table.select(schema.names))
    partial.replace(path)
