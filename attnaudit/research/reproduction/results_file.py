"""The measured results of a reproduction, one JSON Lines file per report.

The first line describes the last run. Every other line is one measured row or one figure. The file contains only
measurements: `table_layout` adds titles, the paper's numbers, means over seeds and claims when it builds the report, so
that pages can be rebuilt and reworded without training.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from attnaudit.errors import AuditError, ReportError, require_regular_file
from attnaudit.records import Environment, Record
from attnaudit.research.reproduction.figure_records import Figure
from attnaudit.research.reproduction.paper_report import Provenance, WordVectors
from attnaudit.research.study.report_files import not_writable

#: Increase this number when the meaning of the file changes.
SCHEMA_VERSION = 2
SUFFIX = ".jsonl"
LOCK = ".lock"


class RunHeader(Record, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind", tag="run"):
    """The first line of a results file: the paper and the last run.

    Attributes:
        schema_version: version of the file format.
        paper: name of the paper.
        embedded: whether the models were trained on the embedded movie sentences instead of the paper's corpora.
        quick: whether it was a quick run, which is not a reproduction.
        vectors: word vectors that the embeddings start from; None for random embeddings.
        created: start of the run, in UTC.
        attnaudit: version of attnaudit.
        seconds: wall-clock seconds of the run.
        jobs: number of processes.
        environment: machine and package versions.
        data: corpus -> part -> number of texts.
    """

    schema_version: int
    paper: str
    embedded: bool
    quick: bool
    vectors: WordVectors | None
    created: str
    attnaudit: str
    seconds: float
    jobs: int
    environment: Environment
    data: dict[str, dict[str, int]]


class MeasuredQuantity(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One quantity of a row.

    Attributes:
        n: number of instances that the value is computed from, averaged over seeds.
        values: one value per seed; None where it is undefined.
    """

    n: int | None
    values: list[float | None]


class MeasuredRow(
    Record, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True, tag_field="kind", tag="row"
):
    """One row of a table.

    Attributes:
        table: name of the table.
        name: name of the row.
        provenance: how the row was measured; None if no seed could be trained and audited.
        missing: why the row has no quantities; "" if it has some.
        classes: names of the classes if a quantity of the table is about one class; else empty.
        words_with_vectors: number of words of the training texts that have a word vector; None without word vectors.
        notes: reasons why checks could not be judged or a seed failed.
        quantities: name of the quantity -> its measured values.
    """

    table: str
    name: str
    provenance: Provenance | None = None
    missing: str = ""
    classes: tuple[str, ...] = ()
    words_with_vectors: int | None = None
    notes: tuple[str, ...] = ()
    quantities: dict[str, MeasuredQuantity] = msgspec.field(default_factory=dict)


class MeasuredFigure(Record, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind", tag="figure"):
    """One figure of one row.

    Attributes:
        table: name of the table that the row belongs to.
        figure: the record of the figure.
    """

    table: str
    figure: Figure


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """The content of a results file.

    Attributes:
        header: the paper and the last run.
        rows: the measured rows, in the order of the paper's tables.
        figures: the figures, in the order of their rows.
    """

    header: RunHeader
    rows: tuple[MeasuredRow, ...]
    figures: tuple[MeasuredFigure, ...]


def results_text(results: Results) -> str:
    """Return the content of a results file."""
    records = (results.header, *results.rows, *results.figures)
    return "".join(f"{msgspec.json.encode(record).decode()}\n" for record in records)


def read_results(path: Path) -> Results | None:
    """Read a results file.

    Returns:
        The results; None if there is no such file.

    Raises:
        ReportError: the file cannot be read, or is not a results file of this version.
    """
    require_regular_file(path, "results", ReportError)
    try:
        lines = path.read_text(encoding="utf-8").removesuffix("\n").split("\n")  # tokens may contain other line breaks
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise ReportError(f"{path}: cannot be read ({error}).") from error
    fix = "Move the file away and run again."
    records: list[RunHeader | MeasuredRow | MeasuredFigure] = []
    for number, line in enumerate(lines, start=1):
        try:
            records.append(msgspec.json.decode(line, type=RunHeader | MeasuredRow | MeasuredFigure))
        except msgspec.DecodeError as error:
            raise ReportError(
                f"{path}:{number}: cannot be read as a line of a reproduction's results ({error}). {fix}"
            ) from error
    if not records or not isinstance(records[0], RunHeader):
        raise ReportError(f'{path}:1: expected the description of a run ("kind":"run"). {fix}')
    header = records[0]
    if header.schema_version != SCHEMA_VERSION:
        raise ReportError(f"{path}: the schema version is {header.schema_version}, expected {SCHEMA_VERSION}. {fix}")
    return Results(
        header=header,
        rows=tuple(one for one in records if isinstance(one, MeasuredRow)),
        figures=tuple(one for one in records if isinstance(one, MeasuredFigure)),
    )


@contextlib.contextmanager
def exclusive(folder: Path) -> Iterator[None]:
    """Hold a lock on the folder, which is created if it does not exist, so that no other run writes to it.

    Raises:
        AuditError: filelock is not installed.
        ReportError: the folder or its lock file cannot be written.
    """
    try:
        from filelock import FileLock
    except ImportError as error:
        raise AuditError(
            "attnaudit reproduce needs the package filelock, which is not installed. Install it: "
            'pip install "attnaudit[research]"'
        ) from error
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / LOCK).acquire()
    except OSError as error:
        raise not_writable(folder, error) from error
    with lock:
        yield
