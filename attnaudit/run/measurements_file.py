"""Write measurements.parquet, which has one row per instance and measured column."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from attnaudit.engine.measurements import Measurements

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


def write_measurements(measurements: Measurements, path: Path) -> None:
    """Write every scalar and vector of every instance.

    The column `source` names the group to which the instance belongs when groups are resampled. Undefined values (NaN)
    are written as null. The column `tokens` is null except for measures with one value per token. The columns `label`
    and `predicted` are null if the output stands for no decision.

    Args:
        measurements: The numbers of one model on one data set.
        path: The Parquet file to write.
    """
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
    with pq.ParquetWriter(path, SCHEMA, compression="zstd") as writer:
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
            writer.write_table(pa.table(columns, schema=SCHEMA))


def _labels(measurements: Measurements) -> list[str | None]:
    """Return the label of each instance.

    It is the label in the data. If an instance has several labels, it is the class that follows from them. None if the
    output stands for no decision.
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
    with pq.ParquetWriter(partial, SCHEMA, compression="zstd") as writer:
        for part in parts:
            with pq.ParquetFile(part) as file:
                for group in range(file.num_row_groups):
                    writer.write_table(file.read_row_group(group))
    partial.replace(path)
