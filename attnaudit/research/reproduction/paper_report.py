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
        words: what the quantity is, as the pages print it.
        paper: the paper's number; None where the paper has none.
        ours: mean over seeds; None where it is undefined.
        std: standard deviation over seeds (n - 1); None with fewer than two defined seeds.
        values: one value per seed; None where it is undefined.
        n: number of instances behind the value, averaged over seeds.
        digits: decimals that the pages print.
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
        """Our number minus the paper's; None where either is missing."""
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
        instances: number of audited test texts; None for all of them.
        training_seconds: wall-clock seconds of training, summed over the models, results of earlier runs included.
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
        title: the same as the pages print it.
        corpus: name of the corpus.
        lines: the quantities; empty where the row has not been measured.
        missing: why the row has no lines; "" where it has some.
        notes: what could not be judged, and why.
        provenance: how the row was measured; None where it was not.
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
        source: where the paper has it, such as "table 2".
        deviations: how our setting differs from the paper's, in sentences.
        rows: all rows, those without numbers included.
        figures: pictures drawn from the same measurements.
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
        paper: where the paper makes it.
        holds: whether it holds here.
        evidence: the numbers behind the answer, with their interval over seeds or instances.
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
        quick: whether the run was quick, and so no reproduction.
        created: start of the last run, in UTC.
        attnaudit: version of attnaudit in the last run.
        seconds: wall-clock seconds of the last run.
        jobs: processes of the last run.
        environment: machine and package versions of the last run.
        data: corpus -> part -> number of texts.
        tables: the paper's tables, in its order.
        findings: which claims of the paper hold.
        remedies: training options that these numbers show to help.
        vectors: word vectors that the embeddings start from; None where they start at random.
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
        """The same report with these answers to the paper's claims."""
        return msgspec.structs.replace(self, findings=tuple(findings))

    def with_remedies(self, remedies: Sequence[Remedy]) -> Reproduction:
        """The same report with these remedies."""
        return msgspec.structs.replace(self, remedies=tuple(remedies))
