"""What a run leaves behind, as plain typed records: the schema of audit.json and of what crosses processes.

Imports no torch. `msgspec.to_builtins(record)` gives what pytest-xdist can carry; `msgspec.convert` reads it back.
"""

from __future__ import annotations

import math
from typing import Literal

import msgspec

SCHEMA_VERSION = 2

VerdictName = Literal["pass", "fail", "inconclusive", "undefined"]
Severity = Literal["gate", "report"]
InconclusiveRule = Literal["fail", "warn", "pass"]
Direction = Literal["at_least", "at_most"]
WorstOrder = Literal["lowest", "highest"]


class Record(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of all records: immutable, keyword-only, strict."""


class Interval(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A two-sided confidence interval over instances."""

    low: float
    high: float
    confidence: float
    method: str

    @property
    def level(self) -> str:
        """The confidence in per cent, with as many figures as tell it from 100%."""
        digits = max(0, 1 - math.floor(math.log10(100 * (1 - self.confidence))))
        text = f"{100 * self.confidence:.{digits}f}"
        return (text.rstrip("0").rstrip(".") if "." in text else text) + "%"


class Requirement(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The threshold a value is held against. expression: what it was computed from, where it is relative."""

    direction: Direction
    value: float
    expression: str | None = None


class Planning(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How many instances would decide an inconclusive case, if the observed value were the true one.

    Attributes:
        instances: the number; None where the value is too close to the threshold.
        low: the number at that bound of the value's 50% interval which lies further from the threshold.
        high: the number at the other bound; None where it has no limit.
        power: the share of samples of that size in which the case would be decided.
    """

    instances: int | None
    low: int | None
    high: int | None
    power: float


class Reference(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A value shown beside the observed one ("floor", "gradient_loo"), with its meaning in words."""

    name: str
    value: float | None
    meaning: str
    n: int | None = None


class Histogram(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Counts of the defined per-instance values; edges has one more entry than counts."""

    edges: list[float]
    counts: list[int]
    label: str


class Series(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One line of a chart. y is None where undefined."""

    name: str
    x: list[float]
    y: list[float | None]


class Chart(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A chart to draw beside the distribution, such as JSD against epsilon or MI against rank."""

    title: str
    x_label: str
    y_label: str
    kind: Literal["line", "bar"]
    series: list[Series]


class Matrix(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The values of a check under every layer (rows) and head (columns); None where a value is undefined."""

    row_label: str
    column_label: str
    rows: list[str]
    columns: list[str]
    values: list[list[float | None]]


class RankedInstance(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One of the worst instances of a check.

    Attributes:
        instance: its id.
        value: the check's value on it.
        tokens: its tokens around the most attended one, which is in guillemets: "a «good» film".
    """

    instance: str
    value: float
    tokens: str = ""


class CheckRecord(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One case: a check on a model and a data set. `attnaudit.verdict_text` renders it in words.

    Attributes:
        check: the id of the check, such as "agreement.gradient.meister.inputs".
        family: the kind of check, such as "agreement".
        model: the name of the model.
        data: the name of the data set.
        seed: the seed of the run.
        title: the claim that the check tests.
        question: the question that the check asks.
        why: why the answer matters.
        how_to_read: how to read the value.
        parameters: the arguments of the check, with its defaults.
        needs: the measures that the check reads.
        verdict: "pass", "fail", "inconclusive" or "undefined".
        reason: why the verdict is what it is, as a clause without a full stop.
        severity: "gate" where the case can fail, "report" where it cannot.
        inconclusive: what a gate does when it is inconclusive.
        statistic: what the value is over the instances, such as "mean".
        unit: the unit of the value, such as "Kendall τ-b".
        value_name: the name of the value in a headline, such as "mean τ-b".
        value: the statistic; None where it is undefined.
        requirement: the threshold; None for an informational check.
        interval: the interval at the check's own confidence: a pass needs the whole of it on the required side.
        n: the number of audited instances.
        n_defined: the number of instances that have a value.
        undefined: why instances have no value -> how many.
        references: values to compare with.
        details: further numbers.
        distribution: a histogram of the values per instance.
        charts: further charts.
        worst: the worst instances, the worst one first.
        worst_first: whether the lowest or the highest values are the worst.
        token_columns: the measured columns to draw over the tokens of an instance.
        note: remarks on the value, separated by semicolons.
        blocks: whether the case fails in pytest.
        gated: how many gated checks the policy has.
        fail_interval: the interval at the confidence 1 - (1 - confidence) / gated (Bonferroni): a failure needs the
            whole of it on the other side. Under a relative requirement, both intervals are of the paired difference to
            the references, shifted by the number that the requirement came to.
        planning: how many instances would decide an inconclusive case.
        reading: the reading that the check is about; "" for the model's own.
        matrix: the values under every layer and head, where value and interval are of their mean.
        test: the test function.
    """

    check: str
    family: str
    model: str
    data: str
    seed: int
    title: str
    question: str
    why: str
    how_to_read: str
    parameters: dict[str, str | float | int | bool | None]
    needs: list[str]
    verdict: VerdictName
    reason: str
    severity: Severity
    inconclusive: InconclusiveRule
    statistic: str
    unit: str
    value_name: str
    value: float | None
    requirement: Requirement | None
    interval: Interval | None
    n: int
    n_defined: int
    undefined: dict[str, int]
    references: list[Reference]
    details: dict[str, str | float | int | None]
    distribution: Histogram | None
    charts: list[Chart]
    worst: list[RankedInstance]
    worst_first: WorstOrder
    token_columns: list[str]
    note: str
    blocks: bool
    gated: int = 1
    fail_interval: Interval | None = None
    planning: Planning | None = None
    reading: str = ""
    matrix: Matrix | None = None
    test: str = ""

    @property
    def key(self) -> tuple[str, str, str, int]:
        """What identifies the case in a run: model, data, check and seed."""
        return (self.model, self.data, self.check, self.seed)


class PolicyQuestion(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A question that some gated checks of a policy answer together. remedies: what is known to help, with its measured
    effect, told when one of the checks does not pass."""

    name: str
    asks: str
    checks: list[str]
    remedies: list[str] = []


class PolicyRecord(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a policy file says of itself. validated_on: the families of models on which it was tried against known
    truth; empty where it never was."""

    file: str
    sha256: str
    name: str = ""
    validated_on: list[str] = []
    questions: list[PolicyQuestion] = []


class MissingCase(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A case that was selected and has no verdict: it errored, was skipped, or its worker crashed."""

    test: str
    model: str
    data: str
    check: str
    reason: str


class ConformanceResult(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One check of the adapter's own contract."""

    check: str
    outcome: Literal["pass", "fail", "skip"]
    detail: str


class ModelRecord(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The audited model. family: what models it is like, as a policy's validated_on names them; "" where unknown."""

    name: str
    source: str
    description: str
    classes: list[str]
    parameters: int
    sha256: str
    linear_decoder: bool
    conformance: list[ConformanceResult]
    family: str = ""


class DataRecord(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The audited data. sha256 covers the ids, texts and labels of the rows in the order of their ids."""

    name: str
    source: str
    description: str
    rows: int
    audited: int
    labelled: int
    classes: list[str]
    sha256: str
    sample_seed: int | None
    sample_sha256: str | None


class MeasureRecord(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What measuring one model on one data set took, in seconds of wall clock. notes: how the numbers came about."""

    model: str
    data: str
    needs: list[str]
    seconds: float
    instances: int
    tokens: int
    passes: dict[str, int]
    batch_size: int
    device: str
    worker: str
    notes: list[str] = []


class Environment(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    python: str
    platform: str
    processor: str
    packages: dict[str, str]
    device: str
    threads: int


class RunRecord(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """audit.json: everything about one run but the per-instance numbers (those are in measurements.parquet)."""

    schema_version: int
    run: str
    created: str
    finished: str
    command: list[str]
    seed: int
    exit_status: int
    attnaudit: str
    policy: str
    environment: Environment | None
    models: list[ModelRecord]
    data: list[DataRecord]
    measured: list[MeasureRecord]
    checks: list[CheckRecord]
    missing: list[MissingCase]
    declared_policy: PolicyRecord | None = None
