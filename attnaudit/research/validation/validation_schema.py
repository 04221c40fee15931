"""The records in the files of a validation: population.json, the stored result of each model, and validation.json."""

from __future__ import annotations

from typing import Literal

from attnaudit.records import Direction, Record, VerdictName
from attnaudit.research.study.result_cache import CachedAudit

SCHEMA_VERSION = 1

#: What is known about the attention of a model. Whether the attention of a "trend" is faithful is unknown, so it is
#: reported but not scored.
Truth = Literal["faithful", "unfaithful", "trend"]
#: The models of the "tuning" half determine the thresholds. The published figures come from the "held_out" half.
Half = Literal["tuning", "held_out"]
#: What a check asks: is attention used, does it point at what matters, or neither ("evidence")?
Question = Literal["used", "points", "evidence"]


class Entry(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One model of a population: an entry of population.json.

    Attributes:
        folder: The checkpoint folder of the model, relative to the folder of the population.
        kind: The name of the method by which the model was made. Models of one kind are similar, so intervals resample
            kinds.
        truth: What is known about the attention of the model. "faithful" and "unfaithful" models are scored. A "trend"
            is only reported.
        data: The name of a registered data set, or the path of a file. The path is relative to the folder of the
            population or to the checkpoint folder.
        encoder: The encoder of the model, such as "bilstm".
        alignment: The alignment function of its attention, such as "additive".
        projection: The function that turns attention scores into weights, such as "sparsemax".
        seed: The seed of training.
        level: The units whose contributions are known, such as "tokens".
        rank_agreement: Kendall's τ-b of attention with the contributions that are known by construction. None if it was
            not measured.
        verified_by: The intervention that confirmed the contributions, and its outcome. No check uses this
            intervention. None if the contributions were not verified.
        accuracy: The share of test instances whose predicted class is their label. None if it was not measured.
        bypass_share: The share of the logit's variance that does not pass through attention weights. None if it was not
            measured.
        half: The half that the model belongs to. The default is "held_out", so that no model is used for tuning by
            mistake.
        fails: The questions that the model fails by construction. Only the value of an unfaithful model is used.
    """

    folder: str
    kind: str
    truth: Truth
    data: str
    encoder: str = ""
    alignment: str = ""
    projection: str = ""
    seed: int = 0
    level: str = ""
    rank_agreement: float | None = None
    verified_by: str | dict[str, str | float | int | bool | None] | None = None
    accuracy: float | None = None
    bypass_share: float | None = None
    half: Half = "held_out"
    fails: tuple[Literal["used", "points"], ...] = ("used", "points")


class Population(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The models of a population.

    Attributes:
        entries: The models.
        notes: One text for each model that is not scored because its rank agreement contradicts its label.
    """

    entries: list[Entry]
    notes: list[str]


class ModelResult(CachedAudit, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The check records of one model of a population.

    Attributes:
        key: The cache key. It is also the name of the file, without its ending.
        model_sha256: Hash of the checkpoint.
        data_sha256: Hash of the measured instances.
    """

    key: str
    model_sha256: str
    data_sha256: str


class Area(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An area under the ROC curve, with a 95% interval that comes from resampling kinds of models.

    Attributes:
        value: The area, from 0 to 1.
        low: The lower limit of the interval.
        high: The upper limit of the interval.
        faithful: The number of faithful models.
        unfaithful: The number of unfaithful models.
        faithful_kinds: The number of kinds of faithful models.
        unfaithful_kinds: The number of kinds of unfaithful models.
    """

    value: float
    low: float
    high: float
    faithful: int
    unfaithful: int
    faithful_kinds: int
    unfaithful_kinds: int


class Rate(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The share of models that raise an alarm, with Wilson's interval.

    Attributes:
        hits: The number of models that raise an alarm.
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


class Invariance(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How far a change that makes a model neither more nor less faithful moves the value of a check.

    Attributes:
        law: The change, in words.
        check: The check id.
        change: The absolute change of the value: of all models and variants of the change, the one furthest above what
            is allowed, or least below it. None if it was not measured.
        allowed: The change that counts as none, because of rounding, of random draws, or of weights below .001.
        holds: Whether no change exceeds what is allowed. None if the law does not apply to the check.
        model: The name of the model on which the change was measured. It is "" if there is none.
        note: Why the law does not apply or was not measured, or that the value became undefined. Otherwise "".
    """

    law: str
    check: str
    change: float | None
    allowed: float
    holds: bool | None
    model: str = ""
    note: str = ""


class GroupRates(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Figures of a group of models that have the same label, and the same kind or encoder.

    Attributes:
        name: The kind or the encoder of the models.
        truth: What is known about the attention of the models.
        models: The number of models.
        alarms: How many of the models raise an alarm. None for a check without a threshold.
        area: The area under the ROC curve of these models against all models with the other label. None for trends, and
            if no model has the other label.
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
        direction: "at_least" if the value must not be below the threshold, "at_most" if it must not be above.
        gated: Whether the check is a gate of the policy.
        threshold: The threshold in the policy. For a check that is not gated, it is the threshold computed from the
            tuning half. None if there is no threshold.
        threshold_from: The source of the threshold: "policy" or "tuning half". It is "" if there is no threshold.
        discriminates: Whether the area is high enough for a gate (`threshold_rule.discriminates`).
        why: The area that determines `discriminates`, as text.
        tuning: The figures on the tuning half. Unfaithful models count only if they fail the question of the check.
            None if there are no labelled models.
        held_out: The same figures on the held-out half.
        against_all: The area on the held-out half with all unfaithful models. None unless there are both faithful and
            unfaithful models.
        skipped: The number of models on which the check could not be judged.
    """

    check: str
    title: str
    question: Question
    direction: Direction
    gated: bool
    threshold: float | str | None
    threshold_from: Literal["policy", "tuning half", ""]
    discriminates: bool
    why: str
    tuning: Figures | None
    held_out: Figures | None
    against_all: Area | None
    skipped: int


class LeftOut(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The outcome for one kind of models if the policy is chosen without this kind.

    Attributes:
        kind: The kind that is left out.
        truth: The label of the models of the kind.
        alarms: How many of the models of the kind raise an alarm.
        area: The area under the ROC curve of these models against the held-out models with the other label. None if no
            held-out model has the other label.
        checks: The gates of the policy, as text. The policy is chosen from the tuning half of the other kinds.
    """

    kind: str
    truth: Truth
    alarms: Rate
    area: float | None
    checks: list[str]


class ModelScore(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The outcome of the policy on one model.

    Attributes:
        folder: The checkpoint folder, from the entry of the model in the population.
        kind: The kind of the model, from its entry.
        truth: What is known about the attention of the model, from its entry.
        half: The half that the model belongs to, from its entry.
        encoder: The encoder of the model, from its entry.
        score: The smallest margin over the gates, in standard errors. None if a margin is -inf, or if there are no
            gates.
        alarm: Whether any gate did not pass.
        failed: Check id -> verdict, for the gates that did not pass.
        questions: The questions that the gates in `failed` answer.
        values: Check id -> value, for every check with a record. The value is None if it is undefined.
    """

    folder: str
    kind: str
    truth: Truth
    half: Half
    encoder: str
    score: float | None
    alarm: bool
    failed: dict[str, VerdictName]
    questions: list[str]
    values: dict[str, float | None]


class Remedy(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The measured effect of a training option on one check.

    Attributes:
        option: The training option. The kind of the models trained with it has the same name.
        check: The check id.
        plain: The median value of the check over the plain models.
        treated: The median value of the check over the models trained with the option.
        plain_models: The number of plain models with a defined value.
        treated_models: The number of models that were trained with the option and have a defined value.
    """

    option: str
    check: str
    plain: float
    treated: float
    plain_models: int
    treated_models: int


class Validation(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of validation.json.

    Attributes:
        schema_version: The version of this schema.
        created: When the run began (ISO 8601, UTC).
        attnaudit: The version of attnaudit.
        population: The name of the population's folder.
        policy: The file name of the policy, or the words "chosen from the tuning half of this population".
        policy_sha256: Hash of the policy file. It is "" if the policy has no file.
        seed: The seed of samples, permutations and intervals.
        quick: Whether fewer instances were measured and costly checks were left out.
        max_instances: The largest number of instances measured per model.
        seconds: Wall-clock time of this run, in seconds.
        measuring_seconds: Wall-clock time of measuring and judging, in seconds, summed over the models. Time that
            earlier runs spent on stored results is included.
        models: The number of audited models.
        counts: Label and half, such as "faithful held out" -> number of models.
        policy_held_out: The figures of the policy on the held-out half. None if there are no gates or no labelled
            models.
        policy_tuning: The same figures on the tuning half.
        checks: The figures of every check.
        left_out: For each labelled kind, the outcome of a policy that was chosen without the kind.
        trends: How many trend models of each kind raise an alarm. Models of both halves are included.
        remedies: The measured effects of training options on the gated checks.
        scores: The outcome of the policy on each model.
        failed: Model folder -> why the model could not be audited.
        notes: Limitations of the figures, such as checks that were left out.
    """

    schema_version: int
    created: str
    attnaudit: str
    population: str
    policy: str
    policy_sha256: str
    seed: int
    quick: bool
    max_instances: int
    seconds: float
    measuring_seconds: float
    models: int
    counts: dict[str, int]
    policy_held_out: Figures | None
    policy_tuning: Figures | None
    checks: list[CheckFigures]
    left_out: list[LeftOut]
    trends: list[GroupRates]
    remedies: list[Remedy]
    scores: list[ModelScore]
    failed: dict[str, str]
    notes: list[str]


class Margin(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The distance of a check's value from a threshold.

    Attributes:
        margin: The distance in standard errors. It is positive if the value is on the required side of the threshold,
            and -inf if it is undefined.
        verdict: The verdict of the check at this threshold.
    """

    margin: float
    verdict: VerdictName
