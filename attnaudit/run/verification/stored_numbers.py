"""Compute the values of checks again from measurements.parquet, and compare them with those in audit.json.

The file contains the numbers per instance and per token. It contains neither the texts nor tables over a whole data
set. Intervals, values that need such tables, and the values of custom checks are therefore not computed again.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from attnaudit.arrays import Floats, Integers, Table
from attnaudit.checks.paired_gate import BaselineNumbers, PairedGate
from attnaudit.engine.measurements import ALWAYS, Measurements
from attnaudit.errors import AuditError, CheckError, DataError, ReportError
from attnaudit.instances import Dataset, Instance
from attnaudit.readings import split
from attnaudit.records import CheckRecord, RunRecord
from attnaudit.run.verification.declared_checks import built_in_check, same_arguments, tables_by_id, tables_of
from attnaudit.statistics.groups import Groups

if TYPE_CHECKING:
    import pyarrow as pa

    from attnaudit.checks.base import Check

Case: TypeAlias = tuple[str, str, int]  # model, data, seed
#: Values computed again may differ by this much, relative to their size, since sums are rounded in another order.
TOLERANCE = 1e-9
#: The beginnings of the names of columns that checks read without declaring a measure for them.
SHARED = (*ALWAYS, "attention")


class TableNotStoredError(CheckError):
    """Raised if a check reads a table over the whole data set. measurements.parquet contains no such tables."""


@dataclass(slots=True, kw_only=True)
class StoredMeasurements(Measurements):
    """The measurements in measurements.parquet. All instances get the same source, so that no interval is computed.

    Attributes:
        stored_sources: The names of the groups to which the instances belong when groups are resampled.
    """

    stored_sources: list[str]

    def table(self, name: str) -> Table:
        """Raise an error, because the Parquet file contains no tables.

        Raises:
            TableNotStoredError: Always.
        """
        raise TableNotStoredError(f"measurements.parquet does not contain the table '{name}'.")

    def counted_groups(self, chosen: NDArray[np.bool_]) -> Groups:
        """Group some of the instances by their stored source.

        Args:
            chosen: (n,) True for the instances to group.
        """
        return Groups.of(self.stored_sources, self.ids, chosen)

    def only(self, chosen: NDArray[np.bool_]) -> StoredMeasurements:
        """Return the measurements of some of the instances.

        Args:
            chosen: (n,) True for the instances to include.
        """
        part = Measurements.only(self, chosen)
        sources = [self.stored_sources[i] for i in np.flatnonzero(chosen).tolist()]
        return StoredMeasurements(**{one.name: getattr(part, one.name) for one in fields(part)}, stored_sources=sources)


def differing_values(run: RunRecord, path: Path) -> list[str]:
    """List the checks whose values in audit.json do not follow from measurements.parquet, one clause each.

    Args:
        run: The content of audit.json.
        path: The Parquet file.

    Raises:
        ReportError: The Parquet file cannot be read.
    """
    cases: dict[Case, list[tuple[CheckRecord, Check]]] = {}
    for record, check in recomputable(run):
        cases.setdefault((record.model, record.data, record.seed), []).append((record, check))
    classes = {model.name: model.classes for model in run.models if len(set(model.classes)) == len(model.classes)}
    models = {model.name: model for model in run.models}
    found = []
    for case, pairs in cases.items():
        if case[0] not in classes:
            continue
        model = models[case[0]]
        measurements = read_measurements(path, case, model.classes, pairs, no_decision=model.no_decision)
        measurements.unseen_mixers = tuple(model.unseen_mixers)
        found += [what for record, check in pairs for what in _differences(measurements, record, check)]
    return found


def recomputable(run: RunRecord) -> list[tuple[CheckRecord, Check]]:
    """Return the records whose values can be computed from measurements.parquet, each with its check.

    These are the records of the checks of attnaudit under a single reading. Some of these checks may turn out to need a
    table that the file does not contain. A paired gate uses the recorded value of its baseline, because a run does not
    contain the numbers of its baseline.
    """
    tables = tables_by_id(run.effective_policy, run.checks)
    found = []
    for record in run.checks:
        same = (table for table in tables_of(record, tables, run) if same_arguments(table, record.parameters))
        check = next((check for check in map(built_in_check, same) if check is not None), None)
        if isinstance(check, PairedGate) and record.comparison is not None:
            check = replace(check, baseline=BaselineNumbers(comparison=record.comparison))
        if check is not None and not check.several_readings:
            found.append((record, check))
    return found


def _differences(measurements: StoredMeasurements, record: CheckRecord, check: Check) -> Iterator[str]:
    place = f"{record.check} for {record.model} on {record.data}"
    if not len(measurements):
        yield f"{place}: measurements.parquet has no numbers for this check"
        return
    try:
        again = check.judge(measurements, gated=record.gated)
    except TableNotStoredError:
        return
    except AuditError as error:
        yield f"{place}: its value cannot be computed from measurements.parquet: {error}"
        return
    if not _same(again.value, record.value):
        yield f"{place}: its value is {_shown(record.value)}, but measurements.parquet gives {_shown(again.value)}"
    if (again.n, again.n_defined) != (record.n, record.n_defined):
        yield (
            f"{place}: {record.n_defined} of {record.n} instances have a value, but {again.n_defined} of {again.n} "
            "have one in measurements.parquet"
        )
    required, stored = (one.requirement.value if one.requirement else None for one in (again, record))
    if not _same(required, stored):
        yield f"{place}: its threshold is {_shown(stored)}, but measurements.parquet gives {_shown(required)}"


def read_measurements(
    path: Path,
    case: Case,
    classes: Sequence[str],
    pairs: Sequence[tuple[CheckRecord, Check]],
    *,
    no_decision: str = "",
) -> StoredMeasurements:
    """Read the columns that some checks need.

    Args:
        path: The Parquet file.
        case: The model, the data set and the seed.
        classes: The class names of the model, in the order of its logits.
        pairs: The records of the checks on that model and data set, and the checks.
        no_decision: As in `Measurements`.

    Raises:
        ReportError: The file cannot be read, or a class in it is not one of the model.
    """
    model, data, seed = case
    rows = _rows(path, case, sorted({need for _, check in pairs for need in check.needs()}))
    numbers = rows.column("instance").to_numpy()
    ids, first, positions = np.unique(numbers.astype(str), return_index=True, return_inverse=True)
    source, label, predicted = (rows.column(one).take(first).to_pylist() for one in ("source", "label", "predicted"))
    instances = [Instance(id=one, text=one, label=own) for one, own in zip(ids, label, strict=True)]
    lengths = np.zeros(len(ids), dtype=np.int64)
    valid, offsets = _lists(rows.column("tokens"))
    lengths[positions[valid]] = np.diff(offsets)[valid]
    scalars, vectors, per_token = _columns(rows, positions, len(ids))
    plain = {name for name in (*scalars, *vectors) if not split(name)[1]}
    under_reading = {split(name)[0] for name in (*scalars, *vectors) if split(name)[1]}
    return StoredMeasurements(
        model=model,
        data=data,
        seed=seed,
        classes=tuple(classes),
        instances=instances,
        sources=["all"] * len(instances),
        stored_sources=source,
        tokens=[("",) * length for length in lengths.tolist()],
        labels=_class_indices(label, classes, path),
        predicted=np.ones(len(ids), dtype=np.int64) if no_decision else _class_indices(predicted, classes, path),
        no_decision=no_decision,
        scalars=scalars,
        vectors=vectors,
        per_token=per_token,
        shared=plain - under_reading,
        readings={check.reading: [record.reading] for record, check in pairs if check.reading},
    )


def _rows(path: Path, case: Case, needs: Sequence[str]) -> pa.Table:
    """Return the rows of a model and data set in one chunk, without vectors of measures that no check needs.

    Raises:
        ReportError: The file cannot be read.
    """
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    model, data, seed = case
    chosen = (pc.field("model") == model) & (pc.field("data") == data) & (pc.field("seed") == seed)
    needed = pc.field("values").is_null()
    for name in (*SHARED, *needs):
        needed |= pc.starts_with(pc.field("measure"), name)
    columns = ["instance", "source", "label", "predicted", "measure", "value", "values", "tokens"]
    try:
        return pq.read_table(path, columns=columns, filters=chosen & needed).combine_chunks()
    except (pa.ArrowException, OSError) as error:
        raise ReportError(
            f"{path}: cannot be read as measurements: {error}. Run the audit again to write a new file."
        ) from error


def _columns(
    rows: pa.Table, positions: Integers, size: int
) -> tuple[dict[str, Floats], dict[str, Sequence[Floats]], set[str]]:
    """Return the numbers per instance, the vectors, and the names of the vectors with a number per token.

    Args:
        rows: The rows of the file.
        positions: (rows,) position of each row's instance.
        size: The number of instances.
    """
    value = rows.column("value").to_numpy().astype(np.float64)  # NaN for null
    has_vector, offsets = _lists(rows.column("values"))
    has_tokens, _ = _lists(rows.column("tokens"))
    flat = _flat(rows.column("values"))
    names, codes = np.unique(rows.column("measure").to_numpy().astype(str), return_inverse=True)
    scalars: dict[str, Floats] = {}
    vectors: dict[str, Sequence[Floats]] = {}
    per_token: set[str] = set()
    for code, name in enumerate(names.tolist()):
        chosen = np.flatnonzero(codes == code)
        if has_vector[chosen].any():
            vector: list[Floats] = [np.empty(0)] * size
            for row in chosen[has_vector[chosen]].tolist():
                vector[positions[row]] = flat[offsets[row] : offsets[row + 1]]
            vectors[name] = vector
        if not has_vector[chosen].any() or not np.isnan(value[chosen]).all():
            scalar = np.full(size, math.nan)
            scalar[positions[chosen]] = value[chosen]
            scalars[name] = scalar
        if has_tokens[chosen].any():
            per_token.add(name)
    return scalars, vectors, per_token


def _lists(column: Any) -> tuple[NDArray[np.bool_], Integers]:
    """Return the place of each list of a column in the concatenation of all of its lists.

    Returns:
        (n,) flags, True for rows that hold a list; and (n + 1,) offsets o: the list of row i is at o[i] to o[i + 1].
    """
    lengths = column.combine_chunks().value_lengths() if len(column) else None
    if lengths is None:
        return np.zeros(0, dtype=np.bool_), np.zeros(1, dtype=np.int64)
    valid = lengths.is_valid().to_numpy(zero_copy_only=False)
    return valid, np.concatenate([[0], np.cumsum(lengths.fill_null(0).to_numpy(zero_copy_only=False))])


def _flat(column: Any) -> Floats:
    """Return the numbers of all lists in a column, one list after the other; NaN for null."""
    flat: Floats = column.combine_chunks().flatten().to_numpy(zero_copy_only=False).astype(np.float64)
    return flat


def _class_indices(names: Sequence[str | None], classes: Sequence[str], path: Path) -> Integers:
    """Return the (n,) indices of classes, -1 for None.

    Raises:
        ReportError: A name is not a class of the model.
    """
    from attnaudit.data import label_indices

    instances = tuple(Instance(id=str(i), text="", label=name) for i, name in enumerate(names))
    dataset = Dataset(name=path.name, source=str(path), description="", instances=instances)
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
