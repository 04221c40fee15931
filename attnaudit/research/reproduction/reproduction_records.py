"""The record of a reproduction: what the terminal, the Markdown, the JSON and the page all show."""

from __future__ import annotations

from typing import Literal

from attnaudit.records import Chart, Environment, Record

SCHEMA_VERSION = 1

Holds = Literal["yes", "no", "undecided"]


class Line(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One quantity of one row. ours: mean over seeds, None where undefined; std: over seeds (n - 1), None with one.
    values: by seed. paper: None where the paper has no such number. n: instances behind it, on average over seeds."""

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
        return None if self.paper is None or self.ours is None else self.ours - self.paper


class WordVectors(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A file of word vectors that embeddings start from. name: without folder and ending; width: numbers per word."""

    name: str
    width: int
    sha256: str


class Made(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a row came about. instances: of the test set that were audited, None for all. seconds: wall clock, kept
    results included, summed over models; cpu_seconds: of the processes."""

    command: str
    created: str
    attnaudit: str
    seeds: list[int]
    instances: int | None
    training_seconds: float
    training_cpu_seconds: float
    audit_seconds: float
    audit_cpu_seconds: float
    quick: bool


class Row(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One model, or one set of models that are compared. missing: why there are no lines, "" where there are. notes:
    what could not be judged, and why."""

    name: str
    title: str
    corpus: str
    lines: list[Line]
    missing: str = ""
    notes: tuple[str, ...] = ()
    made: Made | None = None


class Violin(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One half of a violin: the density of some values at `at`, scaled to at most 1. bin: which row; side: which half,
    0 upper and 1 lower. n: values behind it."""

    bin: int
    side: int
    at: list[float]
    density: list[float]
    median: float
    n: int


class Violins(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    bins: list[str]
    sides: list[str]
    x_label: str
    y_label: str
    violins: list[Violin]


class Box(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Values of one setting, such as one per seed. label: what it stands under; side: which colour."""

    label: str
    side: int
    values: list[float]


class Boxes(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Box plots; those of one label stand together, in the order of the sides."""

    sides: list[str]
    x_label: str
    boxes: list[Box]


class Rival(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One text under the model's attention and under another that gives the same output. probability: of the predicted
    class, before and after."""

    instance: str
    tokens: list[str]
    predicted: str
    label: str
    attention: list[float | None]
    adversarial: list[float | None]
    probability: float
    tvd: float
    jsd: float


class Figure(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One picture of one row, or of several (row is then their corpus); one of chart, violins, rival, boxes is set."""

    name: str
    row: str
    title: str
    caption: str
    chart: Chart | None = None
    violins: Violins | None = None
    rival: Rival | None = None
    boxes: Boxes | None = None


class Table(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """source: where the paper has it. deviations: how what is below differs from the paper's setting."""

    name: str
    title: str
    source: str
    deviations: list[str]
    rows: list[Row]
    figures: list[Figure]


class Finding(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What became of a claim of the paper. paper: where it makes it. evidence: the numbers it was read off, with their
    interval over seeds or instances."""

    claim: str
    sentence: str
    paper: str
    holds: Holds
    evidence: str


class Remedy(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What may help a model that fails a question of the policy ("used"), with the figures done again as the reason:
    words is an entry of the question's `remedies`."""

    question: str
    option: str
    words: str


class Reproduction(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One paper's report. seconds: wall clock of the last run. data: corpus -> rows by part. findings: of
    the paper's claims. remedies: that follow from it. vectors: None where embeddings start at random."""

    schema_version: int
    paper: str
    title: str
    citation: str
    quick: bool
    command: str
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
