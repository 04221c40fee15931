"""Compute the values of checks again from measurements.parquet, and compare them with those in audit.json.

The file contains the numbers per instance and per token, but neither the texts nor tables over a whole data set. So
intervals, values that need such tables, and those of custom checks are not computed again.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from attnaudit.arrays import Floats, Table
from attnaudit.engine.measurements import ALWAYS, Measurements
from attnaudit.errors import AuditError, CheckError, DataError, ReportError
from attnaudit.instances import Dataset, Instance
from attnaudit.readings import split
from attnaudit.records import CheckRecord, ModelRecord, RunRecord
from attnaudit.run.declared_checks import built_in_check, tables_by_id

if TYPE_CHECKING:
    import pyarrow as pa

    from attnaudit.checks.base import Check

#: Values computed again may differ by this much, relative to their size, since sums are rounded in another order.
TOLERANCE = 1e-9
#: The beginnings of the names of columns that checks read without declaring a measure for them.
SHARED = (*ALWAYS, "attention")


class TableNotStoredError(CheckError):
    """A check reads a table over the whole data set, which measurements.parquet does not contain."""


@dataclass(slots=True, kw_only=True)
class StoredMeasurements(Measurements):
    """The measurements in measurements.parquet. All instances are of one source, so that no interval is computed."""

    def table(self, name: str) -> Table:
        """Refuse a table.

        Raises:
            TableNotStoredError: Always.
        """
        raise TableNotStoredError(f"measurements.parquet does not contain the table '{name}'.")


def differing_values(run: RunRecord, path: Path) -> list[str]:
    """List the checks in audit.json whose values do not follow from measurements.parquet, one clause each.

    Args:
        run: The content of audit.json.
        path: The Parquet file.

    Raises:
        ReportError: The Parquet file cannot be read.
    """
    return [what for record, check in recomputable(run) for what in _differences(run, record, check, path)]


def recomputable(run: RunRecord) -> list[tuple[CheckRecord, Check]]:
    """Return the records whose values may follow from measurements.parquet alone, with the declared checks.

    These are the records of the checks that attnaudit provides, under a single reading.
    """
    tables = tables_by_id(run.effective_policy, run.checks)
    pairs = ((record, tables.get(record.check)) for record in run.checks)
    declared = ((record, built_in_check(table)) for record, table in pairs if table is not None)
    return [(record, check) for record, check in declared if check is not None and not check.several_readings]


def _differences(run: RunRecord, record: CheckRecord, check: Check, path: Path) -> Iterator[str]:
    place = f"{record.check} for {record.model} on {record.data}"
    model = next((model for model in run.models if model.name == record.model), None)
    if model is None or len(set(model.classes)) < len(model.classes):
        return
    measurements = read_measurements(path, record, model, check)
    if not len(measurements):
        yield f"{place}: measurements.parquet has no numbers for it"
        return
    try:
        again = check.judge(measurements, gated=record.gated)
    except TableNotStoredError:
        return
    except AuditError as error:
        yield f"{place}: its value does not follow from measurements.parquet: {error}"
        return
    if not _same(again.value, record.value):
        yield f"{place}: its value is {_shown(record.value)}, but measurements.parquet gives {_shown(again.value)}"
    if (again.n, again.n_defined) != (record.n, record.n_defined):
        yield (
            f"{place}: {record.n_defined} of {record.n} instances have a value, but in measurements.parquet "
            f"{again.n_defined} of {again.n}"
        )
    required, stored = (one.requirement.value if one.requirement else None for one in (again, record))
    if not _same(required, stored):
        yield f"{place}: its threshold is {_shown(stored)}, but measurements.parquet gives {_shown(required)}"


def read_measurements(path: Path, record: CheckRecord, model: ModelRecord, check: Check) -> StoredMeasurements:
    """Read the columns that a check needs for its record.

    Raises:
        ReportError: The file cannot be read.
    """
    rows = _rows(path, record, check)
    first: dict[str, int] = {}
    lengths: dict[str, int] = {}
    for row, (instance, length) in enumerate(
        zip(rows.column("instance").to_pylist(), _list_lengths(rows.column("tokens")), strict=True)
    ):
        first.setdefault(instance, row)
        if length is not None:
            lengths[instance] = length
    ids = sorted(first)
    label, predicted = (rows.column(name).to_pylist() for name in ("label", "predicted"))
    instances = [Instance(id=one, text=one, label=label[first[one]], source="all") for one in ids]
    scalars, vectors, per_token = _columns(rows, ids)
    plain = {name for name in (*scalars, *vectors) if not split(name)[1]}
    under_reading = {split(name)[0] for name in (*scalars, *vectors) if split(name)[1]}
    return StoredMeasurements(
        model=record.model,
        data=record.data,
        seed=record.seed,
        classes=tuple(model.classes),
        instances=instances,
        tokens=[("",) * lengths.get(one, 0) for one in ids],
        labels=_labels(instances, model.classes, path),
        predicted=np.array([model.classes.index(predicted[first[one]]) for one in ids], dtype=np.int64),
        scalars=scalars,
        vectors=vectors,
        per_token=per_token,
        shared=plain - under_reading,
        readings={check.reading: [record.reading]} if check.reading else {},
    )


def _rows(path: Path, record: CheckRecord, check: Check) -> pa.Table:
    """Return the rows of the model and data set of a record, without vectors of measures that the check does not need.

    Raises:
        ReportError: The file cannot be read.
    """
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    case = (pc.field("model") == record.model) & (pc.field("data") == record.data) & (pc.field("seed") == record.seed)
    needed = pc.field("values").is_null()
    for name in (*SHARED, *check.needs()):
        needed |= pc.starts_with(pc.field("measure"), name)
    columns = ["instance", "label", "predicted", "measure", "value", "values", "tokens"]
    try:
        return pq.read_table(path, columns=columns, filters=case & needed)
    except (pa.ArrowException, OSError) as error:
        raise ReportError(
            f"{path}: cannot be read as measurements: {error}. Run the audit again to write a new file."
        ) from error


def _list_lengths(column: Any) -> list[int | None]:
    import pyarrow.compute as pc

    lengths: list[int | None] = pc.list_value_length(column).to_pylist()
    return lengths


def _columns(rows: pa.Table, ids: Sequence[str]) -> tuple[dict[str, Floats], dict[str, list[Floats]], set[str]]:
    """Return the numbers per instance, the vectors, and the names of the vectors with a number per token."""
    positions = {one: i for i, one in enumerate(ids)}
    at: dict[str, list[int]] = {}
    for row, name in enumerate(rows.column("measure").to_pylist()):
        at.setdefault(name, []).append(row)
    scalars: dict[str, Floats] = {}
    vectors: dict[str, list[Floats]] = {}
    per_token: set[str] = set()
    for name, chosen in at.items():
        part = rows.take(chosen)
        target = [positions[one] for one in part.column("instance").to_pylist()]
        value = part.column("value")
        values = part.column("values")
        if values.null_count < len(part):
            vector: list[Floats] = [np.empty(0) for _ in ids]
            for position, numbers in zip(target, values, strict=True):
                if numbers.is_valid:
                    vector[position] = numbers.values.to_numpy(zero_copy_only=False).astype(np.float64)
            vectors[name] = vector
        if values.null_count == len(part) or value.null_count < len(part):
            scalar = np.full(len(ids), math.nan)
            scalar[target] = value.to_numpy().astype(np.float64)
            scalars[name] = scalar
        if part.column("tokens").null_count < len(part):
            per_token.add(name)
    return scalars, vectors, per_token


def _labels(instances: Sequence[Instance], classes: Sequence[str], path: Path) -> Any:
    """Return the (n,) class indices of the labels, -1 where there is none.

    Raises:
        ReportError: A label is not a class of the model.
    """
    from attnaudit.data import label_indices

    dataset = Dataset(name=path.name, source=str(path), description="", instances=tuple(instances))
    try:
        return np.array(label_indices(dataset, classes), dtype=np.int64)
    except DataError as error:
        raise ReportError(f"{path}: {error}") from error


def _same(first: float | None, second: float | None) -> bool:
    if first is None or second is None:
        return first is second
    return math.isclose(first, second, rel_tol=TOLERANCE, abs_tol=TOLERANCE)


def _shown(value: float | None) -> str:
    return "undefined" if value is None else f"{value:.9g}"
