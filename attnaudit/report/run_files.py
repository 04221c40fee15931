"""Reads a run folder: audit.json whole, and of measurements.parquet only the rows that the report shows."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from attnaudit.errors import ReportError
from attnaudit.records import SCHEMA_VERSION, RunRecord

COLUMNS = ("model", "data", "seed", "instance", "label", "predicted", "measure", "value", "values", "tokens")
RUN_AGAIN = "Run the audit again to write it anew."
ROWS_AT_ONCE = 2**16

Case: TypeAlias = tuple[str, str, int]  # model, data, seed


class _Version(msgspec.Struct):
    schema_version: int


@dataclass(slots=True, kw_only=True)
class ShownInstance:
    """What was measured on one instance. columns: measure -> one number per token, or None where undefined."""

    label: str | None
    predicted: str
    tokens: list[str] = field(default_factory=list)
    columns: dict[str, list[float | None] | None] = field(default_factory=dict)


def read_run(folder: Path) -> RunRecord:
    """audit.json of a run folder. Raises ReportError that names the file and the mend."""
    path = folder / "audit.json"
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        if (folder / "parts").is_dir():
            raise ReportError(
                f"{path}: not found. The run was killed before its end, so that its verdicts are lost; run it again."
            ) from None
        raise ReportError(
            f"{path}: not found. Expected the folder of one run, such as reports/<run>; {_runs_near(folder)}"
        ) from None
    except OSError as error:
        raise ReportError(f"{path}: cannot be read ({error.strerror}). Expected a readable file.") from error
    try:
        version = msgspec.json.decode(raw, type=_Version).schema_version
        if version != SCHEMA_VERSION:
            raise ReportError(
                f"{path}: schema_version {version}, expected {SCHEMA_VERSION}. Build the report with the version of "
                "attnaudit that wrote the file, or run the audit again."
            )
        return msgspec.json.decode(raw, type=RunRecord)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ReportError(f"{path}: not a valid audit record: {error}. {RUN_AGAIN}") from error


def _runs_near(folder: Path) -> str:
    newest = folder / "latest.txt"
    if newest.is_file():
        return f"{newest} names the newest run in this folder."
    killed = [part.parent for part in sorted(folder.glob("*/parts")) if not (part.parent / "audit.json").is_file()]
    if killed:
        return f"{killed[-1]} was killed before its end, so that its verdicts are lost; run it again."
    return "give the folder that holds audit.json."


class MeasurementsFile:
    """measurements.parquet of a run folder, read by batches.

    measured: the names of what was measured of each (model, data, seed); None when the folder has no such file.
    Raises ReportError when the file is corrupt or lacks a column.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / "measurements.parquet"
        self.measured: dict[Case, set[str]] | None = None
        if self.path.is_file():
            self._check_columns()
            self.measured = self._names()

    def _check_columns(self) -> None:
        import pyarrow.parquet as pq

        with self._readable():
            present = pq.read_schema(self.path).names
        lacking = [name for name in COLUMNS if name not in present]
        if lacking:
            raise ReportError(
                f"{self.path}: has no column {', '.join(map(repr, lacking))}; "
                f"expected {', '.join(COLUMNS)}. {RUN_AGAIN}"
            )

    @contextlib.contextmanager
    def _readable(self) -> Iterator[None]:
        import pyarrow as pa

        try:
            yield
        except (pa.ArrowException, OSError) as error:
            raise ReportError(f"{self.path}: cannot be read as measurements: {error}. {RUN_AGAIN}") from error

    def _rows(self) -> Any:
        import pyarrow as pa
        import pyarrow.dataset as ds

        types = {"seed": pa.int64(), "value": pa.float64()}
        types |= {"values": pa.list_(pa.float64()), "tokens": pa.list_(pa.string())}
        schema = pa.schema([(name, types.get(name, pa.string())) for name in COLUMNS])
        return ds.dataset(self.path, schema=schema, format="parquet")

    def _names(self) -> dict[Case, set[str]]:
        import pyarrow as pa
        import pyarrow.parquet as pq

        by = ["model", "data", "seed", "measure"]
        found: dict[Case, set[str]] = {}
        with self._readable(), pq.ParquetFile(self.path) as file:
            for batch in file.iter_batches(batch_size=ROWS_AT_ONCE, columns=by):
                for row in pa.Table.from_batches([batch]).group_by(by).aggregate([]).to_pylist():
                    found.setdefault((row["model"], row["data"], row["seed"]), set()).add(row["measure"])
        return found

    def instances(
        self, wanted: Iterable[tuple[Case, str]], measures: Iterable[str]
    ) -> dict[tuple[Case, str], ShownInstance]:
        """The named measures of the wanted (case, instance id) pairs; a pair without a row is left out."""
        pairs = set(wanted)
        found: dict[tuple[Case, str], ShownInstance] = {}
        if self.measured is None or not pairs:
            return found
        import pyarrow.dataset as ds

        only = ds.field("instance").isin(sorted({one for _, one in pairs})) & ds.field("measure").isin(sorted(measures))
        with self._readable():
            for batch in self._rows().to_batches(filter=only, batch_size=4096):
                for row in batch.to_pylist():
                    _add(found, row, pairs)
        return found


def _add(found: dict[tuple[Case, str], ShownInstance], row: dict[str, Any], wanted: set[tuple[Case, str]]) -> None:
    key = ((row["model"], row["data"], row["seed"]), row["instance"])
    if key not in wanted:
        return
    shown = found.setdefault(key, ShownInstance(label=row["label"], predicted=row["predicted"] or ""))
    if row["tokens"] is not None and not shown.tokens:
        shown.tokens = [token or "" for token in row["tokens"]]
    shown.columns[row["measure"]] = row["values"]
