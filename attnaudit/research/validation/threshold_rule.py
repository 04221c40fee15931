"""The rule that chooses a policy for one family of models from the tuning half of a population.

1. Only a check that may become a gate (`Candidate.may_gate`) and that discriminates is considered. A check
   discriminates if its area under the ROC curve is at least 0.7, and the lower limit of the area's interval is above
   0.5. The area compares faithful models with the models that must not pass the question of the check
   (`must_not_pass`).
2. Each model is represented by one limit of its interval: the limit that must clear the threshold for a pass. Of the
   faithful models, a share IGNORED is left out, namely those with the lowest limits. The faithful limit is the lowest
   limit of the others. IGNORED is 5% divided by the largest number of gates, so that all gates together raise at most
   5% false alarms. The opposing limit is computed from the models that must not pass and whose limit is below the
   faithful limit. Of these models, a share IGNORED is left out as well, namely those with the highest limits. The
   opposing limit is the highest limit of the others, but never below the value that a check has if attention has no
   effect.
3. The threshold lies halfway between the two limits, on the scale of the check, rounded to two significant digits.
4. For each question, one check becomes a gate: the check that wrongly passes the fewest models. If several checks pass
   equally few, a check whose values are bounded on both sides is preferred, because its threshold says where in this
   range a pass begins. If there are still several, the check with the largest gap is chosen. The gap is the distance
   between the two limits, divided by the distance between the medians of the two groups.
5. A further check of a question becomes a gate only if it reduces the number of models that pass although they must
   not, and if the policy has fewer than three gates.
6. For the question "enough", step 5 is also true of the first check. Its opposing limit is computed from the unfaithful
   models that fail this question and pass the gates chosen so far, because only these are left to block.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from attnaudit.research.validation.candidates import Candidate, Scale
from attnaudit.research.validation.figures_schema import Area, Question
from attnaudit.research.validation.population_schema import Entry
from attnaudit.research.validation.roc import area
from attnaudit.research.validation.scoring import Gate, JudgedModel, bound, oriented, score
from attnaudit.statistics.vacuous_thresholds import why_vacuous

QUESTIONS: tuple[Question, ...] = ("used", "points", "enough")
#: A check discriminates if its area is at least MINIMUM_AREA, and the lower limit of the area's interval is above
#: CHANCE_AREA.
MINIMUM_AREA = 0.7
CHANCE_AREA = 0.5
#: A graded model whose attention is right on at most this share must not pass.
LARGEST_FAILING_SHARE = 0.6
#: The share of faithful models that may raise an alarm over all gates together.
ALLOWED_FALSE_ALARMS = 0.05
#: The largest number of gates of a policy.
MOST_GATES = 3
#: The share of models that are ignored at either end, for each gate.
IGNORED = ALLOWED_FALSE_ALARMS / MOST_GATES
#: The value that a check of a question has if attention has no effect: no drop, no gain, no correlation.
NO_EFFECT = 0.0
#: The number of significant digits of a threshold. More digits are used if the two limits are too close for these.
DIGITS = 2
MOST_DIGITS = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The two limits between which the threshold of a check lies (step 2 in the docstring of this module).

    Each model is represented by one limit of its interval, which is negated for "at_most" (see `scoring.bound`).

    Attributes:
        faithful: The lowest limit of the faithful models. A share IGNORED of them is left out first, namely those with
            the lowest limits.
        opposing: The highest limit of the models that must not pass and whose limit is below `faithful`. A share
            IGNORED of them is left out first, namely those with the highest limits. `opposing` is never below the value
            that the check has if attention has no effect.
        gap: The distance from `opposing` to `faithful`, divided by the distance between the median limits of the two
            groups. Both distances are on the scale of the check.
    """

    faithful: float
    opposing: float
    gap: float


def tuning(models: Sequence[JudgedModel]) -> list[JudgedModel]:
    """Return the models of the tuning half whose truth is known."""
    return [model for model in models if model.entry.half == "tuning" and model.entry.truth != "trend"]


def must_not_pass(entry: Entry, question: Question) -> bool:
    """Return whether a model must not pass the gate of a question.

    An unfaithful model must not pass the gates of the questions that it fails by construction. If it fails "points", it
    also fails "enough". No unfaithful model may pass the gates of the question "evidence". A graded model that fails
    the question "points" by construction must not pass it if its attention is right on at most 60% of its rows, of the
    evidence in each row, or of its heads.
    """
    if entry.truth == "unfaithful":
        return question == "evidence" or ("points" if question == "enough" else question) in entry.fails
    half_right = entry.truth == "graded" and entry.share is not None and entry.share <= LARGEST_FAILING_SHARE
    return half_right and question == "points" and "points" in entry.fails


def in_question(models: Sequence[JudgedModel], question: Question) -> list[JudgedModel]:
    """Return the models that count for a question: faithful models, and models that must not pass it."""
    return [model for model in models if model.faithful or must_not_pass(model.entry, question)]


def check_area(models: Sequence[JudgedModel], candidate: Candidate, *, seed: int) -> Area | None:
    """Return the area under the ROC curve of a check.

    Args:
        models: The models. Those without a record of the check are ignored, and so are those that do not count for the
            question of the check.
        candidate: The check.
        seed: The seed of the bootstrap interval of the area.

    Returns:
        The area. It is None unless there are both faithful models and models that must not pass.
    """
    check = candidate.check.id
    judged = [model for model in in_question(models, candidate.question) if check in model.records]
    scores = [oriented(model.records[check], candidate.direction) for model in judged]
    return area(scores, [model.faithful for model in judged], [model.entry.mechanism for model in judged], seed=seed)


def discriminates(candidate_area: Area | None) -> bool:
    """Return whether an area under the ROC curve is high enough for a gate.

    It must be at least 0.7, and its interval must lie above 0.5.
    """
    return candidate_area is not None and candidate_area.value >= MINIMUM_AREA and candidate_area.low > CHANCE_AREA


def choose(models: Sequence[JudgedModel], candidates: Sequence[Candidate], *, seed: int) -> list[Gate]:
    """Choose the gates of a policy. The docstring of this module describes the rule.

    Args:
        models: The models of one family. Held-out models and models of unknown truth ("trend") are ignored.
        candidates: The checks to choose from.
        seed: The seed of the bootstrap intervals of areas under ROC curves.

    Returns:
        The gates, sorted by question. A question has a gate only if a check that may become one discriminates and has a
        threshold.
    """
    half = tuning(models)
    blocked = [model for model in half if any(must_not_pass(model.entry, question) for question in QUESTIONS)]
    chosen: list[Gate] = []
    for question in QUESTIONS:
        left, needed = half, 1
        if question == "enough":
            left, needed = [*(model for model in half if model.faithful), *_passing(blocked, chosen)], 0
        asked = [one for one in candidates if one.question == question and one.may_gate]
        others = _eligible(left, asked, seed=seed)
        while others and len(chosen) < MOST_GATES:
            best = min(others, key=lambda gate: len(_passing(blocked, [*chosen, gate])))
            if needed <= 0 and len(_passing(blocked, [*chosen, best])) >= len(_passing(blocked, chosen)):
                break
            needed -= 1
            chosen.append(best)
            others.remove(best)
    return chosen


def _eligible(models: Sequence[JudgedModel], candidates: Sequence[Candidate], *, seed: int) -> list[Gate]:
    """Return a gate for each candidate that discriminates and has a threshold. The best ones come first (step 4)."""
    found: list[tuple[tuple[bool, float, str], Gate]] = []
    for candidate in candidates:
        between, value = limits(models, candidate), threshold(models, candidate)
        if between is None or value is None or not discriminates(check_area(models, candidate, seed=seed)):
            continue
        id_ = candidate.check.id
        gate = Gate(check=id_, question=candidate.question, direction=candidate.direction, threshold=value)
        unbounded = not all(map(math.isfinite, candidate.check.bounds))
        found.append(((unbounded, -round(between.gap, 6), id_), gate))
    return [gate for _, gate in sorted(found, key=lambda row: row[0])]


def _passing(models: Sequence[JudgedModel], gates: Sequence[Gate]) -> list[JudgedModel]:
    """Return the models that pass all gates."""
    return [model for model in models if not score(model, gates).alarm]


def limits(models: Sequence[JudgedModel], candidate: Candidate) -> Limits | None:
    """Return the two limits between which the threshold of a check lies (step 2 in the docstring of this module).

    Args:
        models: The models. Those without a record of the check are ignored, and so are those that do not count for the
            question of the check.
        candidate: The check.

    Returns:
        The limits. They are None in each of these cases:

        * There are no faithful models, or no models that must not pass.
        * More than a share IGNORED of the faithful models cannot pass at any threshold, for example because the check
          is undefined on them.
        * Neither the limit of any model that must not pass nor the value of attention without effect lies below the
          faithful limit.
    """
    check, direction = candidate.check.id, candidate.direction
    judged = [model for model in in_question(models, candidate.question) if check in model.records]
    good = sorted(bound(model.records[check], direction) for model in judged if model.faithful)
    bad = sorted(bound(model.records[check], direction) for model in judged if not model.faithful)
    if not good or not bad:
        return None
    floor = NO_EFFECT if candidate.question != "evidence" and direction == "at_least" else -math.inf
    faithful = good[math.floor(IGNORED * len(good))]
    below = [x for x in bad if x < faithful]
    highest = below[len(below) - 1 - math.floor(IGNORED * len(below))] if below else -math.inf
    opposing = max(highest, floor)
    if not math.isfinite(faithful) or not math.isfinite(opposing) or opposing >= faithful:
        return None
    between = _to_scale(faithful, candidate.scale) - _to_scale(opposing, candidate.scale)
    medians = _to_scale(median(good), candidate.scale) - _to_scale(max(median(bad), floor), candidate.scale)
    gap = between / medians if math.isfinite(medians) and medians > 0 else 0.0
    return Limits(faithful=faithful, opposing=opposing, gap=gap)


def threshold(models: Sequence[JudgedModel], candidate: Candidate) -> float | None:
    """Return the threshold of a check (steps 2 and 3 in the docstring of this module).

    Args:
        models: The models, as `limits` takes them.
        candidate: The check.

    Returns:
        The threshold. It is None in each of these cases:

        * There are no limits.
        * The threshold does not lie strictly within the range of the check, or no possible value fails it.
        * Attention without effect would pass at the threshold.
    """
    found = limits(models, candidate)
    if found is None:
        return None
    halfway = (_to_scale(found.faithful, candidate.scale) + _to_scale(found.opposing, candidate.scale)) / 2
    middle = rounded(_from_scale(halfway, candidate.scale), low=found.opposing, high=found.faithful)
    value = middle if candidate.direction == "at_least" else 0.0 - middle
    lowest, highest = candidate.check.bounds
    if candidate.question != "evidence" and candidate.direction == "at_least" and value <= NO_EFFECT:
        return None
    if not lowest < value < highest or why_vacuous(candidate.direction, value, bounds=candidate.check.bounds):
        return None
    return value


def rounded(middle: float, *, low: float, high: float) -> float:
    """Round `middle` to two significant digits, or to more if the two limits are close.

    The result differs from `middle` by at most a quarter of the distance between `low` and `high`. If six digits are
    not enough for this, `middle` is returned without rounding.
    """
    for digits in range(DIGITS, MOST_DIGITS + 1):
        candidate = float(f"{middle:.{digits}g}")
        if abs(candidate - middle) <= abs(high - low) / 4:
            return candidate + 0.0
    return middle


def _to_scale(value: float, scale: Scale) -> float:
    return math.sqrt(max(value, 0.0)) if scale == "square root" else value


def _from_scale(value: float, scale: Scale) -> float:
    return value**2 if scale == "square root" else value
