"""The rule that chooses the default policy from the tuning half of a population.

1. A check that answers a question ("used" or "points") may become a gate if it discriminates: its area is at least 0.7,
   and the lower limit of the area's interval is above 0.5. Unfaithful models count only if they fail this question
   by construction.
2. Each of these checks gets a threshold: the rounded middle between the lowest faithful models and the unfaithful
   models below them. A model counts with the interval limit that must clear the threshold for a pass. One eightieth of
   the faithful models may lie below the threshold, so that the false-alarm rate of up to four gates together is about
   5%. The highest tenth of the unfaithful models below the faithful ones is ignored, so that a single outlier does not
   raise the threshold. A check has no threshold if no unfaithful model lies below the faithful ones, or if an
   "at_least" threshold would be 0 or less, because attention without effect gives the value 0.
3. One check per question becomes a gate: the pair whose policy score has the area with the highest lower limit. Ties go
   to the pair with fewer errors, then to the pair with the wider gap, in standard errors, between the threshold and the
   nearest model. This step does not choose agreement checks, because importance methods disagree with each other.
4. Further checks, agreement included, are added one at a time, up to two gates per question. Each time, the check that
   leaves the fewest unfaithful models without an alarm is added. It must detect more unfaithful models than before,
   without more false alarms.
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
#: The share of faithful models that may raise an alarm.
ALLOWED_FALSE_ALARMS = 0.05
MAXIMUM_GATES_PER_QUESTION = 2
#: The threshold is computed from this quantile of the unfaithful models that lie below the faithful ones.
UNFAITHFUL_QUANTILE = 0.9
#: Families of checks that become gates only in addition to a gate of another family (step 4 of the rule).
NEVER_ALONE = ("agreement",)
#: The value that a check of a question has if attention has no effect: no drop, no gain, no correlation.
NO_EFFECT = 0.0


def tuning(models: Sequence[JudgedModel]) -> list[JudgedModel]:
    """Return the labelled models of the tuning half."""
    return [model for model in models if model.entry.half == "tuning" and model.entry.truth != "trend"]


def in_question(models: Sequence[JudgedModel], question: Question) -> list[JudgedModel]:
    """Return the models without the unfaithful ones that do not fail this question; for "evidence", all models."""
    return [
        model
        for model in models
        if model.entry.truth != "unfaithful" or question == "evidence" or question in model.entry.fails
    ]


def check_area(models: Sequence[JudgedModel], candidate: Candidate, *, seed: int) -> Area | None:
    """Return the area of a check on the labelled models that have a record of it.

    Unfaithful models count only if they fail the question of the check.
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
    """Return whether an area is high enough to gate on: at least 0.7, with an interval above 0.5."""
    return candidate_area is not None and candidate_area.value >= MINIMUM_AREA and candidate_area.low > CHANCE_AREA


def choose(models: Sequence[JudgedModel], candidates: Sequence[Candidate], *, seed: int) -> list[Gate]:
    """Choose the gates of a policy by the rule above.

    Args:
        models: The models; held-out models and trends are ignored.
        candidates: The checks to choose from.
        seed: The seed of the areas' intervals.

    Returns:
        The gates, sorted by question. The list is empty if no check outside NEVER_ALONE both discriminates and has a
        threshold, for example because the tuning half lacks faithful or unfaithful models.
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
    """Return the area of the policy score on the labelled models."""
    labelled = [model for model in models if model.entry.truth != "trend"]
    scores = [policy_score(model, gates) for model in labelled]
    return area(scores, [model.faithful for model in labelled], [model.entry.kind for model in labelled], seed=seed)


def policy_score(model: JudgedModel, gates: Sequence[Gate]) -> float:
    """Return the smallest margin over the gates, in standard errors; -inf if a margin is -inf or there are no gates."""
    smallest = score(model, gates).score
    return -math.inf if smallest is None else smallest


def threshold(models: Sequence[JudgedModel], candidate: Candidate) -> float | None:
    """Return the threshold of a check by step 2 of the rule.

    It is None if there are no faithful or no unfaithful models, if more faithful models than may raise an alarm cannot
    pass (the check is undefined on them, for example), if no unfaithful model lies below the faithful ones, or if the
    threshold would require nothing: it is outside the range of the check, or attention without effect would reach it.
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
    """Round `middle` to the fewest decimals, two to six, that keep it within (low, high] and close to its value.

    Close means within a quarter of high - low. If six decimals are not enough, `middle` is returned as it is.
    """
    for digits in range(2, 7):
        candidate = round(middle, digits)
        if low < candidate <= high and abs(candidate - middle) <= (high - low) / 4:
            return candidate + 0.0
    return middle


def _ranked_gates(
    half: Sequence[JudgedModel], candidates: Sequence[Candidate], question: Question, *, seed: int
) -> list[Gate]:
    """Return a gate for each check that discriminates and has a threshold, by descending lower limit of the area."""
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
    """Return the sort key of step 3: the best pair has the smallest key."""
    pair_area = policy_area(half, pair, seed=seed)
    low = -round(pair_area.low, 6) if pair_area else 0.0
    return low, sum(_error_counts(half, pair)), -round(_gap(half, pair), 6), tuple(gate.check for gate in pair)


def _gap(models: Sequence[JudgedModel], gates: Sequence[Gate]) -> float:
    """Return the smallest policy score, in standard errors, with the sign of unfaithful models reversed."""
    return min(policy_score(model, gates) * (1 if model.faithful else -1) for model in models)


def _error_counts(models: Sequence[JudgedModel], gates: Sequence[Gate]) -> tuple[int, int]:
    """Return how many unfaithful models raise no alarm, and how many faithful models raise one."""
    alarms = [(model.faithful, score(model, gates).alarm) for model in models]
    missed = sum(not faithful and not alarm for faithful, alarm in alarms)
    return missed, sum(faithful and alarm for faithful, alarm in alarms)
