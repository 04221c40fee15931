"""From what the checks said of every model to the figures that are shown.

The tuning half decides thresholds and the choice of checks; what is shown first comes from the other half.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from statistics import median

from attnaudit.research.validation.candidates import Candidate
from attnaudit.research.validation.roc import area, area_under_curve, roc_curve, wilson
from attnaudit.research.validation.scoring import Gate, Judged, margin, oriented, score
from attnaudit.research.validation.threshold_rule import (
    check_area,
    choose,
    discriminates,
    in_question,
    policy_score,
    threshold,
    tuning,
)
from attnaudit.research.validation.validation_records import (
    Area,
    CheckFigures,
    Figures,
    GroupRates,
    Half,
    LeftOut,
    Remedy,
    Truth,
)

#: Kinds of the trends that train with an option known as a remedy, and the kind they are held against.
REMEDIES = ("tying", "residual")
PLAIN = "plain"

Score = Callable[[Judged], float]
Alarm = Callable[[Judged], bool]


def half_of(models: Sequence[Judged], half: Half) -> list[Judged]:
    return [one for one in models if one.entry.half == half]


def policy_figures(models: Sequence[Judged], gates: Sequence[Gate], *, seed: int) -> Figures | None:
    """The policy on these models; None without gates or without labelled models."""
    if not gates:
        return None
    return _figures(
        models,
        lambda one: policy_score(one, gates),
        lambda one: score(one, gates).alarm,
        value=lambda one: policy_score(one, gates),
        seed=seed,
    )


def trends(models: Sequence[Judged], gates: Sequence[Gate]) -> list[GroupRates]:
    """The policy on the kinds without a known truth, which nothing is tuned on."""

    def scored(one: Judged) -> float:
        return policy_score(one, gates)

    def alarm(one: Judged) -> bool:
        return score(one, gates).alarm

    kinds = sorted({one.entry.kind for one in models if one.entry.truth == "trend"})
    return [
        _group(kind, "trend", [m for m in models if m.entry.kind == kind], [], scored, alarm if gates else None, scored)
        for kind in kinds
    ]


def check_figures(
    models: Sequence[Judged], candidate: Candidate, gates: Sequence[Gate], *, skipped: int, seed: int
) -> CheckFigures:
    """One check on both halves: at the policy's threshold where it is gated, else at that of the tuning half."""
    check, direction = candidate.check.id, candidate.direction
    gate = next((one for one in gates if one.check == check), None)
    at: float | str | None = gate.threshold if gate else threshold(tuning(models), candidate)
    held_against = gate or (
        None if at is None else Gate(check=check, question=candidate.question, direction=direction, threshold=at)
    )
    question = gate.question if gate else candidate.question
    judged = [one for one in models if check in one.records]
    known = in_question(judged, question)

    def of(half: Half) -> Figures | None:
        alarm: Alarm | None = None
        if held_against is not None:
            fixed = held_against
            alarm = lambda one: margin(one.records.get(check), fixed).verdict != "pass"  # noqa: E731
        return _figures(
            half_of(known, half),
            lambda one: oriented(one.records[check], direction),
            alarm,
            value=lambda one: _finite(one.records[check].value),
            seed=seed,
        )

    tuned, held = of("tuning"), of("held_out")
    shown = held or tuned
    found = shown.area if shown else None
    return CheckFigures(
        check=check,
        title=candidate.title,
        question=question,
        direction=direction,
        gated=gate is not None,
        threshold=at,
        threshold_from="policy" if gate else "tuning half" if at is not None else "",
        discriminates=discriminates(found),
        why=_why(found, half="held-out" if held and held.area else "tuning"),
        tuning=tuned,
        held_out=held,
        against_all=_all(half_of(judged, "held_out"), candidate, seed=seed),
        skipped=skipped,
    )


def left_out(models: Sequence[Judged], candidates: Sequence[Candidate], *, seed: int) -> list[LeftOut]:
    """Each labelled kind in turn: the policy is chosen from the tuning half of the other kinds, and tried on all models
    of this one. Empty where the tuning half is too small to choose from."""
    labelled = [one for one in models if one.entry.truth != "trend"]
    held = half_of(labelled, "held_out")
    found = []
    for kind, truth in sorted({(one.entry.kind, one.entry.truth) for one in labelled}):
        gates = choose([one for one in labelled if one.entry.kind != kind], candidates, seed=seed)
        if not gates:
            continue
        these = [one for one in labelled if one.entry.kind == kind]
        others = [one for one in held if one.entry.truth != truth]
        mine = [policy_score(one, gates) for one in these]
        theirs = [policy_score(one, gates) for one in others]
        value = area_under_curve(mine, theirs) if truth == "faithful" else area_under_curve(theirs, mine)
        found.append(
            LeftOut(
                kind=kind,
                truth=truth,
                alarms=wilson(sum(score(one, gates).alarm for one in these), len(these)),
                area=None if math.isnan(value) else value,
                checks=[gate.words for gate in gates],
            )
        )
    return found


def remedies(models: Sequence[Judged], gates: Sequence[Gate]) -> list[Remedy]:
    """What training with tying or residual connections does to the gated checks, against the plain kind."""
    found = []
    for option in REMEDIES:
        for gate in gates:
            plain = _values(models, PLAIN, gate.check)
            treated = _values(models, option, gate.check)
            if plain and treated:
                found.append(
                    Remedy(
                        option=option,
                        check=gate.check,
                        plain=median(plain),
                        treated=median(treated),
                        plain_models=len(plain),
                        treated_models=len(treated),
                    )
                )
    return found


def _values(models: Sequence[Judged], kind: str, check: str) -> list[float]:
    found = (one.records.get(check) for one in models if _is(one.entry.kind, kind))
    return [record.value for record in found if record is not None and record.value is not None]


def _is(kind: str, wanted: str) -> bool:
    """Kinds may carry further words: 'plain-bilstm' is plain, 'tying-10' is tying."""
    return kind.replace("_", "-").split("-")[0] == wanted


def _figures(
    models: Sequence[Judged], scored: Score, alarm: Alarm | None, *, value: Score, seed: int
) -> Figures | None:
    labelled = [one for one in models if one.entry.truth != "trend"]
    if not labelled:
        return None
    scores = [scored(one) for one in labelled]
    truth = [one.faithful for one in labelled]
    good = [s for s, faithful in zip(scores, truth, strict=True) if faithful]
    bad = [s for s, faithful in zip(scores, truth, strict=True) if not faithful]

    def alarms(wanted: Truth) -> list[bool]:
        return [alarm(one) for one in labelled if one.entry.truth == wanted] if alarm else []

    raised, false = alarms("unfaithful"), alarms("faithful")
    return Figures(
        area=area(scores, truth, [one.entry.kind for one in labelled], seed=seed),
        sensitivity=wilson(sum(raised), len(raised)) if alarm else None,
        false_alarms=wilson(sum(false), len(false)) if alarm else None,
        roc=roc_curve(good, bad),
        by_encoder=[
            _group(name, truth_, [m for m in labelled if (m.entry.encoder, m.entry.truth) == (name, truth_)],
                   labelled, scored, alarm, value)
            for name, truth_ in sorted({(m.entry.encoder, m.entry.truth) for m in labelled})
        ],
        by_kind=[
            _group(name, truth_, [m for m in models if (m.entry.kind, m.entry.truth) == (name, truth_)],
                   labelled, scored, alarm, value)
            for name, truth_ in sorted({(m.entry.kind, m.entry.truth) for m in labelled}, key=lambda pair: pair[::-1])
        ],
    )  # fmt: skip


def _group(
    name: str,
    truth: Truth,
    members: Sequence[Judged],
    labelled: Sequence[Judged],
    scored: Score,
    alarm: Alarm | None,
    value: Score,
) -> GroupRates:
    """Alarms of one group, and its area against all labelled models of the other truth."""
    mine = [scored(one) for one in members]
    theirs = [scored(one) for one in labelled if one.entry.truth != truth]
    found = math.nan
    if truth != "trend":
        found = area_under_curve(mine, theirs) if truth == "faithful" else area_under_curve(theirs, mine)
    known = [x for x in map(value, members) if math.isfinite(x)]
    return GroupRates(
        name=name,
        truth=truth,
        models=len(members),
        alarms=wilson(sum(alarm(one) for one in members), len(members)) if alarm else None,
        area=None if math.isnan(found) else found,
        median_value=median(known) if known else None,
    )


def _all(models: Sequence[Judged], candidate: Candidate, *, seed: int) -> Area | None:
    return check_area(models, dataclasses.replace(candidate, question="evidence"), seed=seed)


def _finite(value: float | None) -> float:
    return math.nan if value is None else value


def _why(found: Area | None, *, half: str) -> str:
    if found is None:
        return "no area: faithful and unfaithful models are both needed"
    words = f"{half} area {found.value:.2f} [{found.low:.2f}, {found.high:.2f}]"
    return words if discriminates(found) else f"{words}: does not discriminate, evidence only"
