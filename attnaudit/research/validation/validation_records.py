"""What a validation leaves behind: the schema of validation.json and of the cached results per model."""

from __future__ import annotations

from typing import Literal

from attnaudit.records import CheckRecord, Direction, Record, VerdictName

SCHEMA_VERSION = 1

Truth = Literal["faithful", "unfaithful", "trend"]
Half = Literal["tuning", "held_out"]
Question = Literal["used", "points", "evidence"]


class Entry(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One model of a population, as population.json tells of it.

    folder: what `--model` takes, relative to the population. truth: "faithful" and "unfaithful" are scored; "trend" is
    only shown. data: a registered data set, or a file relative to the population. level: where the truth holds.
    rank_agreement: of attention with the contribution known by construction. verified_by: an intervention that no check
    uses, and its value. bypass_share: share of the logit's variance that a bypass carries. half: which half the model
    belongs to; without it a model is held out, so that nothing is ever tuned on it by mistake.
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
    """The models, and what was refused: labels that their own rank agreement does not bear out are not scored."""

    entries: list[Entry]
    notes: list[str]


class ModelResult(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The check records of one model, without their charts and instances.

    key: what the file is named after. asked: check -> its arguments as JSON, so that another policy measures only what
    is new to it. skipped: check -> why it could not be judged. seconds: of measuring and judging, wall clock.
    """

    key: str
    model_sha256: str
    data_sha256: str
    instances: int
    seconds: float
    asked: dict[str, str]
    checks: list[CheckRecord]
    skipped: dict[str, str]


class Area(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An area under the ROC curve; low and high resample kinds."""

    value: float
    low: float
    high: float
    faithful: int
    unfaithful: int
    faithful_kinds: int
    unfaithful_kinds: int


class Rate(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A share of models with Wilson's interval. value is None where there is no such model."""

    hits: int
    n: int
    value: float | None
    low: float
    high: float


class RocPoint(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    false_alarms: float
    sensitivity: float


class GroupRates(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The models of one truth in one group: a kind, or an encoder. area: against all models of the other truth."""

    name: str
    truth: Truth
    models: int
    alarms: Rate | None
    area: float | None
    median_value: float | None


class Figures(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How well something tells faithful from unfaithful on some models. sensitivity: alarms among the unfaithful;
    false_alarms: among the faithful; both None for a check that has no threshold."""

    area: Area | None
    sensitivity: Rate | None
    false_alarms: Rate | None
    roc: list[RocPoint]
    by_encoder: list[GroupRates]
    by_kind: list[GroupRates]


class CheckFigures(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One check. gated: whether the policy gates on it. threshold: of the policy, or what the tuning half would choose
    for a check that the policy does not hold (threshold_from says which). tuning, held_out: against the unfaithful
    models that fail the check's question. against_all: the held-out area against every unfaithful model."""

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
    """The policy chosen anew from the tuning half without one kind, tried on all models of that kind.

    alarms: among the models of the kind. area: of its models against the held-out models of the other truth.
    checks: what was chosen, with its thresholds.
    """

    kind: str
    truth: Truth
    alarms: Rate
    area: float | None
    checks: list[str]


class ModelScore(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the policy said of one model. score: the smallest signed margin in standard errors over the gated checks,
    None where one is undefined. failed: the gated checks that did not pass, with their verdicts."""

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
    """The measured effect of a training option on one check: medians over the models of the trend kinds."""

    option: str
    check: str
    plain: float
    treated: float
    plain_models: int
    treated_models: int


class Validation(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """validation.json. seconds: wall clock of this run. measuring_seconds: of measuring and judging all models, kept
    results included, summed over the processes. trends: what the policy says of kinds without a known truth, whatever
    their half."""

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
    """A check's value against a threshold: margin in standard errors, positive on the right side."""

    margin: float
    verdict: VerdictName
