"""The record of a case, and the records that it consists of."""

from __future__ import annotations

import math
from typing import Literal

import msgspec

VerdictName = Literal["pass", "fail", "inconclusive", "undefined"]
Severity = Literal["gate", "report"]
InconclusiveRule = Literal["fail", "warn", "pass"]
Direction = Literal["at_least", "at_most"]
WorstOrder = Literal["lowest", "highest"]


class Record(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base class of all records: immutable, with keyword arguments only, and without unknown fields."""


class Interval(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A two-sided confidence interval.

    Attributes:
        low: The lower bound, in the unit of the value.
        high: The upper bound.
        confidence: The nominal confidence, between 0 and 1.
        method: How the interval was computed, such as "studentised bootstrap over sources".
    """

    low: float
    high: float
    confidence: float
    method: str

    @property
    def level(self) -> str:
        """The confidence in per cent, with enough digits to distinguish it from 100%, such as "99.75%"."""
        digits = max(0, 1 - math.floor(math.log10(100 * (1 - self.confidence))))
        text = f"{100 * self.confidence:.{digits}f}"
        return (text.rstrip("0").rstrip(".") if "." in text else text) + "%"


class Requirement(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The threshold that a value is compared with.

    Attributes:
        direction: "at_least" if the value must not be below the threshold, "at_most" if it must not be above.
        value: The threshold, in the unit of the value. For a relative threshold, its mean over the instances.
        expression: The relative threshold as it was written, such as "floor + 0.2"; None if it was given as a number.
    """

    direction: Direction
    value: float
    expression: str | None = None


class Planning(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An estimate of how many instances would decide an inconclusive case, if the observed value were the true one.

    Attributes:
        instances: The number of instances; None if the value is too close to the threshold for an estimate.
        low: The lower limit of `instances`: the same estimate at the bound of the value's 50% interval that is further
            from the threshold. None if even that bound is too close.
        high: The upper limit of `instances`, from the other bound of that interval; None if there is none.
        power: The share of samples of that size in which the case would be decided.
    """

    instances: int | None
    low: int | None
    high: int | None
    power: float


class Reference(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A value to compare the observed one with, such as that of shuffled attention.

    Attributes:
        name: A short name, such as "floor". Relative thresholds refer to it.
        value: The reference, in the unit of the check's value; None if it is undefined.
        meaning: What the reference is, as a short phrase.
        n: The number of instances on which it was measured; None if it was not measured on instances.
    """

    name: str
    value: float | None
    meaning: str
    n: int | None = None


class Histogram(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A histogram of the defined values per instance.

    Attributes:
        edges: The k + 1 edges of the bins, in ascending order.
        counts: The number of instances in each of the k bins.
        label: The label of the value axis.
    """

    edges: list[float]
    counts: list[int]
    label: str


class Series(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One line, or one set of bars, of a chart.

    Attributes:
        name: The name in the legend.
        x: The positions on the horizontal axis.
        y: The values, one for each position; None where undefined.
    """

    name: str
    x: list[float]
    y: list[float | None]


class Chart(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A chart that the report draws in addition to the histogram.

    Attributes:
        title: The title.
        x_label: The label of the horizontal axis.
        y_label: The label of the vertical axis.
        kind: "line" or "bar".
        series: The lines or sets of bars.
    """

    title: str
    x_label: str
    y_label: str
    kind: Literal["line", "bar"]
    series: list[Series]


class Matrix(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The value of a check for every layer and head.

    Attributes:
        row_label: What a row stands for: "layer".
        column_label: What a column stands for: "head".
        rows: The r names of the rows.
        columns: The c names of the columns.
        values: r lists of c values, in the unit of the check's value; None where undefined.
    """

    row_label: str
    column_label: str
    rows: list[str]
    columns: list[str]
    values: list[list[float | None]]


class RankedInstance(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One of the instances with the worst values.

    Attributes:
        instance: The id of the instance.
        value: The value of the check on it.
        tokens: Its tokens around the most attended one, which is in guillemets, as in "a «good» film".
    """

    instance: str
    value: float
    tokens: str = ""


class CheckRecord(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One case: the result of a check on one model and one data set.

    `attnaudit.verdict_text` puts it into words.

    Attributes:
        check: The id of the check, such as "agreement.gradient.meister.inputs".
        family: The kind of check, such as "agreement".
        model: The name of the model.
        data: The name of the data set.
        seed: The seed of the run.
        title: The claim that the check tests.
        question: The question that the check asks.
        why: Why the answer matters.
        how_to_read: How to read the value.
        parameters: The arguments of the check, defaults included.
        needs: The names of the measures that the check reads.
        verdict: "pass", "fail", "inconclusive" or "undefined".
        reason: The reason for the verdict, as a clause without a full stop.
        severity: "gate" if the case can fail, "report" if the check is informational.
        inconclusive: What an inconclusive gate does: "fail" fails its case, "warn" passes with a warning, "pass"
            passes.
        statistic: How the value summarises the instances, such as "mean".
        unit: The unit of the value, such as "Kendall τ-b".
        value_name: The name of the value in messages, such as "mean τ-b".
        value: The statistic; None if it is undefined.
        requirement: The threshold; None if the check has none, or if a relative threshold is undefined.
        interval: The interval of `value` at the confidence of the check, which decides whether the case passes; None
            if there is none. With a relative threshold, the interval is computed for the mean over the instances of
            value minus threshold, and `requirement.value` is added to its bounds.
        n: The number of audited instances.
        n_defined: The number of instances that have a value.
        undefined: Reason -> the number of instances that have no value for that reason. Empty if all have one.
        references: Values to compare `value` with.
        details: Further results: name -> number or text; None where undefined.
        distribution: A histogram of the values per instance; None if the check has no values per instance.
        charts: Further charts.
        worst: The instances with the worst values, the worst one first.
        worst_first: Which values are the worst: "lowest" or "highest".
        token_columns: The measured columns with one number per token, which the report draws over the text.
        note: Remarks on the value, separated by semicolons; "" if there are none.
        blocks: Whether the case fails in pytest.
        gated: The number of gates in the policy, by which `fail_interval` is Bonferroni-corrected; 1 for an
            informational check.
        fail_interval: The interval that decides whether the case fails, at confidence 1 - (1 - c) / `gated`, where c is
            that of `interval` (Bonferroni). None without a threshold or without an interval.
        planning: How many instances would decide the case; None unless it is inconclusive and an estimate applies.
        reading: The reading of the attention that the check is about; "" for the model's own.
        matrix: The values for every layer and head, if the check covers several; otherwise None. `value` and
            `interval` are then of their mean.
        test: The pytest id of the case; "" if it was not judged under pytest.
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
        """The model, data, check and seed, which together identify the case in a run."""
        return (self.model, self.data, self.check, self.seed)
