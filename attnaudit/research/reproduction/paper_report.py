"""The records of the report on one reproduced paper. The terminal, the Markdown page and the HTML page show them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from attnaudit.records import Environment, Record
from attnaudit.research.reproduction.figures.figure_records import Figure
from attnaudit.research.reproduction.figures.quantity_axes import NUMBER, Axis
from attnaudit.research.reproduction.remedies_file import Remedy

ClaimVerdict = Literal["holds", "does not hold", "undecided", "saturated", "not run"]
#: Why a claim is undecided. `paper_wording.CAUSES` explains each cause.
OpenCause = Literal[
    "unfinished", "untrained", "unpaired", "left out", "scores", "correction", "intervals", "one seed", "share"
]
#: "saturated" means that all compared numbers are at the end of their scale, so that their order says nothing.
GoalVerdict = Literal["met", "missed", "undecided", "saturated", "too few rows that count", "not measured"]
#: `Row.missing` of a row whose earlier numbers are not shown, because its settings have changed.
OUTDATED = "measured with settings that have changed since then; not run again yet"
#: Mark of a row whose corpus the paper leaves out of the table.
NOT_IN_PAPER = "not in the paper"
#: Name of an encoder in the names of rows -> how a sentence names it.
ENCODERS: Mapping[str, str] = {
    "bilstm": "a BiLSTM",
    "average": "the encoder “average”",
    "cnn": "a CNN",
    "mlp": "an MLP",
    "transformer": "a Transformer",
}


class Line(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One quantity of one row.

    Attributes:
        quantity: The name of the quantity, unique in its table.
        words: The description of the quantity in the tables. It may continue that of the line above ("… ").
        label: The description of the quantity in figures, where it is read alone. It is the same for all rows. "" if
            `words` can be read alone.
        axis: The axis of strip plots of the quantity.
        class_name: The name of the class, if only instances of one class count; otherwise "".
        paper: The number of the paper. None if the paper has none.
        ours: The measured mean over the seeds with a defined value. None if there are none.
        std: The sample standard deviation over these seeds. None if there are fewer than two of them.
        values: One value per seed. A value is None if it is undefined.
        n: The number of instances that a value is computed from, averaged over the seeds with a defined value. None if
            it is not known.
        digits: The number of decimals in the reports.
    """

    quantity: str
    words: str
    paper: float | None
    ours: float | None
    std: float | None
    values: list[float | None]
    n: int | None
    digits: int = 3
    label: str = ""
    axis: Axis = NUMBER
    class_name: str = ""

    @property
    def alone(self) -> str:
        """The description of the quantity where it is read alone."""
        return self.label or self.words

    @property
    def difference(self) -> float | None:
        """The measured mean minus the number of the paper. None if either is missing."""
        return None if self.paper is None or self.ours is None else self.ours - self.paper


class WordVectors(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A file of word vectors that the embeddings start from.

    Attributes:
        name: The file name, without folder and extension.
        width: The length of each vector.
        sha256: The hash of the file.
    """

    name: str
    width: int
    sha256: str


class Provenance(Record, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """How a row was measured.

    Attributes:
        command: The shell command that measures the row again.
        created: When the run began (ISO 8601, UTC).
        attnaudit: The version of attnaudit.
        seeds: The seeds of the models.
        instances: The largest number of audited test texts. None for all of them.
        training_seconds: Wall-clock time of training, in seconds, summed over the models. It includes earlier runs.
        audit_seconds: Wall-clock time of the audits, in seconds, summed over the models. It includes earlier runs.
        seed_plan: The SHA-256 of the plan that fixed the seeds before the run. None if there was none.
        environment: The machine and the versions of packages in the run that measured the row. Models that an earlier
            run trained are not trained again. None if it was not recorded.
    """

    command: str
    created: str
    attnaudit: str
    seeds: list[int]
    instances: int | None
    training_seconds: float
    audit_seconds: float
    seed_plan: str | None = None
    environment: Environment | None = None


class Row(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One row of a table. It is about one model, or about several models that are compared.

    Attributes:
        name: The corpus and the settings, such as "sst/bilstm/additive". The name is unique in the table.
        title: The name of the row in the reports.
        label: A short title for figures. "" if the title is short enough.
        corpus: The name of the corpus.
        lines: The quantities. The list is empty if the row has not been measured.
        missing: Why the row has no lines. It is "" if the row has lines.
        notes: The number of words with word vectors, if any are used, and reasons why checks could not be judged or a
            seed failed.
        provenance: How the row was measured. None if it was not measured.
        excluded: Why the row cannot decide a claim, for example because a model was not trained well enough. It is ""
            if the row counts.
        unfinished: Whether the row is excluded only because planned seeds have not been run yet, or because a score was
            not recorded.
    """

    name: str
    title: str
    corpus: str
    lines: list[Line]
    missing: str = ""
    label: str = ""
    excluded: str = ""
    unfinished: bool = False
    notes: tuple[str, ...] = ()
    provenance: Provenance | None = None


class Table(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One table of the paper.

    Attributes:
        name: The name of the table, as `--table` expects it.
        title: The heading of the table.
        source: The place of the table in the paper, such as "table 2".
        deviations: Sentences that describe how the setting differs from the setting of the paper.
        rows: All rows, including those that were not measured.
        figures: The figures of the rows.
        left_out: The corpora that the paper leaves out of this table.
        compared_with: The head of the column with the numbers that ours are compared with.
    """

    name: str
    title: str
    source: str
    deviations: list[str]
    rows: list[Row]
    figures: list[Figure]
    left_out: tuple[str, ...] = ()
    compared_with: str = "paper"


class Finding(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The answer to a claim of the paper.

    Attributes:
        claim: The name of the claim.
        sentence: The claim as a sentence.
        paper: The place of the claim in the paper, such as "§4.1".
        verdict: Whether the claim holds in the measured numbers.
        reason: One sentence that gives the reason for the verdict.
        evidence: The numbers that the verdict is based on, as text. It is "" if no row counts.
        left_out: Names of the rows that were run but cannot decide the claim.
        cause: Why the claim is undecided. None for all other verdicts.
        seeds_needed: How many seeds the rows whose intervals contain 0 would need, if their means and spreads stayed
            the same. None if this is not known, or if no such number of seeds would be enough.
        alone: Whether the claim holds, and a single row, or pair of compared rows, counts.
        ours: Whether the claim is ours instead of the paper's. It is then not counted.
        again: Whether the claim was judged a second time, because rows got new seeds after their results had been seen.
    """

    claim: str
    sentence: str
    paper: str
    verdict: ClaimVerdict
    reason: str
    evidence: str = ""
    left_out: tuple[str, ...] = ()
    cause: OpenCause | None = None
    seeds_needed: int | None = None
    alone: bool = False
    ours: bool = False
    again: bool = False


class GoalResult(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whether our numbers are as close to the paper's as a goal demands.

    Attributes:
        sentence: The goal as a sentence.
        verdict: Whether the goal is met, or why this is not known.
        numbers: The compared numbers as text; "" if there are none.
    """

    sentence: str
    verdict: GoalVerdict
    numbers: str


class Reproduction(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The report of one paper.

    Attributes:
        paper: The name of the paper, as `attnaudit reproduce` expects it.
        title: The title of the paper.
        citation: The authors, the venue and the year.
        quick: Whether it was a quick run. A quick run is not a reproduction.
        created: When the last run began (ISO 8601, UTC).
        attnaudit: The version of attnaudit in the last run.
        seconds: Wall-clock time of the last run, in seconds.
        jobs: The number of processes of the last run.
        environment: The machine and the versions of packages in the last run.
        data: Name of a corpus -> part -> number of texts.
        tables: The tables, in the order of the paper.
        findings: The answers to the claims of the paper.
        goals: How close the numbers should be to the paper's, and whether they are.
        remedies: Training options that help, according to the measured numbers.
        vectors: The word vectors that the embeddings start from. None for random embeddings.
        row_names: How rows are named, and what readers of the claims should know about them.
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
    goals: tuple[GoalResult, ...] = ()
    remedies: tuple[Remedy, ...] = ()
    vectors: WordVectors | None = None
    row_names: str = ""

    def with_findings(self, findings: Sequence[Finding]) -> Reproduction:
        """Return the same report with other answers to the claims of the paper."""
        return msgspec.structs.replace(self, findings=tuple(findings))

    def with_remedies(self, remedies: Sequence[Remedy]) -> Reproduction:
        """Return the same report with other remedies."""
        return msgspec.structs.replace(self, remedies=tuple(remedies))
