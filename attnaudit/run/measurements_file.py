"""Write measurements.parquet, which has one row per instance and measured column."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from attnaudit.engine.measurements import Measurements

#: Number of instances that are written at once.
ROWS_AT_ONCE = 16_384
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
    read from. In the rows with `tokens`, `boxes` has x, y, width and height of each unit, as fractions of the picture,
    and `times` has its start and its end in seconds.

    Args:
        measurements: The numbers of one model on one data set.
        path: The Parquet file to write.
    """
    schema = pa.schema([*SCHEMA, *PLACES]) if measurements.boxes or measurements.times else SCHEMA
    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        for first in range(0, len(measurements), ROWS_AT_ONCE):
            part = _part(measurements, slice(first, first + ROWS_AT_ONCE))
            for table in _tables(part, schema):
                writer.write_table(table)


def _part(measurements: Measurements, rows: slice) -> Measurements:
    """Return the measurements of consecutive instances, without tables."""
    return dataclasses.replace(
        measurements,
        instances=measurements.instances[rows],
        sources=measurements.sources[rows],
        tokens=measurements.tokens[rows],
        labels=measurements.labels[rows],
        predicted=measurements.predicted[rows],
        scalars={name: column[rows] for name, column in measurements.scalars.items()},
        vectors={name: column[rows] for name, column in measurements.vectors.items()},
        boxes=measurements.boxes[rows],
        times=measurements.times[rows],
        tables={},
    )


def _tables(measurements: Measurements, schema: pa.Schema) -> Iterator[pa.Table]:
    """Yield a table for every scalar and vector, with one row per instance."""
    n = len(measurements)
    tokens = pa.array([list(row) for row in measurements.tokens], type=pa.list_(pa.string()))
    shared = {
        "model": pa.array([measurements.model] * n, type=pa.string()),
        "data": pa.array([measurements.data] * n, type=pa.string()),
        "seed": pa.array([measurements.seed] * n, type=pa.int64()),
        "instance": pa.array(measurements.ids, type=pa.string()),
        "source": pa.array(measurements.sources, type=pa.string()),
        "label": pa.array(_labels(measurements), type=pa.string()),
        "predicted": pa.nulls(n, pa.string())
        if measurements.no_decision
        else pa.array([measurements.classes[i] for i in measurements.predicted], type=pa.string()),
    }
    places: dict[str, pa.Array] = {}
    if measurements.boxes or measurements.times:
        shared["file"] = pa.array([instance.file for instance in measurements.instances], type=pa.string())
        hashes = [instance.file_sha256 or None for instance in measurements.instances]
        shared["file_sha256"] = pa.array(hashes, type=pa.string())
        for name in ("boxes", "times"):
            rows = [row.tolist() for row in getattr(measurements, name)] or [None] * n
            places[name] = pa.array(rows, type=PLACES.field(name).type)
    for name in sorted({*measurements.scalars, *measurements.vectors}):
        scalar = measurements.scalars.get(name)
        vector = measurements.vectors.get(name)
        columns = {
            **shared,
            "measure": pa.array([name] * n, type=pa.string()),
            "value": pa.nulls(n, pa.float64()) if scalar is None else pa.array(scalar, from_pandas=True),
            "values": pa.nulls(n, pa.list_(pa.float64())) if vector is None else _lists(vector),
            "tokens": tokens if name in measurements.per_token else pa.nulls(n, pa.list_(pa.string())),
        }
        for place, rows in places.items():
            columns[place] = rows if name in measurements.per_token else pa.nulls(n, rows.type)
        yield pa.table(columns, schema=schema)


def _labels(measurements: Measurements) -> list[str | None]:
    """Return the label of each instance.

    It is the label in the data. If an instance has several labels, it is the class that follows from them. None if the
    output is not a decision.
    """
    if measurements.no_decision:
        return [None] * len(measurements)
    return [
        one.label if one.label is not None or index < 0 else measurements.classes[index]
        for one, index in zip(measurements.instances, measurements.labels.tolist(), strict=True)
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
    # Of the parts, perhaps only some have the columns of places.
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
