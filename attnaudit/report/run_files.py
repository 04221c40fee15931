"""Read the files of a run: all of audit.json, and the rows of measurements.parquet that the report shows."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from attnaudit.errors import ReportError, require_regular_file
from attnaudit.processes import return_free_memory
from attnaudit.records import SCHEMA_VERSION, RunRecord
from attnaudit.report.parquet_row_groups import RowGroups, only_value

if TYPE_CHECKING:
    import pyarrow as pa

#: Columns that exist only if the units have a place in a picture or a recording.
PLACES = ("file", "file_sha256", "boxes", "times")
COLUMNS = ("model", "data", "seed", "instance", "label", "predicted", "measure", "value", "values", "tokens")
RUN_AGAIN = "Run the audit again to write a new file."
KILLED = "was killed before it ended, so its verdicts are lost. Run the audit again."

Case: TypeAlias = tuple[str, str, int]  # the names of the model and the data set, and the seed


class _Version(msgspec.Struct):
    schema_version: int


@dataclass(slots=True, kw_only=True)
class MeasuredInstance:
    """The measurements of one instance.

    Attributes:
        label: The label of the instance; None if it has none.
        predicted: The predicted class; "" if it is unknown.
        tokens: The tokens of the instance.
        columns: Name of a measure -> one number per token. A number that is undefined is None. If the measure is
            undefined on the whole instance, None replaces the list.
        file: The file that the instance was read from; "" for a text.
        file_sha256: The SHA-256 hash of the file; "" if it is unknown.
        boxes: x, y, width and height of each token, as fractions of the picture; empty if it has none.
        times: The start and the end of each token in seconds; empty if it has none.
    """

    label: str | None
    predicted: str
    file: str = ""
    file_sha256: str = ""
    boxes: list[list[float]] = field(default_factory=list)
    times: list[list[float]] = field(default_factory=list)
    tokens: list[str] = field(default_factory=list)
    columns: dict[str, list[float | None] | None] = field(default_factory=dict)


def read_run(folder: Path) -> RunRecord:
    """Read audit.json of a run folder.

    Raises:
        ReportError: The file is missing, unreadable, corrupt or of another schema version.
    """
    path = folder / "audit.json"
    if not _exists(path):
        if (folder / "parts").is_dir():
            raise ReportError(f"{path}: there is no such file. The run {KILLED}")
        raise ReportError(
            f"{path}: there is no such file. Expected the folder of one run, such as reports/<run>. {_hint(folder)}"
        )
    return read_run_file(path)


def read_run_file(path: Path) -> RunRecord:
    """Read a file with the content of audit.json.

    Raises:
        ReportError: The file is missing, unreadable, corrupt or of another schema version.
    """
    require_regular_file(path, "the record of a run", ReportError)
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        raise ReportError(f"{path}: there is no such file. Expected the audit.json of a run.") from None
    except OSError as error:
        raise ReportError(f"{path}: cannot be read ({error.strerror}). Make the file readable.") from error
    try:
        version = msgspec.json.decode(raw, type=_Version).schema_version
        if version != SCHEMA_VERSION:
            raise ReportError(
                f"{path}: schema_version is {version}, expected {SCHEMA_VERSION}. Build the report with the version "
                "of attnaudit that wrote the file, or run the audit again with this version."
            )
        return msgspec.json.decode(raw, type=RunRecord)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ReportError(f"{path}: not a valid audit record: {error}. {RUN_AGAIN}") from error


def _exists(path: Path) -> bool:
    """Return whether a path exists. Raise ReportError if its folder cannot be accessed."""
    try:
        return path.exists()
    except OSError as error:
        raise ReportError(f"{path}: cannot be read ({error.strerror}). Make the file readable.") from error


def _hint(folder: Path) -> str:
    """Return a sentence that says which folder to give instead. It depends on the content of the given folder."""
    newest = folder / "latest.txt"
    if newest.is_file():
        return f"{newest} names the newest run in this folder."
    killed = [part.parent for part in sorted(folder.glob("*/parts")) if not (part.parent / "audit.json").is_file()]
    if killed:
        return f"The run in {killed[-1]} {KILLED}"
    return "Give the folder that holds audit.json."


class MeasurementsFile:
    """The measurements.parquet of a run folder. One row group is read at a time.

    Args:
        folder: The run folder.

    Attributes:
        path: The path of the file.
        measured: Model, data set and seed -> the names of the measures. None if the folder has no measurements.parquet.

    Raises:
        ReportError: The file is corrupt, or a column is missing.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / "measurements.parquet"
        self.measured: dict[Case, set[str]] | None = None
        if self.path.is_file():
            with self._report_errors():
                self._groups = RowGroups(self.path)
            self._check_columns()
            self.measured = self._measure_names()

    def _check_columns(self) -> None:
        present = self._groups.schema.names
        absent = [name for name in COLUMNS if name not in present]
        if absent:
            raise ReportError(
                f"{self.path}: the file has no column {', '.join(map(repr, absent))}. Expected the columns "
                f"{', '.join(COLUMNS)}. {RUN_AGAIN}"
            )

    @contextlib.contextmanager
    def _report_errors(self) -> Iterator[None]:
        import pyarrow as pa

        try:
            yield
        except (pa.ArrowException, OSError) as error:
            raise ReportError(f"{self.path}: cannot be read as measurements: {error}. {RUN_AGAIN}") from error

    def _types(self) -> pa.Schema:
        """Return the types to which the columns are converted."""
        import pyarrow as pa

        types = {"seed": pa.int64(), "value": pa.float64()}
        types |= {"values": pa.list_(pa.float64()), "tokens": pa.list_(pa.string())}
        types |= {name: pa.list_(pa.list_(pa.float32())) for name in ("boxes", "times")}
        names = [*COLUMNS, *(name for name in PLACES if name in self._groups.schema.names)]
        return pa.schema([(name, types.get(name, pa.string())) for name in names])

    def _measure_names(self) -> dict[Case, set[str]]:
        keys = ["model", "data", "seed", "measure"]
        measures: dict[Case, set[str]] = {}
        with self._report_errors():
            for group in self._groups:
                rows = group.read_row_group(0, columns=keys, use_threads=False).group_by(keys).aggregate([])
                for row in rows.to_pylist():
                    measures.setdefault((row["model"], row["data"], row["seed"]), set()).add(row["measure"])
        return measures

    def instances(
        self, pairs: Iterable[tuple[Case, str]], measures: Iterable[str]
    ) -> dict[tuple[Case, str], MeasuredInstance]:
        """Read some measures of some instances.

        Args:
            pairs: Pairs of a case (model, data set and seed) and the id of an instance.
            measures: The names of the measures.

        Returns:
            Pair -> the measurements of the instance. Instances that the file does not contain are left out.

        Raises:
            ReportError: The file is corrupt.
        """
        requested = set(pairs)
        instances: dict[tuple[Case, str], MeasuredInstance] = {}
        if self.measured is None or not requested:
            return instances
        import pyarrow as pa
        import pyarrow.compute as pc

        # Only the ids are compared here. Rows of other cases with the same ids are skipped below.
        ids = pa.array(sorted({instance for _, instance in requested}), pa.string())
        wanted = set(measures)
        names = pa.array(sorted(wanted), pa.string())
        types = self._types()
        with self._report_errors():
            for group in self._groups:
                only = only_value(group, "measure")
                if only is not None and only not in wanted:
                    continue
                keys = _read(group, pa.schema([types.field(name) for name in ("instance", "measure")]))
                found = pc.and_(pc.is_in(keys["instance"], value_set=ids), pc.is_in(keys["measure"], value_set=names))
                places = pc.indices_nonzero(found)
                for row in _read(group, types, places).to_pylist() if len(places) else ():
                    key = ((row["model"], row["data"], row["seed"]), row["instance"])
                    if key in requested:
                        _add_row(instances, key, row)
                return_free_memory(libraries=False)
        return instances


def _read(group: Any, types: pa.Schema, places: Any = None) -> pa.Table:
    """Read some columns of a row group, of the given types.

    Args:
        group: The row group (see `RowGroups`).
        types: The columns.
        places: The places of the rows; None for all rows.
    """
    table: pa.Table = group.read_row_group(0, columns=types.names, use_threads=False).select(types.names)
    return (table if places is None else table.take(places)).cast(types)


def _add_row(instances: dict[tuple[Case, str], MeasuredInstance], key: tuple[Case, str], row: dict[str, Any]) -> None:
    """Add the measure in a row of the file to its instance. A missing instance is created."""
    instance = instances.setdefault(key, MeasuredInstance(label=row["label"], predicted=row["predicted"] or ""))
    if row["tokens"] is not None and not instance.tokens:
        instance.tokens = [token or "" for token in row["tokens"]]
        instance.boxes, instance.times = row.get("boxes") or [], row.get("times") or []
        instance.file, instance.file_sha256 = row.get("file") or "", row.get("file_sha256") or ""
    instance.columns[row["measure"]] = row["values"]
