"""The records of a validation: population.json, the stored result of each model, and validation.json."""

from __future__ import annotations

from typing import Literal

from attnaudit.records import Direction, Record, VerdictName
from attnaudit.research.study.result_cache import CachedAudit

SCHEMA_VERSION = 1

#: What is known about a model's attention. "trend": nothing is known, so the model is reported but not scored.
Truth = Literal["faithful", "unfaithful", "trend"]
#: "tuning" models decide thresholds; "held_out" models give the published figures.
Half = Literal["tuning", "held_out"]
#: What a check asks: is attention used, does it point at what matters, or neither ("evidence")?
Question = Literal["used", "points", "evidence"]


class Entry(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One model of a population: an entry of population.json.

    Attributes:
        folder: The checkpoint folder, relative to the population, as `--model` takes it.
        kind: How the model was made. Models of one kind are alike, so intervals resample kinds.
        truth: "faithful" and "unfaithful" models are scored; a "trend" is only shown.
        data: A registered data set, or a file relative to the population or to the checkpoint folder.
        encoder: The encoder of the model, such as "bilstm".
        alignment: The alignment function of its attention, such as "additive".
        projection: What turns scores into weights, such as "sparsemax".
        seed: The seed it was trained with.
        level: The level at which the contributions are known, such as "tokens".
        rank_agreement: Kendall's τ-b of attention with the contributions that are known by construction.
        verified_by: An intervention that no check uses, and its outcome.
        accuracy: Share of test instances whose predicted class is their label.
        bypass_share: Share of the logit's variance that does not pass through attention weights.
        half: The half that the model belongs to. The default is held out, so that no model is used for tuning by
            mistake.
        fails: The questions that an unfaithful model fails by construction.
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
        notes: One sentence for each model that is not scored because its rank agreement contradicts its label.
    """

    entries: list[Entry]
    notes: list[str]


class ModelResult(CachedAudit, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The check records of one model of a population.

    Attributes:
        key: The cache key, which is also the name of the file.
        model_sha256: Hash of the checkpoint.
        data_sha256: Hash of the measured instances.
    """

    key: str
    model_sha256: str
    data_sha256: str


class Area(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An area under the ROC curve with its interval.

    Attributes:
        value: The area.
        low: Lower limit of the interval, which resamples kinds of models.
        high: Upper limit of the interval.
        faithful: How many faithful models there are.
        unfaithful: How many unfaithful models there are.
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
    """A share of models with Wilson's interval.

    Attributes:
        hits: The number of models that are counted.
        n: The number of all models.
        value: hits / n; None if there are no models.
        low: Lower limit of the interval.
        high: Upper limit of the interval.
    """

    hits: int
    n: int
    value: float | None
    low: float
    high: float


class RocPoint(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One point of a ROC curve: the shares of faithful and of unfaithful models that raise an alarm."""

    false_alarms: float
    sensitivity: float


class GroupRates(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The models with the same label in one group.

    Attributes:
        name: The kind or the encoder that the group shares.
        truth: What is known about the attention of these models.
        models: How many models there are.
        alarms: How many of them raise an alarm; None without a threshold.
        area: The area against all models with the opposite label; None for trends, or if there are no such models.
        median_value: The median of the check value, or of the policy score, over the models; None if all are undefined.
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
        area: The area under the ROC curve; None without faithful or without unfaithful models.
        sensitivity: Alarms among the unfaithful models; None for a check without a threshold.
        false_alarms: Alarms among the faithful models; None for a check without a threshold.
        roc: The points of the ROC curve.
        by_encoder: Alarms and area of each group of models with the same encoder and label.
        by_kind: Alarms and area of each group of models with the same kind and label.
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
        direction: The side of the threshold that is required.
        gated: Whether the policy gates on the check.
        threshold: The threshold of the policy; for other checks the one computed from the tuning half; None without
            one.
        threshold_from: "policy" or "tuning half"; "" without a threshold.
        discriminates: Whether the area is high enough to gate on (`threshold_rule.discriminates`).
        why: The area that decides `discriminates`, in words.
        tuning: Figures on the tuning half; unfaithful models count only if they fail the question of the check. None
            without labelled models.
        held_out: The same on the held-out half.
        against_all: The held-out area with all unfaithful models; None without faithful or without unfaithful models.
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
    """What happens to one kind of model if the policy is chosen without it.

    Attributes:
        kind: The kind that is left out.
        truth: The label of its models.
        alarms: Alarms among the models of the kind.
        area: The area of its models against the held-out models with the opposite label; None if there are none.
        checks: The gates of the policy that is chosen from the tuning half of the other kinds.
    """

    kind: str
    truth: Truth
    alarms: Rate
    area: float | None
    checks: list[str]


class ModelScore(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The outcome of the policy on one model.

    Attributes:
        folder: The model, as in its entry; kind, truth, half and encoder are copied from there.
        score: The smallest margin over the gates, in standard errors; None if a margin is -inf or there are no gates.
        alarm: Whether a gate did not pass.
        failed: The gates that did not pass, with their verdicts.
        questions: The questions that those gates answer.
        values: Check id -> value, None if undefined, for every check with a record.
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
        option: The training option, which is also the kind of the models trained with it.
        check: The check id.
        plain: Median value over the plain models.
        treated: Median value over the models trained with the option.
        plain_models: The number of plain models with a defined value.
        treated_models: The number of models trained with the option that have a defined value.
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
        policy: The file name of the policy, or where it comes from.
        policy_sha256: Hash of the policy file; "" without a file.
        seed: The seed of samples, permutations and intervals.
        quick: Whether costly checks were left out and fewer instances measured.
        max_instances: The largest number of instances measured per model.
        seconds: Wall-clock time of this run.
        measuring_seconds: Time of measuring and judging all models, summed over processes and including stored results.
        models: How many models were audited.
        counts: Label and half, such as "faithful held out" -> number of models.
        policy_held_out: The figures of the policy on the held-out half.
        policy_tuning: The figures of the policy on the tuning half.
        checks: The figures of every check.
        left_out: For each kind, the outcome of a policy that was chosen without it.
        trends: Alarms among the kinds without a known truth, of both halves.
        remedies: The effect of training options on the gates.
        scores: The outcome of the policy on each model.
        failed: Model folder -> why it could not be audited.
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
        margin: The distance in standard errors, positive on the required side.
        verdict: The verdict at this threshold.
    """

    margin: float
    verdict: VerdictName
