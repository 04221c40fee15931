"""The report of one reproduced paper: the record that the terminal, the Markdown page and the HTML page all show."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from attnaudit.records import Environment, Record
from attnaudit.research.reproduction.figure_records import Figure
from attnaudit.research.reproduction.remedies_file import Remedy

Holds = Literal["yes", "no", "undecided"]


class Line(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One quantity of one row.

    Attributes:
        quantity: name of the quantity, unique in its table.
        words: description of the quantity in the reports.
        paper: the paper's number; None if the paper has none.
        ours: mean over the seeds with a defined value; None if there are none.
        std: sample standard deviation over these seeds; None with fewer than two of them.
        values: one value per seed; None where it is undefined.
        n: number of instances that the value is computed from, averaged over seeds.
        digits: number of decimals in the reports.
    """

    quantity: str
    words: str
    paper: float | None
    ours: float | None
    std: float | None
    values: list[float | None]
    n: int | None
    digits: int = 3

    @property
    def difference(self) -> float | None:
        """Our number minus the paper's; None if either is missing."""
        return None if self.paper is None or self.ours is None else self.ours - self.paper


class WordVectors(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A file of word vectors that the embeddings start from.

    Attributes:
        name: file name without folder and extension.
        width: numbers per word.
        sha256: hash of the file.
    """

    name: str
    width: int
    sha256: str


class Provenance(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a row was measured.

    Attributes:
        command: the command that measures the row again.
        created: start of the run, in UTC.
        attnaudit: version of attnaudit.
        seeds: seeds of the models.
        instances: largest number of audited test texts; None for all of them.
        training_seconds: wall-clock seconds of training, summed over the models and including earlier runs.
        audit_seconds: wall-clock seconds of the audits, summed in the same way.
    """

    command: str
    created: str
    attnaudit: str
    seeds: list[int]
    instances: int | None
    training_seconds: float
    audit_seconds: float


class Row(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One model of a table, or one set of models that are compared.

    Attributes:
        name: corpus and settings, such as "sst/bilstm/additive"; unique in its table.
        title: its name in the reports.
        corpus: name of the corpus.
        lines: the quantities; empty if the row has not been measured.
        missing: why the row has no lines; "" if it has some.
        notes: reasons why checks could not be judged or a seed failed, and the number of words with word vectors.
        provenance: how the row was measured; None if it was not measured.
    """

    name: str
    title: str
    corpus: str
    lines: list[Line]
    missing: str = ""
    notes: tuple[str, ...] = ()
    provenance: Provenance | None = None


class Table(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One table of the paper.

    Attributes:
        name: name of the table, as `--table` takes it.
        title: its heading.
        source: its place in the paper, such as "table 2".
        deviations: sentences that describe how our setting differs from the paper's.
        rows: all rows, including those that were not measured.
        figures: figures of its rows.
    """

    name: str
    title: str
    source: str
    deviations: list[str]
    rows: list[Row]
    figures: list[Figure]


class Finding(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whether a claim of the paper holds in our numbers.

    Attributes:
        claim: name of the claim.
        sentence: the claim in words.
        paper: its place in the paper, such as "§4.1".
        holds: whether it holds in our numbers.
        evidence: the numbers that the answer is based on, in words.
    """

    claim: str
    sentence: str
    paper: str
    holds: Holds
    evidence: str


class Reproduction(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The report of one paper.

    Attributes:
        paper: name of the paper, as `attnaudit reproduce` takes it.
        title: title of the paper.
        citation: its authors, venue and year.
        quick: whether it was a quick run, which is not a reproduction.
        created: start of the last run, in UTC.
        attnaudit: version of attnaudit in the last run.
        seconds: wall-clock seconds of the last run.
        jobs: number of processes of the last run.
        environment: machine and package versions of the last run.
        data: corpus -> part -> number of texts.
        tables: the paper's tables, in its order.
        findings: the answers to the claims of the paper.
        remedies: training options that help according to these numbers.
        vectors: word vectors that the embeddings start from; None for random embeddings.
    """

    paper: str
    title: str
    citation: str
    quick: bool
    created: str
    attnaudit: str
    seconds: float
    jobs: int
    environment: Environment
    data: dict[str, dict[str, int]]
    tables: list[Table]
    findings: tuple[Finding, ...] = ()
    remedies: tuple[Remedy, ...] = ()
    vectors: WordVectors | None = None

    def with_findings(self, findings: Sequence[Finding]) -> Reproduction:
        """Return the same report with these answers to the paper's claims."""
        return msgspec.structs.replace(self, findings=tuple(findings))

    def with_remedies(self, remedies: Sequence[Remedy]) -> Reproduction:
        """Return the same report with these remedies."""
        return msgspec.structs.replace(self, remedies=tuple(remedies))
