"""The figures of a validation: areas, rates, errors, and rank correlations with known shares."""

from __future__ import annotations

from typing import Literal

from attnaudit.records import Direction, Record, VerdictName
from attnaudit.research.validation.population_schema import Truth

#: What a check asks: is attention used, does it point at what matters, or neither ("evidence")?
Question = Literal["used", "points", "enough", "evidence"]


class Area(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An area under the ROC curve, with a 95% interval that comes from resampling mechanisms.

    Attributes:
        value: The area, from 0 to 1.
        low: The lower limit of the interval.
        high: The upper limit of the interval.
        faithful: The number of faithful models.
        unfaithful: The number of unfaithful models.
        faithful_mechanisms: The number of mechanisms of faithful models.
        unfaithful_mechanisms: The number of mechanisms of unfaithful models.
    """

    value: float
    low: float
    high: float
    faithful: int
    unfaithful: int
    faithful_mechanisms: int
    unfaithful_mechanisms: int


class Rate(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A share of models, such as those that raise an alarm, with Wilson's interval.

    Attributes:
        hits: The number of models that count, such as those that raise an alarm.
        n: The number of all models.
        value: The share hits / n. None if there are no models.
        low: The lower limit of the interval.
        high: The upper limit of the interval.
    """

    hits: int
    n: int
    value: float | None
    low: float
    high: float


class RocPoint(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One point of a ROC curve.

    Attributes:
        false_alarms: The share of faithful models that raise an alarm.
        sensitivity: The share of unfaithful models that raise an alarm.
    """

    false_alarms: float
    sensitivity: float


class GroupRates(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Figures of a group of models that have the same label, and the same kind or encoder.

    Attributes:
        name: The kind or the encoder of the models.
        truth: What is known about the attention of the models.
        models: The number of models.
        alarms: How many of the models raise an alarm. None for a check without a threshold.
        area: The area under the ROC curve of these models against all models with the other label. None for models of
            unknown truth ("trend"), or if no model has the other label.
        median_value: The median over the models. For a check, it is the median of the value, and for a policy, the
            median of the policy score. None if the number is undefined on all models.
    """

    name: str
    truth: Truth
    models: int
    alarms: Rate | None
    area: float | None
    median_value: float | None


class Figures(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How well a check or a policy separates faithful from unfaithful models.

    Attributes:
        area: The area under the ROC curve. None unless there are both faithful and unfaithful models.
        sensitivity: How many of the unfaithful models raise an alarm. None for a check without a threshold.
        false_alarms: How many of the faithful models raise an alarm. None for a check without a threshold.
        roc: The points of the ROC curve. The list is empty unless there are both faithful and unfaithful models.
        by_encoder: The figures of each group of models with the same encoder and label.
        by_kind: The figures of each group of models with the same kind and label.
    """

    area: Area | None
    sensitivity: Rate | None
    false_alarms: Rate | None
    roc: list[RocPoint]
    by_encoder: list[GroupRates]
    by_kind: list[GroupRates]


class CheckFigures(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How well one check separates faithful from unfaithful models.

    Attributes:
        check: The check id.
        title: The title of the check.
        question: The question that the check answers.
        direction: "at_least" if the value must not be below the threshold, "at_most" if it must not be above it.
        gated: Whether the check is a gate of the policy.
        may_gate: Whether the rule (`threshold_rule`) may use the check as a gate.
        threshold: The threshold in the policy. For a check that is not gated, it is the threshold computed from the
            tuning half. None if there is no threshold.
        threshold_from: The source of the threshold: "policy" or "tuning half". It is "" if there is no threshold.
        discriminates: Whether the area is high enough for a gate (`threshold_rule.discriminates`).
        why: The area under the ROC curve that determines `discriminates`, as text.
        tuning: The figures on the tuning half. Unfaithful models count only if they fail the question of the check.
            Graded models count only if they must not pass the check. None if there are no labelled models.
        held_out: The same figures on the held-out half.
        against_all: The area under the ROC curve on the held-out half, computed with all unfaithful models. None unless
            there are both faithful and unfaithful models.
        skipped: The number of models on which the check could not be judged.
    """

    check: str
    title: str
    question: Question
    direction: Direction
    gated: bool
    may_gate: bool
    threshold: float | str | None
    threshold_from: Literal["policy", "tuning half", ""]
    discriminates: bool
    why: str
    tuning: Figures | None
    held_out: Figures | None
    against_all: Area | None
    skipped: int


class Errors(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How often a policy is wrong.

    Attributes:
        false_alarms: How many of the faithful models raise an alarm.
        misses: How many of the unfaithful models pass.
        graded_passes: How many graded models pass, of those whose attention is right on at most 60% of their rows or
            heads.
    """

    false_alarms: Rate
    misses: Rate
    graded_passes: Rate


class LeftOut(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The errors of a policy on the mechanism or encoder that was left out when `threshold_rule` chose the policy.

    Attributes:
        name: The mechanism or encoder that is left out.
        errors: The errors on all its models.
        gates: The gates of the policy, as text. The policy is chosen from the tuning half of the other mechanisms or
            encoders. The list is empty if `threshold_rule` chooses none, and the errors are then 0 of 0.
    """

    name: str
    errors: Errors
    gates: list[str]


class InTurn(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The errors of the policies that `threshold_rule` chooses if each mechanism, or each encoder, is left out in turn.

    Attributes:
        what: What is left out: "mechanism" or "encoder".
        total: The errors, added up over the rows.
        rows: The errors for each mechanism or encoder, sorted by name.
    """

    what: Literal["mechanism", "encoder"]
    total: Errors
    rows: list[LeftOut]


class RankCorrelation(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The rank correlation of a check's value with the known share of a graded mechanism.

    Attributes:
        check: The check id.
        gated: Whether the check is a gate of the policy.
        mechanism: The graded mechanism. "" for all graded mechanisms together.
        value: Spearman's ρ. None if it is undefined, because the values or the shares are all equal.
        low: The lower limit of the 95% interval. None if `value` is None.
        high: The upper limit of the 95% interval. None if `value` is None.
        models: The number of models. Models on which the check is undefined are left out.
        shares: The number of different shares.
    """

    check: str
    gated: bool
    mechanism: str
    value: float | None
    low: float | None
    high: float | None
    models: int
    shares: int


class ShareOutcome(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The verdicts of the policy on the models of graded mechanisms that have the same share.

    Attributes:
        share: The known share on which attention is right, rounded to one decimal.
        passes: The number of models that pass.
        fails: The number of models that fail.
        inconclusive: The number of models with the verdict "inconclusive" or "undefined".
        median_values: Check id -> median value, for each gate. None if the value is undefined on all models.
    """

    share: float
    passes: int
    fails: int
    inconclusive: int
    median_values: dict[str, float | None]


class Guarantee(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a pass says about the share on which attention is right.

    Attributes:
        share: The largest share that a pass guarantees.
        source: Where the number comes from: the "definition" of a gate that measures a share, or "graded models".
        sentence: The guarantee in words, with the number of models that it rests on.
    """

    share: float
    source: Literal["definition", "graded models"]
    sentence: str


class Margin(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The distance of a check's value from a threshold.

    Attributes:
        margin: The distance in standard errors. It is positive if the value is on the required side of the threshold,
            and -inf if it is undefined.
        verdict: The verdict of the check at this threshold.
    """

    margin: float
    verdict: VerdictName


class InvarianceResult(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How much the value of a check changes under a change of a model that does not affect its faithfulness.

    Attributes:
        invariance: The change of the model, in words.
        check: The check id.
        change: The absolute change of the value, on the model and the variant with the largest `change - allowed`. None
            if it was not measured.
        allowed: The largest change that still counts as no change. It allows for rounding, random draws and weights
            below .001.
        holds: Whether no change exceeds what is allowed. None if the invariance does not apply to the check.
        model: The name of the model on which the change was measured. It is "" if there is none.
        note: Why the invariance does not apply or was not measured, or a note that the value became undefined.
            Otherwise "".
    """

    invariance: str
    check: str
    change: float | None
    allowed: float
    holds: bool | None
    model: str = ""
    note: str = ""
