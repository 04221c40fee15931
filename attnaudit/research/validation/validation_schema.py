"""The records in the files of a validation: the stored result of each model, looks.jsonl and validation.json."""

from __future__ import annotations

from attnaudit.records import Record, VerdictName
from attnaudit.research.study.result_cache import CachedAudit
from attnaudit.research.validation.figures_schema import (
    CheckFigures,
    Errors,
    Figures,
    GroupRates,
    Guarantee,
    InTurn,
    InvarianceResult,
    RankCorrelation,
    ShareOutcome,
)
from attnaudit.research.validation.population_schema import Family, Half, Truth

SCHEMA_VERSION = 5


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


class ModelScore(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The outcome of the policy on one model.

    Attributes:
        name: The checkpoint folder of the model and, if its entry names one, the reading.
        kind: The kind of the model, from its entry in the population.
        mechanism: The mechanism of the model, from its entry.
        truth: What is known about the attention of the model, from its entry.
        share: The share of rows or heads on which attention is right, from its entry.
        half: The half that the model belongs to, from its entry.
        encoder: The encoder of the model, from its entry.
        score: The smallest margin over the gates, in standard errors. None if a margin is -inf, or if there are no
            gates.
        alarm: Whether any gate did not pass.
        verdict: The verdict of the policy.
        failed: Check id -> verdict, for the gates that did not pass.
        questions: The questions that the gates in `failed` answer.
        values: Check id -> value, for every check with a record. The value is None if it is undefined.
    """

    name: str
    kind: str
    mechanism: str
    truth: Truth
    share: float | None
    half: Half
    encoder: str
    score: float | None
    alarm: bool
    verdict: VerdictName
    failed: dict[str, VerdictName]
    questions: list[str]
    values: dict[str, float | None]


class Remedy(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The measured effect of a training option on one check.

    Attributes:
        option: The training option. It is also the name of the kind of the models that were trained with it.
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


class Look(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One line of looks.jsonl: a run that scored the held-out half.

    Attributes:
        date: When the run began (ISO 8601, UTC).
        population_sha256: Hash of population.json.
        family: The family of the models.
        gates: The gates of the policy, as text.
        policy_sha256: Hash of the policy file, or of the gates if `threshold_rule` chose them.
        errors: The errors on the held-out half.
    """

    date: str
    population_sha256: str
    family: Family
    gates: list[str]
    policy_sha256: str
    errors: Errors


class FamilyFigures(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The figures of one family of models and its policy.

    Attributes:
        family: The family.
        policy: The file name of the policy, or the words "chosen from the tuning half of this population".
        policy_sha256: Hash of the policy file. It is "" if the policy has no file.
        gates: The gates of the policy, as text.
        validated_on: The families that the policy may name in `validated_on`: this family if both faithful and
            unfaithful models are held out, otherwise none.
        basis: What the policy was validated on, and how often it was wrong. Each text is one comment in the policy
            file.
        models: The number of audited models. For Transformers, it is the number of audited readings.
        counts: Label and half, such as "faithful held out" -> number of models.
        held_out: The figures of the policy on the held-out half. None if there are no gates or no labelled models.
        tuning: The same figures on the tuning half.
        held_out_errors: The errors of the policy on the held-out half. None if there are no gates.
        in_turn: The errors of the policies that `threshold_rule` chooses if each mechanism, or each encoder, is left
            out in turn. Encoders are left out only if there are at least two.
        checks: The figures of every check.
        correlations: The rank correlations with the known shares. The list is empty without graded mechanisms.
        outcomes: The verdicts on all models of graded mechanisms, grouped by the share of rows or heads on which
            attention is right.
        guarantee: What a pass says about the share on which attention is right. None if nothing is known.
        trends: How many models of unknown truth ("trend") raise an alarm, for each kind. Both halves are included.
        remedies: The measured effects of training options on the gated checks.
        scores: The outcome of the policy on each model.
        looks: The number of runs with results in this folder that have scored the held-out half of this population.
        notes: Limitations of the figures, such as checks that were left out.
    """

    family: Family
    policy: str
    policy_sha256: str
    gates: list[str]
    validated_on: list[str]
    basis: list[str]
    models: int
    counts: dict[str, int]
    held_out: Figures | None
    tuning: Figures | None
    held_out_errors: Errors | None
    in_turn: list[InTurn]
    checks: list[CheckFigures]
    correlations: list[RankCorrelation]
    outcomes: list[ShareOutcome]
    guarantee: Guarantee | None
    trends: list[GroupRates]
    remedies: list[Remedy]
    scores: list[ModelScore]
    looks: int
    notes: list[str]


class Validation(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of validation.json.

    Attributes:
        schema_version: The version of this schema.
        created: When the run began (ISO 8601, UTC).
        attnaudit: The version of attnaudit.
        population: The name of the population's folder.
        population_sha256: Hash of population.json.
        seed: The seed of samples, permutations and intervals.
        quick: Whether fewer instances and fewer checks were measured.
        max_instances: The largest number of instances measured per model.
        seconds: Wall-clock time of this run, in seconds.
        measuring_seconds: Wall-clock time of measuring and judging, in seconds, summed over the models. Time that
            earlier runs spent on stored results is included.
        families: The figures of each family in the population.
        invariances: How much the values of the gates, and of the checks that may become gates, change under changes
            that make a model no more and no less faithful. This is measured on pooled models that were made for this
            purpose.
        failed: Name of an entry -> why the model could not be audited.
        notes: Notes about the whole population, such as labels that are not supported.
    """

    schema_version: int
    created: str
    attnaudit: str
    population: str
    population_sha256: str
    seed: int
    quick: bool
    max_instances: int
    seconds: float
    measuring_seconds: float
    families: list[FamilyFigures]
    invariances: list[InvarianceResult]
    failed: dict[str, str]
    notes: list[str]
