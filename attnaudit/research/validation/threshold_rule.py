"""The rule that chooses the default policy from the tuning half of a population.

1. A check answers the question "used" or the question "points". It may become a gate if it discriminates: its area is
   at least 0.7, and the lower limit of the area's interval is above 0.5. Unfaithful models that pass the question by
   construction are ignored.
2. Each of these checks gets a threshold. It is the rounded middle between the lowest faithful models and the unfaithful
   models below them. Each model is represented by the limit of its interval that must clear the threshold for a pass.
   One eightieth of the faithful models may lie below the threshold. The false-alarm rate of four gates together is then
   about 5%. Of the unfaithful models below the faithful ones, the highest tenth is ignored, so that a single outlier
   does not raise the threshold. A check has no threshold if no unfaithful model lies below the faithful ones. It has
   none either if an "at_least" threshold would be 0 or less, because attention without effect gives the value 0.
3. The first gates are a pair of checks, one for each question. The area of the policy score is computed for every pair,
   and the pair with the highest lower limit of the area's interval is chosen. Among equal pairs, the one with fewer
   errors is chosen, and then the one with the larger gap, in standard errors, between its thresholds and the nearest
   model. Agreement checks are not eligible in this step, because importance methods disagree with each other.
4. More gates are added one at a time, up to two per question. Agreement checks are eligible here. A check is eligible
   only if it detects additional unfaithful models without additional false alarms. In each round, the eligible check
   that leaves the fewest unfaithful models undetected is added.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product

from attnaudit.checks.vacuous_thresholds import why_vacuous
from attnaudit.research.validation.candidates import Candidate
from attnaudit.research.validation.roc import area
from attnaudit.research.validation.scoring import Gate, JudgedModel, bound, oriented, score
from attnaudit.research.validation.validation_schema import Area, Question

QUESTIONS: tuple[Question, ...] = ("used", "points")
#: A check discriminates if its area is at least MINIMUM_AREA, and the lower limit of the area's interval is above
#: CHANCE_AREA.
MINIMUM_AREA = 0.7
CHANCE_AREA = 0.5
#: The share of faithful models that may raise an alarm over all gates together.
ALLOWED_FALSE_ALARMS = 0.05
MAXIMUM_GATES_PER_QUESTION = 2
#: This quantile of the unfaithful models below the faithful ones is the lower of the two values whose middle is the
#: threshold.
UNFAITHFUL_QUANTILE = 0.9
#: Families of checks that become gates only in addition to a gate of another family (step 4 of the rule).
NEVER_ALONE = ("agreement",)
#: The value that a check of a question has if attention has no effect: no drop, no gain, no correlation.
NO_EFFECT = 0.0


def tuning(models: Sequence[JudgedModel]) -> list[JudgedModel]:
    """Return the models of the tuning half that are labelled "faithful" or "unfaithful"."""
    return [model for model in models if model.entry.half == "tuning" and model.entry.truth != "trend"]


def in_question(models: Sequence[JudgedModel], question: Question) -> list[JudgedModel]:
    """Return the models that count for a question.

    An unfaithful model counts only if it fails the question by construction. All other models count. For the question
    "evidence", every model counts.
    """
    return [
        model
        for model in models
        if model.entry.truth != "unfaithful" or question == "evidence" or question in model.entry.fails
    ]


def check_area(models: Sequence[JudgedModel], candidate: Candidate, *, seed: int) -> Area | None:
    """Return the area under the ROC curve of a check.

    Args:
        models: The models. Trends and models without a record of the check are ignored, and so are unfaithful models
            that do not fail the question of the check.
        candidate: The check.
        seed: The seed of the area's interval.

    Returns:
        The area. It is None unless there are both faithful and unfaithful models.
    """
    check = candidate.check.id
    judged = [
        model
        for model in in_question(models, candidate.question)
        if model.entry.truth != "trend" and check in model.records
    ]
    scores = [oriented(model.records[check], candidate.direction) for model in judged]
    return area(scores, [model.faithful for model in judged], [model.entry.kind for model in judged], seed=seed)


def discriminates(candidate_area: Area | None) -> bool:
    """Return whether an area is high enough for a gate: it is at least 0.7, and its interval lies above 0.5."""
    return candidate_area is not None and candidate_area.value >= MINIMUM_AREA and candidate_area.low > CHANCE_AREA


def choose(models: Sequence[JudgedModel], candidates: Sequence[Candidate], *, seed: int) -> list[Gate]:
    """Choose the gates of a policy. The docstring of this module describes the rule.

    Args:
        models: The models. Held-out models and trends are ignored.
        candidates: The checks to choose from.
        seed: The seed of the areas' intervals.

    Returns:
        The gates, sorted by question. If one question has no eligible check, the first gate comes from the other
        question alone. The list is empty if neither question has an eligible check. This happens, for example, if the
        tuning half has no faithful models or no unfaithful models.
    """
    half = tuning(models)
    not_alone = {candidate.check.id for candidate in candidates if candidate.check.family in NEVER_ALONE}
    ranked = [_ranked_gates(half, candidates, question, seed=seed) for question in QUESTIONS]
    pools = [pool for gates in ranked if (pool := [gate for gate in gates if gate.check not in not_alone])]
    if not pools:
        return []
    best = min(product(*pools), key=lambda pair: _pair_key(half, pair, seed=seed))
    chosen = list(best)
    spare = [gate for gates in ranked for gate in gates if gate not in chosen]
    while True:
        missed, false_alarms = _error_counts(half, chosen)
        improvements = []
        for position, gate in enumerate(spare):
            if sum(other.question == gate.question for other in chosen) >= MAXIMUM_GATES_PER_QUESTION:
                continue
            now_missed, now_false_alarms = _error_counts(half, [*chosen, gate])
            if now_missed < missed and now_false_alarms <= false_alarms:
                improvements.append((now_missed, position))
        if not improvements:
            return sorted(chosen, key=lambda gate: (QUESTIONS.index(gate.question), chosen.index(gate)))
        chosen.append(spare.pop(min(improvements)[1]))


def policy_area(models: Sequence[JudgedModel], gates: Sequence[Gate], *, seed: int) -> Area | None:
    """Return the area under the ROC curve of the policy score.

    The area is None unless there are both faithful and unfaithful models.

    Args:
        models: The models. Trends are ignored.
        gates: The gates of the policy.
        seed: The seed of the area's interval.
    """
    labelled = [model for model in models if model.entry.truth != "trend"]
    scores = [policy_score(model, gates) for model in labelled]
    return area(scores, [model.faithful for model in labelled], [model.entry.kind for model in labelled], seed=seed)


def policy_score(model: JudgedModel, gates: Sequence[Gate]) -> float:
    """Return the smallest margin of a model over the gates, in standard errors.

    The score is -inf if the margin of any gate is -inf, or if there are no gates.
    """
    smallest = score(model, gates).score
    return -math.inf if smallest is None else smallest


def threshold(models: Sequence[JudgedModel], candidate: Candidate) -> float | None:
    """Return the threshold of a check, by step 2 of the rule.

    Args:
        models: The models. Trends are ignored, and so are unfaithful models that do not fail the question of the check.
        candidate: The check.

    Returns:
        The threshold. It is None in each of these cases:

        * There are no faithful models, or no unfaithful ones.
        * More than 5% of the faithful models cannot pass at any threshold, for example because the check is undefined
          on them.
        * No unfaithful model lies below the faithful ones.
        * The threshold does not lie strictly within the range of the check, or no possible value fails it.
        * Attention without effect would pass at the threshold.
    """
    check, direction = candidate.check.id, candidate.direction
    judged = [
        model
        for model in in_question(models, candidate.question)
        if check in model.records and model.entry.truth != "trend"
    ]
    good = sorted(bound(model.records[check], direction) for model in judged if model.faithful)
    bad = sorted(bound(model.records[check], direction) for model in judged if not model.faithful)
    defined = [x for x in good if math.isfinite(x)]
    if not bad or not defined or len(good) - len(defined) > ALLOWED_FALSE_ALARMS * len(good):
        return None
    gates = MAXIMUM_GATES_PER_QUESTION * len(QUESTIONS)
    upper = defined[math.floor(ALLOWED_FALSE_ALARMS / gates * len(good))]
    below = [x for x in bad if x < upper and math.isfinite(x)]
    if not below:
        return None
    lower = below[math.floor(UNFAITHFUL_QUANTILE * (len(below) - 1))]
    middle = rounded((upper + lower) / 2, low=lower, high=upper)
    value = middle if direction == "at_least" else 0.0 - middle
    lowest, highest = candidate.check.bounds
    if candidate.question != "evidence" and candidate.direction == "at_least" and value <= NO_EFFECT:
        return None
    if not lowest < value < highest or why_vacuous(direction, value, bounds=candidate.check.bounds):
        return None
    return value


def rounded(middle: float, *, low: float, high: float) -> float:
    """Round `middle` to as few decimals as possible, but at least two and at most six.

    The result lies within (low, high] and differs from `middle` by at most a quarter of high - low. If six decimals are
    not enough for this, `middle` is returned without rounding.
    """
    for digits in range(2, 7):
        candidate = round(middle, digits)
        if low < candidate <= high and abs(candidate - middle) <= (high - low) / 4:
            return candidate + 0.0
    return middle


def _ranked_gates(
    half: Sequence[JudgedModel], candidates: Sequence[Candidate], question: Question, *, seed: int
) -> list[Gate]:
    """Return a gate for each check of a question that discriminates and has a threshold.

    The gates are sorted by the lower limit of their areas' intervals, the highest first.
    """
    rows = []
    for candidate in candidates:
        if candidate.question != question:
            continue
        candidate_area = check_area(half, candidate, seed=seed)
        value = threshold(half, candidate) if discriminates(candidate_area) else None
        if candidate_area is not None and value is not None:
            id_ = candidate.check.id
            gate = Gate(check=id_, question=question, direction=candidate.direction, threshold=value)
            rows.append(((-round(candidate_area.low, 6), -round(candidate_area.value, 6), id_), gate))
    return [gate for _, gate in sorted(rows, key=lambda row: row[0])]


def _pair_key(
    half: Sequence[JudgedModel], pair: Sequence[Gate], *, seed: int
) -> tuple[float, int, float, tuple[str, ...]]:
    """Return the key that step 3 sorts pairs by. The best pair has the smallest key."""
    pair_area = policy_area(half, pair, seed=seed)
    low = -round(pair_area.low, 6) if pair_area else 0.0
    return low, sum(_error_counts(half, pair)), -round(_gap(half, pair), 6), tuple(gate.check for gate in pair)


def _gap(models: Sequence[JudgedModel], gates: Sequence[Gate]) -> float:
    """Return the distance, in standard errors, from the thresholds to the nearest model.

    The distance of a faithful model is its policy score, and the distance of an unfaithful model is its negated policy
    score. The smallest distance is negative if a model is on the wrong side.
    """
    return min(policy_score(model, gates) * (1 if model.faithful else -1) for model in models)


def _error_counts(models: Sequence[JudgedModel], gates: Sequence[Gate]) -> tuple[int, int]:
    """Return how many unfaithful models raise no alarm, and how many faithful models raise one."""
    alarms = [(model.faithful, score(model, gates).alarm) for model in models]
    missed = sum(not faithful and not alarm for faithful, alarm in alarms)
    return missed, sum(faithful and alarm for faithful, alarm in alarms)
