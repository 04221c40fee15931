"""The record of a case, and the records that it contains."""

from __future__ import annotations

import math
from typing import Literal

import msgspec

from attnaudit.records.unit_names import UnitNames

VerdictName = Literal["pass", "fail", "inconclusive", "undefined", "informational"]
Severity = Literal["gate", "report"]
InconclusiveRule = Literal["fail", "warn", "pass"]
Direction = Literal["at_least", "at_most"]
WorstOrder = Literal["lowest", "highest"]


#: The name of a detail: the largest weight of a row, divided by its mean weight; the 95th percentile over the rows.
LARGEST_WEIGHT = "largest weight, as a multiple of the mean weight (95th percentile; 1: all weights are equal)"
#: The name of a detail: the predicted classes, in quotation marks, on whose rows attention is no closer to the effects
#: than equal weights are. It is absent if there are none.
NO_BETTER = "predicted classes on which attention points no better than equal weights do"


class Record(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The base class of all records. Records are immutable, and reject unknown fields and positional arguments."""


#: The method of an interval that comes from a confidence sequence.
CONFIDENCE_SEQUENCE = "betting confidence sequence"


class Interval(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A two-sided confidence interval.

    Attributes:
        low: The lower bound, in the unit of the value.
        high: The upper bound, in the same unit.
        confidence: The nominal confidence, between 0 and 1.
        method: How the interval was computed, such as "studentised bootstrap over sources".
    """

    low: float
    high: float
    confidence: float
    method: str

    @property
    def is_sequence(self) -> bool:
        """Whether the interval comes from a confidence sequence, so that it is valid after any number of rows."""
        return self.method == CONFIDENCE_SEQUENCE

    @property
    def level(self) -> str:
        """The confidence as a percentage, such as "99.75%". It has enough digits to differ from "100%"."""
        digits = max(0, 1 - math.floor(math.log10(100 * (1 - self.confidence))))
        text = f"{100 * self.confidence:.{digits}f}"
        return (text.rstrip("0").rstrip(".") if "." in text else text) + "%"


class Requirement(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The threshold with which a value is compared.

    Attributes:
        direction: "at_least" if the value must not be below the threshold, "at_most" if it must not be above it.
        value: The threshold, in the unit of the value. A relative threshold differs between instances; `value` is then
            its mean over the instances.
        expression: The expression of a relative threshold, such as "floor + 0.2"; None for a threshold that is a
            number.
    """

    direction: Direction
    value: float
    expression: str | None = None


class Planning(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An estimate of the number of instances that would decide an inconclusive case.

    The estimate assumes that the observed value is the true one. `low` and `high` show how uncertain the estimate is.
    They are the estimates for the values at both ends of the 50% interval.

    Attributes:
        instances: The number of instances; None if the value is too close to the threshold for an estimate.
        low: The estimate at the end of the 50% interval that is further from the threshold. None if even this end is
            too close to the threshold.
        high: The estimate at the end of the 50% interval that is closer to the threshold. None if this end is too close
            to the threshold or on the other side of it.
        power: The probability that a sample with this number of instances decides the case.
    """

    instances: int | None
    low: int | None
    high: int | None
    power: float


class DetectableChange(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How far from the threshold the true value must be for a gate to be decided with the probability `power`.

    Attributes:
        to_pass: How far the true value must be on the required side for the case to pass; None if no possible value is
            that far.
        to_fail: How far the true value must be on the other side for the case to fail; None if no possible value is
            that far.
        power: The probability that the case passes or fails at these distances.
        warning: Why the sample is too small for the threshold, as a clause; "" if it is large enough.
    """

    to_pass: float | None
    to_fail: float | None
    power: float
    warning: str = ""


class SamplingError(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How much a value varies between samples. `attnaudit plan` uses it to compute the size of another sample.

    Attributes:
        standard_error: The standard error of the value, in its unit.
        slope: The relative change of the variance (the square of the standard error) per unit of the value; 0 if the
            variance is assumed to be constant.
        share_rows: If the statistic is a share of rows, the effective sample size: the number of independent rows of
            equal weight that would give the same standard error. None for other statistics.
        narrows_with_rows: Whether the error approaches 0 as rows are added.
    """

    standard_error: float
    slope: float = 0.0
    share_rows: float | None = None
    narrows_with_rows: bool = True


class Reference(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A value with which the value of a check is compared, such as the value for shuffled attention.

    Attributes:
        name: A short name, such as "floor". Relative thresholds refer to the reference by this name.
        value: The value of the reference, in the unit of the check's value; None if it is undefined.
        meaning: What the reference is, as a short phrase.
        n: The number of instances from which the reference was computed; None if it does not depend on instances.
    """

    name: str
    value: float | None
    meaning: str
    n: int | None = None


class Histogram(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A histogram of the values per instance. Undefined values are left out.

    Attributes:
        edges: The k + 1 edges of the k bins, in ascending order.
        counts: The number of instances in each of the k bins.
        label: The label of the horizontal axis, which says what the values are.
    """

    edges: list[float]
    counts: list[int]
    label: str


class Series(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One line, or one set of bars, of a chart.

    Attributes:
        name: The name in the legend.
        x: The positions on the horizontal axis.
        y: One value for each position in `x`; None where undefined.
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
        series: The lines, or the sets of bars.
    """

    title: str
    x_label: str
    y_label: str
    kind: Literal["line", "bar"]
    series: list[Series]


class Matrix(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The values of a check under several readings, with one row per layer and one column per head.

    Attributes:
        row_label: What each row stands for. It is always "layer".
        column_label: What each column stands for. It is always "head".
        rows: The names of the r rows.
        columns: The names of the c columns.
        values: r lists of c values each, in the unit of the check's value; None where undefined.
        low: The lower bounds of the intervals of the values: r lists of c bounds.
        high: The upper bounds of these intervals: r lists of c bounds.
    """

    row_label: str
    column_label: str
    rows: list[str]
    columns: list[str]
    values: list[list[float | None]]
    low: list[list[float | None]] = msgspec.field(default_factory=list)
    high: list[list[float | None]] = msgspec.field(default_factory=list)


class Part(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One part of a breakdown: the value of a check on the instances that have something in common.

    Attributes:
        name: What the instances have in common, such as "0.8 to 0.95".
        n: The number of these instances that have a value.
        value: The value of the check on these instances; None if it is undefined.
    """

    name: str
    n: int
    value: float | None


class Breakdown(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The value of a check in parts of the data, such as short and long texts.

    Attributes:
        by: The property by which the data are divided: "confidence", "length", "predicted class" or "label".
        parts: At least two parts.
    """

    by: str
    parts: list[Part]


class RankedInstance(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One of the instances with the worst values.

    Attributes:
        instance: The id of the instance.
        value: The value of the check on the instance.
        tokens: The tokens around the most attended token, which is in guillemets, as in "a «good» film".
    """

    instance: str
    value: float
    tokens: str = ""


class BaselineComparison(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The two values that a paired gate compared: that of the audited model and that of its baseline.

    Attributes:
        baseline_name: The name of the baseline: "last" for the last release, "pinned" for a release that is seldom
            replaced.
        base: The id of the check whose values were compared.
        candidate: The value of the audited model, rounded as in baseline files; None if it is undefined.
        reading: The reading under which `candidate` was measured; "" for a model with a single row of attention
            weights.
        measures_sha256: The SHA-256 hash of the code that computed `candidate`.
        baseline: The value of the baseline; None if the two values are not comparable.
        baseline_sha256: The SHA-256 hash of the baseline; "" if there is none.
        baseline_run: The name of the run that was accepted as the baseline; "" if there is none.
        baseline_model: The name of the model of the baseline; "" if the two values are not comparable.
        same_model: Whether the two models have the same hash.
        not_comparable: Why the two values cannot be compared, and what to do; "" if they can.
    """

    baseline_name: str
    base: str
    candidate: float | None
    reading: str
    measures_sha256: str
    baseline: float | None = None
    baseline_sha256: str = ""
    baseline_run: str = ""
    baseline_model: str = ""
    same_model: bool = False
    not_comparable: str = ""


class Rounding(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How much rounding in half precision changes a value.

    Attributes:
        precision: The type in which the model was audited, such as "bfloat16".
        rows: The number of rows that were measured a second time, in float32.
        change: The absolute difference between the values on these rows in half precision and in float32. If the
            threshold is relative, it is the difference between the distances from the threshold. None if the check has
            no value on these rows.
    """

    precision: str
    rows: int
    change: float | None


class CheckRecord(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The record of one case, that is, of one check on one model and one data set.

    Attributes:
        check: The id of the check, such as "agreement.gradient.meister.inputs".
        family: The kind of check, such as "agreement".
        model: The name of the model.
        data: The name of the data set.
        seed: The seed of the run.
        title: The claim that the check tests.
        question: The question that the check asks.
        why: Why the answer matters.
        how_to_read: How to interpret the value.
        in_words: The meaning of the value in this case, in one or two sentences for readers who do not know the
            statistic; "" if the check has no such sentence or the value is undefined.
        when_failed: What it means for the model if the gate fails, as a short sentence without a full stop.
        parameters: Name -> value of each argument of the check, including defaults.
        needs: The names of the measures that the check reads.
        verdict: "pass", "fail", "inconclusive", "undefined", or "informational" for a check without a threshold.
        reason: The reason for the verdict, as a clause without a full stop.
        severity: "gate" if the case can fail, "report" if the check is informational.
        inconclusive: What happens to the case if the verdict on a gate is inconclusive. "fail": the case fails. "warn":
            it passes with a warning. "pass": it passes.
        statistic: How the value summarises the instances, such as "mean".
        unit: The unit of the value, such as "Kendall τ-b"; "" if it has none.
        value_name: The name of the value in messages, such as "mean τ-b".
        value: The statistic; None if it is undefined.
        requirement: The threshold; None if the check has none, or if a relative threshold is undefined.
        interval: The interval of `value` at the confidence of the check, which decides whether the case passes; None if
            there is none. A relative threshold differs between instances. For such a threshold, the interval of the
            mean difference between value and threshold is computed, and `requirement.value` is added to its bounds.
        n: The number of audited instances.
        n_defined: The number of instances that have a value.
        n_different: The number of different instances among them, if it is too small for a verdict although `n_defined`
            is not. Instances that repeat the text of another one count once. None otherwise.
        undefined: Reason -> the number of instances that have no value for this reason. Empty if all instances have a
            value.
        references: The values with which `value` is compared.
        details: Name -> number or text, for further results; None where undefined.
        distribution: A histogram of the values per instance; None if the check has no values per instance.
        charts: Further charts.
        worst: The instances with the worst values, the worst one first.
        better: "at_least" if higher values are better, "at_most" if lower values are better. None if the check accepts
            thresholds of both kinds.
        typical: Instances that are typical of the value (see `typical_of`).
        typical_of: How the instances in `typical` were chosen, as a noun phrase; "" if there are none.
        breakdowns: The value of a gate in parts of the data; empty for informational checks.
        worst_first: Which values are the worst: "lowest" or "highest".
        token_columns: The names of the columns that the report draws as heatmaps. Each column has one number per token.
        note: Remarks on the value, separated by semicolons; "" if there are none.
        blocks: Whether the case fails in pytest.
        gated: The number of gates in the policy; 1 for an informational check. The confidence of `fail_interval` is
            corrected for this number.
        fail_interval: The interval that decides whether the case fails. Its confidence is 1 - (1 - c) / `gated`, where
            c is the confidence of `interval` (Bonferroni correction). None if the check has no threshold or the value
            has no interval.
        planning: How many instances would decide the case; None if the case is not inconclusive or no estimate is
            possible.
        sampling_error: How much the value varies between samples; None if the value has no interval.
        detectable_change: The smallest change that the case detects in 80% of samples; None without a threshold or an
            interval, or if too few instances have a value for any verdict.
        reading: The reading, which says which attention weights were audited; "" for the model's own reading.
        matrix: The values under each reading if the check covers several readings; otherwise None. `value` and
            `interval` then describe the mean over the readings.
        test: The pytest id of the case; "" if it was not judged under pytest.
        comparison: The two values that a paired gate compared; None for any other check. `value` is then the value of
            the audited model minus the value of the baseline.
        unseen_mixers: The modules of the model that carry information between tokens without visible weights, which
            every reading leaves out, such as "model.layers.0.mixer (MambaMixer)". They make the verdict of a gate
            undefined. Empty if the model has none, or if the check accepts them.
        rounding: How much rounding changes the value, for a gate of a model that was audited in half precision;
            otherwise None. If this could change the verdict, the verdict is undefined.
        unit_names: The names of the units and rows, which the texts of this record contain. Records of models that read
            texts lack this field.
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
    sampling_error: SamplingError | None = None
    detectable_change: DetectableChange | None = None
    reading: str = ""
    in_words: str = ""
    when_failed: str = ""
    better: Direction | None = None
    typical: list[RankedInstance] = msgspec.field(default_factory=list)
    typical_of: str = ""
    breakdowns: list[Breakdown] = msgspec.field(default_factory=list)
    matrix: Matrix | None = None
    test: str = ""
    comparison: BaselineComparison | None = None
    unseen_mixers: list[str] = msgspec.field(default_factory=list)
    rounding: Rounding | None = None
    n_different: int | None = None
    unit_names: UnitNames | msgspec.UnsetType = msgspec.UNSET

    @property
    def key(self) -> tuple[str, str, str, int]:
        """The model, data, check and seed, which together identify the case in a run."""
        return (self.model, self.data, self.check, self.seed)
