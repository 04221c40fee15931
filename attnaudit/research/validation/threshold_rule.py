"""The rule by which the default policy is chosen. It sees the tuning half and nothing else.

1. Of the checks that answer a question ("used", "points"), those that discriminate: area at least .7 with a lower end
   above .5, kinds resampled, against the unfaithful models that fail this question by construction.
2. Each has a threshold. What must clear it is the end of the interval nearest to it. It stands below the ends of the
   faithful models (an eightieth of them may lie lower, so that at most four gates share the 5% of false alarms), half
   of the way to the unfaithful models further down: to the highest of them but a tenth, so that a single straggler does
   not drag it up. Rounded. A check with no unfaithful model below has none, nor one whose threshold would be 0 or
   less, which attention that does nothing would reach.
3. One check per question is gated: the pair whose policy score has the area with the highest lower end; then the
   fewest errors, then the widest gap, in standard errors, between the threshold and the nearest model on either side.
   No question rests on agreement alone, since importance methods disagree among themselves.
4. Further checks, at most two per question, are added one at a time: the one that leaves the fewest unfaithful models
   without an alarm, as long as it raises no further alarm on a faithful one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product

from attnaudit.research.validation.candidates import Candidate
from attnaudit.research.validation.roc import area
from attnaudit.research.validation.scoring import Gate, Judged, bound, oriented, score
from attnaudit.research.validation.validation_records import Area, Question

QUESTIONS: tuple[Question, ...] = ("used", "points")
LEAST_AREA = 0.7
CHANCE = 0.5
ALLOWED = 0.05
MOST = 2
STRAGGLERS = 0.9
#: Families of checks that are gated beside another check of the question, never alone.
NEVER_ALONE = ("agreement",)
#: What a check of a question gives attention that does nothing: no drop, no gain, no correlation.
NOTHING = 0.0


def tuning(models: Sequence[Judged]) -> list[Judged]:
    """The labelled models of the tuning half."""
    return [one for one in models if one.entry.half == "tuning" and one.entry.truth != "trend"]


def in_question(models: Sequence[Judged], question: Question) -> list[Judged]:
    """Without the unfaithful models that do not fail this question; all of them for "evidence"."""
    return [
        one
        for one in models
        if one.entry.truth != "unfaithful" or question == "evidence" or question in one.entry.fails
    ]


def check_area(models: Sequence[Judged], candidate: Candidate, *, seed: int) -> Area | None:
    """The area of a check on labelled models that it was judged on and that are in its question."""
    check = candidate.check.id
    asked = in_question(models, candidate.question)
    kept = [one for one in asked if one.entry.truth != "trend" and check in one.records]
    scores = [oriented(one.records[check], candidate.direction) for one in kept]
    return area(scores, [one.faithful for one in kept], [one.entry.kind for one in kept], seed=seed)


def discriminates(found: Area | None) -> bool:
    """Whether an area is good enough to gate on: at least .7, and chance outside its interval."""
    return found is not None and found.value >= LEAST_AREA and found.low > CHANCE


def choose(models: Sequence[Judged], candidates: Sequence[Candidate], *, seed: int) -> list[Gate]:
    """The gates of a policy from the tuning half of `models`, by the rule above. Models of the other half are ignored.

    Empty where nothing discriminates, or where the tuning half lacks faithful or unfaithful models. Where one question
    has no check that discriminates, the other stands alone.
    """
    half = tuning(models)
    weak = {one.check.id for one in candidates if one.check.family in NEVER_ALONE}
    ranked = [_ranked(half, candidates, question, seed=seed) for question in QUESTIONS]
    pools = [found for gates in ranked if (found := [gate for gate in gates if gate.check not in weak])]
    if not pools:
        return []
    best = min(product(*pools), key=lambda pair: _pair_key(half, pair, seed=seed))
    chosen = list(best)
    spare = [gate for gates in ranked for gate in gates if gate not in chosen]
    while True:
        missed, alarms = _counts(half, chosen)
        better = []
        for position, gate in enumerate(spare):
            if sum(g.question == gate.question for g in chosen) >= MOST:
                continue
            now_missed, now_alarms = _counts(half, [*chosen, gate])
            if now_missed < missed and now_alarms <= alarms:
                better.append((now_missed, position))
        if not better:
            return sorted(chosen, key=lambda gate: (QUESTIONS.index(gate.question), chosen.index(gate)))
        chosen.append(spare.pop(min(better)[1]))


def policy_area(models: Sequence[Judged], gates: Sequence[Gate], *, seed: int) -> Area | None:
    """The area of the policy's score, the smallest margin over its gates, on labelled models."""
    kept = [one for one in models if one.entry.truth != "trend"]
    scores = [policy_score(one, gates) for one in kept]
    return area(scores, [one.faithful for one in kept], [one.entry.kind for one in kept], seed=seed)


def policy_score(model: Judged, gates: Sequence[Gate]) -> float:
    """The smallest margin in standard errors over the gates; -inf where one is undefined."""
    found = score(model, gates).score
    return -math.inf if found is None else found


def threshold(models: Sequence[Judged], candidate: Candidate) -> float | None:
    """Where the rule puts a check's threshold, given labelled models; None without faithful or unfaithful ones, where
    more than the allowed share of faithful models is undefined, where no unfaithful one lies below them, or where it
    would require nothing."""
    check, direction = candidate.check.id, candidate.direction
    asked = in_question(models, candidate.question)
    kept = [one for one in asked if check in one.records and one.entry.truth != "trend"]
    good = sorted(bound(one.records[check], direction) for one in kept if one.faithful)
    bad = sorted(bound(one.records[check], direction) for one in kept if not one.faithful)
    defined = [x for x in good if math.isfinite(x)]
    if not bad or not defined or len(good) - len(defined) > ALLOWED * len(good):
        return None
    highest = defined[math.floor(ALLOWED / (MOST * len(QUESTIONS)) * len(good))]
    below = [x for x in bad if x < highest and math.isfinite(x)]
    if not below:
        return None
    lowest = below[math.floor(STRAGGLERS * (len(below) - 1))]
    cut = rounded((highest + lowest) / 2, low=lowest, high=highest)
    at = cut if direction == "at_least" else 0.0 - cut
    low, high = candidate.check.description.bounds
    if candidate.question != "evidence" and candidate.direction == "at_least" and at <= NOTHING:
        return None
    return at if low < at < high else None


def rounded(middle: float, *, low: float, high: float) -> float:
    """`middle` with as few decimals (two to six) as keep it well within (low, high]."""
    for digits in range(2, 7):
        cut = round(middle, digits)
        if low < cut <= high and abs(cut - middle) <= (high - low) / 4:
            return cut + 0.0
    return middle


def _ranked(half: Sequence[Judged], candidates: Sequence[Candidate], question: Question, *, seed: int) -> list[Gate]:
    """The gates that discriminate, the highest lower end first."""
    rows = []
    for one in candidates:
        if one.question != question:
            continue
        found = check_area(half, one, seed=seed)
        at = threshold(half, one) if discriminates(found) else None
        if found is not None and at is not None:
            gate = Gate(check=one.check.id, question=question, direction=one.direction, threshold=at)
            rows.append(((-round(found.low, 6), -round(found.value, 6), one.check.id), gate))
    return [gate for _, gate in sorted(rows, key=lambda row: row[0])]


def _pair_key(half: Sequence[Judged], pair: Sequence[Gate], *, seed: int) -> tuple[float, int, float, tuple[str, ...]]:
    found = policy_area(half, pair, seed=seed)
    low = -round(found.low, 6) if found else 0.0
    return low, sum(_counts(half, pair)), -round(_gap(half, pair), 6), tuple(gate.check for gate in pair)


def _gap(models: Sequence[Judged], gates: Sequence[Gate]) -> float:
    """Standard errors from the thresholds to the model that is nearest to being told wrongly; negative if one is."""
    return min(policy_score(one, gates) * (1 if one.faithful else -1) for one in models)


def _counts(models: Sequence[Judged], gates: Sequence[Gate]) -> tuple[int, int]:
    """(unfaithful models without an alarm, faithful models with one)."""
    scores = [(one.faithful, score(one, gates).alarm) for one in models]
    return sum(not good and not alarm for good, alarm in scores), sum(good and alarm for good, alarm in scores)
