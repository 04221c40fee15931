"""Read and write the measured results of reproductions. Each report has one JSON Lines file.

The first line of a file describes the last run. Every other line is one measured row or one figure. The file contains
only measurements. `table_layout` builds the report from them, and adds titles, the numbers of the paper, means over
seeds and claims. Pages can therefore be rebuilt and reworded without training.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from attnaudit.errors import AuditError, ReportError, require_regular_file
from attnaudit.records import Environment, Record
from attnaudit.research.reproduction.figures.figure_records import Figure
from attnaudit.research.reproduction.paper_report import Provenance, WordVectors
from attnaudit.research.study.report_files import not_writable

#: Increase this number when the meaning of the file changes.
SCHEMA_VERSION = 2
SUFFIX = ".jsonl"
LOCK = ".lock"


class RunHeader(Record, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind", tag="run"):
    """The first line of a results file: the paper and the last run.

    Attributes:
        schema_version: The version of the file format.
        paper: The name of the paper.
        embedded: Whether the models were trained on the packaged movie sentences instead of the paper's corpora.
        quick: Whether it was a quick run. A quick run is not a reproduction.
        vectors: The word vectors that the embeddings start from. None for random embeddings.
        created: When the run began (ISO 8601, UTC).
        attnaudit: The version of attnaudit.
        seconds: Wall-clock time of the run, in seconds.
        jobs: The number of processes.
        environment: The machine and the versions of packages.
        data: Name of a corpus -> part -> number of texts.
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
    """One measured quantity of a row.

    Attributes:
        n: The number of instances that a value is computed from, averaged over the seeds with a defined value. None if
            it is not known.
        values: One value per seed. A value is None if it is undefined.
    """

    n: int | None
    values: list[float | None]


class RoleScores(Record, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The scores of the models of one role on the test part, one value per seed.

    Attributes:
        accuracy: The accuracies. A value is None if it is not known. The tuple is empty if no value is known.
        f1: The F1 scores, in the same form as `accuracy`.
    """

    accuracy: tuple[float | None, ...] = ()
    f1: tuple[float | None, ...] = ()


class EarlierRun(Record, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A run with the settings of a row, before the run that measured the row last. It may have other seeds.

    Attributes:
        provenance: How the run was made.
        quantities: Name of a quantity -> measured values.
        scores: Role -> scores of its models on the test part.
    """

    provenance: Provenance
    quantities: dict[str, MeasuredQuantity]
    scores: dict[str, RoleScores] = msgspec.field(default_factory=dict)


class MeasuredRow(
    Record, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True, tag_field="kind", tag="row"
):
    """One measured row of a table.

    Attributes:
        table: The name of the table.
        name: The name of the row.
        provenance: How the row was measured. None if no seed could be trained and audited.
        missing: Why the row has no quantities. It is "" if the row has quantities.
        classes: The names of the classes. It is empty unless a quantity of the table is about a single class.
        words_with_vectors: The number of words of the training texts that have a word vector. None if no word vectors
            were used.
        notes: Reasons why checks could not be judged, or why a seed failed.
        quantities: Name of a quantity -> measured values.
        scores: Role -> scores of its models on the test part.
        setting: The hash of the row's settings (see `row_settings`). It is "" if it was not recorded.
        earlier: Earlier runs with the same settings that gave other numbers or had other seeds (see `earlier_runs`).
    """

    table: str
    name: str
    setting: str = ""
    provenance: Provenance | None = None
    missing: str = ""
    classes: tuple[str, ...] = ()
    words_with_vectors: int | None = None
    notes: tuple[str, ...] = ()
    quantities: dict[str, MeasuredQuantity] = msgspec.field(default_factory=dict)
    scores: dict[str, RoleScores] = msgspec.field(default_factory=dict)
    earlier: tuple[EarlierRun, ...] = ()


class MeasuredFigure(Record, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind", tag="figure"):
    """One figure of one row.

    Attributes:
        table: The name of the table that the row belongs to.
        figure: The record of the figure.
    """

    table: str
    figure: Figure


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """The content of a results file.

    Attributes:
        header: The first line, which describes the paper and the last run.
        rows: The measured rows, in the order of the paper's tables.
        figures: The figures, in the order of their rows.
    """

    header: RunHeader
    rows: tuple[MeasuredRow, ...]
    figures: tuple[MeasuredFigure, ...]


def results_text(results: Results) -> str:
    """Return results as the text of a results file."""
    records = (results.header, *results.rows, *results.figures)
    return "".join(f"{msgspec.json.encode(record).decode()}\n" for record in records)


def read_results(path: Path) -> Results | None:
    """Read a results file.

    Returns:
        The results. None if the file does not exist.

    Raises:
        ReportError: The file cannot be read, is not a results file, or has another schema version.
    """
    require_regular_file(path, "results", ReportError)
    try:
        lines = path.read_text(encoding="utf-8").removesuffix("\n").split("\n")  # Tokens may contain other line breaks.
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise ReportError(f"{path}: cannot be read ({error}). Make the file readable, or move it away.") from error
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
    """Hold a lock on a folder, so that no other run writes to it. The folder is created if it does not exist.

    If another run holds the lock, wait until it releases the lock.

    Raises:
        AuditError: The package filelock is not installed.
        ReportError: The folder or its lock file cannot be written.
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
