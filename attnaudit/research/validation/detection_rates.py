"""Measure how well checks and policies detect unfaithful models: alarm rates, ROC curves and the areas under them.

A population has two halves. The tuning half determines the thresholds and the choice of checks. Reports show the
figures of the held-out half. If no labelled model is held out, they show those of the tuning half.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from attnaudit.research.validation.candidates import Candidate
from attnaudit.research.validation.figures_schema import Area, CheckFigures, Figures, GroupRates, Rate
from attnaudit.research.validation.population_schema import Half, Truth
from attnaudit.research.validation.roc import area, area_under_curve, roc_curve, wilson
from attnaudit.research.validation.scoring import Gate, JudgedModel, margin, oriented, policy_score, score
from attnaudit.research.validation.threshold_rule import check_area, discriminates, in_question, threshold, tuning
from attnaudit.research.validation.validation_schema import Remedy

#: Kinds of trend models. They were trained with an option that may make attention more faithful. Their values are
#: compared with those of the kind PLAIN.
REMEDIES = ("tying", "residual")
PLAIN = "plain"


@dataclass(frozen=True, slots=True, kw_only=True)
class Detector:
    """A check or a policy that is used as a detector of unfaithful models.

    Attributes:
        score: Returns the score of a model. A higher score means that attention seems more faithful. The score is -inf
            if it is undefined.
        alarm: Returns whether a model raises an alarm. None if the check has no threshold, or if the policy has no
            gates.
        value: Returns the value of a model. The figures contain the median of this value over each group of models. NaN
            or infinite if it is undefined.
    """

    score: Callable[[JudgedModel], float]
    alarm: Callable[[JudgedModel], bool] | None
    value: Callable[[JudgedModel], float]


def half_of(models: Sequence[JudgedModel], half: Half) -> list[JudgedModel]:
    """Return the models of one half of a population."""
    return [model for model in models if model.entry.half == half]


def policy_figures(models: Sequence[JudgedModel], gates: Sequence[Gate], *, seed: int) -> Figures | None:
    """Return how well a policy separates the faithful models from the unfaithful ones.

    Args:
        models: The models. Graded models and models of unknown truth ("trend") are ignored.
        gates: The gates of the policy.
        seed: The seed of the bootstrap interval of the area under the ROC curve.

    Returns:
        The figures. They are None if there are no gates or no labelled models.
    """
    labelled = [model for model in models if model.entry.truth in ("faithful", "unfaithful")]
    return _figures(labelled, _policy_detector(gates), seed=seed) if gates else None


def trends(models: Sequence[JudgedModel], gates: Sequence[Gate]) -> list[GroupRates]:
    """Return, for each kind of unknown truth ("trend"), how often its models raise an alarm.

    Args:
        models: The models. Models with a known truth are ignored.
        gates: The gates of the policy.
    """
    detector = _policy_detector(gates)
    kinds = sorted({model.entry.kind for model in models if model.entry.truth == "trend"})
    return [_group(kind, "trend", [m for m in models if m.entry.kind == kind], [], detector) for kind in kinds]


def check_figures(
    models: Sequence[JudgedModel], candidate: Candidate, gates: Sequence[Gate], *, skipped: int, seed: int
) -> CheckFigures:
    """Return how well one check separates faithful from unfaithful models, on both halves.

    Args:
        models: All models of the population.
        candidate: The check.
        gates: The gates of the policy. If the check is not among them, its threshold is computed from the tuning half.
        skipped: The number of models on which the check could not be judged.
        seed: The seed of the bootstrap intervals of areas under ROC curves.
    """
    check, direction = candidate.check.id, candidate.direction
    gate = next((gate for gate in gates if gate.check == check), None)
    value: float | str | None = gate.threshold if gate else threshold(tuning(models), candidate)
    compared_with = gate
    if gate is None and value is not None:
        compared_with = Gate(check=check, question=candidate.question, direction=direction, threshold=value)
    question = gate.question if gate else candidate.question
    judged = [model for model in models if check in model.records]
    relevant = in_question(judged, question)
    detector = _check_detector(candidate, compared_with)
    tuning_figures = _figures(half_of(relevant, "tuning"), detector, seed=seed)
    held_out = _figures(half_of(relevant, "held_out"), detector, seed=seed)
    published = held_out or tuning_figures
    published_area = published.area if published else None
    return CheckFigures(
        check=check,
        title=candidate.title,
        question=question,
        direction=direction,
        gated=gate is not None,
        may_gate=candidate.may_gate,
        threshold=value,
        threshold_from="policy" if gate else "tuning half" if value is not None else "",
        discriminates=discriminates(published_area),
        why=_area_sentence(published_area, half="held-out" if held_out and held_out.area else "tuning"),
        tuning=tuning_figures,
        held_out=held_out,
        against_all=_area_against_all(half_of(judged, "held_out"), candidate, seed=seed),
        skipped=skipped,
    )


def remedies(models: Sequence[JudgedModel], gates: Sequence[Gate]) -> list[Remedy]:
    """Return the effect of each training option in REMEDIES on each gated check.

    A pair of option and check is absent if the value of the check is undefined on all plain models, or on all models
    that were trained with the option.
    """
    effects = []
    for option in REMEDIES:
        for gate in gates:
            plain = _values(models, PLAIN, gate.check)
            treated = _values(models, option, gate.check)
            if plain and treated:
                effects.append(
                    Remedy(
                        option=option,
                        check=gate.check,
                        plain=median(plain),
                        treated=median(treated),
                        plain_models=len(plain),
                        treated_models=len(treated),
                    )
                )
    return effects


def _policy_detector(gates: Sequence[Gate]) -> Detector:
    def policy_margin(model: JudgedModel) -> float:
        return policy_score(model, gates)

    return Detector(
        score=policy_margin, alarm=(lambda model: score(model, gates).alarm) if gates else None, value=policy_margin
    )


def _check_detector(candidate: Candidate, gate: Gate | None) -> Detector:
    check = candidate.check.id

    def value(model: JudgedModel) -> float:
        number = model.records[check].value
        return math.nan if number is None else number

    return Detector(
        score=lambda model: oriented(model.records[check], candidate.direction),
        alarm=None if gate is None else lambda model: margin(model.records.get(check), gate).verdict != "pass",
        value=value,
    )


def _values(models: Sequence[JudgedModel], kind: str, check: str) -> list[float]:
    records = (model.records.get(check) for model in models if _is_kind(model.entry.kind, kind))
    return [record.value for record in records if record is not None and record.value is not None]


def _is_kind(name: str, kind: str) -> bool:
    """Return whether `name` is `kind` or a variant of it. For example, "plain-bilstm" is a variant of "plain"."""
    return name.replace("_", "-").split("-")[0] == kind


def _figures(labelled: Sequence[JudgedModel], detector: Detector, *, seed: int) -> Figures | None:
    if not labelled:
        return None
    scores = [detector.score(model) for model in labelled]
    truth = [model.faithful for model in labelled]
    faithful_scores = [s for s, faithful in zip(scores, truth, strict=True) if faithful]
    unfaithful_scores = [s for s, faithful in zip(scores, truth, strict=True) if not faithful]
    kinds = sorted({(m.entry.kind, m.entry.truth) for m in labelled}, key=lambda pair: pair[::-1])
    encoders = sorted({(m.entry.encoder, m.entry.truth) for m in labelled})
    return Figures(
        area=area(scores, truth, [model.entry.mechanism for model in labelled], seed=seed),
        sensitivity=_alarm_rate([model for model in labelled if not model.faithful], detector),
        false_alarms=_alarm_rate([model for model in labelled if model.faithful], detector),
        roc=roc_curve(faithful_scores, unfaithful_scores),
        by_encoder=[
            _group(
                name, truth_, [m for m in labelled if (m.entry.encoder, m.entry.truth) == (name, truth_)], labelled,
                detector,
            )
            for name, truth_ in encoders
        ],
        by_kind=[
            _group(
                name, truth_, [m for m in labelled if (m.entry.kind, m.entry.truth) == (name, truth_)], labelled,
                detector,
            )
            for name, truth_ in kinds
        ],
    )  # fmt: skip


def _group(
    name: str, truth: Truth, members: Sequence[JudgedModel], labelled: Sequence[JudgedModel], detector: Detector
) -> GroupRates:
    """Return how often the models of a group raise an alarm, and how well a detector separates them from the others.

    Args:
        name: The name of the group.
        truth: The label of its models.
        members: Its models.
        labelled: All labelled models. A faithful group is compared with the models that are not faithful, and any other
            group with the faithful models.
        detector: The check or the policy.
    """
    scores = [detector.score(model) for model in members]
    other_scores = [detector.score(model) for model in labelled if model.faithful != (truth == "faithful")]
    group_area = math.nan if truth == "trend" else _area_between(scores, other_scores, truth)
    values = [x for x in map(detector.value, members) if math.isfinite(x)]
    return GroupRates(
        name=name,
        truth=truth,
        models=len(members),
        alarms=_alarm_rate(members, detector),
        area=None if math.isnan(group_area) else group_area,
        median_value=median(values) if values else None,
    )


def _alarm_rate(models: Sequence[JudgedModel], detector: Detector) -> Rate | None:
    if detector.alarm is None:
        return None
    return wilson(sum(map(detector.alarm, models)), len(models))


def _area_between(scores: Sequence[float], other_scores: Sequence[float], truth: Truth) -> float:
    """Return the area under the ROC curve that separates two groups of models.

    Args:
        scores: The scores of one group.
        other_scores: The scores of the other group.
        truth: The truth of the first group. If it is "faithful", the models of the other group are not faithful.
            Otherwise, the models of the other group are faithful.
    """
    if truth == "faithful":
        return area_under_curve(scores, other_scores)
    return area_under_curve(other_scores, scores)


def _area_against_all(models: Sequence[JudgedModel], candidate: Candidate, *, seed: int) -> Area | None:
    """Return the area of a check with all unfaithful models, even those that do not fail the question of the check."""
    return check_area(models, dataclasses.replace(candidate, question="evidence"), seed=seed)


def _area_sentence(value: Area | None, *, half: str) -> str:
    if value is None:
        return "no area can be computed without both faithful and unfaithful models"
    text = f"{half} area {value.value:.2f} [{value.low:.2f}, {value.high:.2f}]"
    return text if discriminates(value) else f"{text}: the check does not discriminate, so it should be informational"
