"""How a validation says things, in the page, the Markdown table and the terminal alike."""

from __future__ import annotations

from attnaudit.research.validation.validation_records import Area, CheckFigures, Figures, Rate, Validation

QUESTIONS = {
    "used": "Is attention used?",
    "points": "Does it point at what matters?",
    "evidence": "Neither: evidence",
}
GOAL_AREA = 0.95
GOAL_FALSE_ALARMS = 0.05


def share(rate: Rate | None) -> str:
    """'95% [76%, 99%], 19 of 20'."""
    if rate is None:
        return "—"
    if rate.value is None:
        return "no model"
    return f"{rate.value:.0%} [{rate.low:.0%}, {rate.high:.0%}], {rate.hits} of {rate.n}"


def short_share(rate: Rate | None) -> str:
    return "—" if rate is None or rate.value is None else f"{rate.hits}/{rate.n}"


def area(found: Area | None) -> str:
    """'.97 [.90, 1.00]'."""
    return "—" if found is None else f"{number(found.value)} [{number(found.low)}, {number(found.high)}]"


def number(value: float | None, digits: int = 2) -> str:
    return "—" if value is None else f"{value:.{digits}f}".replace("-", "\N{MINUS SIGN}")


def required(check: CheckFigures) -> str:
    if check.threshold is None:
        return "—"
    at = check.threshold if isinstance(check.threshold, str) else f"{check.threshold:g}"
    return f"{'≥' if check.direction == 'at_least' else '≤'} {at}"


def shown(check: CheckFigures) -> Figures | None:
    """The held-out figures, or those of the tuning half where nothing is held out."""
    return check.held_out or check.tuning


def outcome(validation: Validation) -> str:
    """The result in one sentence."""
    found = validation.policy_held_out
    if found is None or found.area is None:
        return "The policy could not be scored: faithful and unfaithful models are both needed, and a gated check"
    return (
        f"The policy tells faithful from unfaithful attention with an area of {number(found.area.value)} "
        f"[{number(found.area.low)}, {number(found.area.high)}] on {found.area.faithful} faithful and "
        f"{found.area.unfaithful} unfaithful held-out models"
    )


def shortfalls(validation: Validation) -> list[str]:
    """What the goal asks for and the held-out figures do not show."""
    found = validation.policy_held_out
    if found is None or found.area is None:
        return []
    short = []
    if found.area.value < GOAL_AREA:
        short.append(f"area {number(found.area.value, 3)}, the goal is at least {GOAL_AREA}")
    false = found.false_alarms
    if false is not None and false.value is not None and false.value > GOAL_FALSE_ALARMS:
        short.append(f"false alarms on {share(false)} of the faithful models, the goal is at most 5%")
    for kind in found.by_kind:
        if kind.truth == "unfaithful" and kind.alarms is not None and kind.alarms.hits < kind.alarms.n:
            short.append(f"kind '{kind.name}': {kind.alarms.n - kind.alarms.hits} of {kind.alarms.n} not caught")
    return short


def small(validation: Validation) -> list[str]:
    """What the numbers of models do not allow to say."""
    found = validation.policy_held_out
    if found is None or found.area is None:
        return []
    notes = []
    if min(found.area.faithful, found.area.unfaithful) < 20:
        notes.append("fewer than 20 held-out models on one side: read the intervals, not the values")
    if min(found.area.faithful_kinds, found.area.unfaithful_kinds) < 5:
        notes.append(
            f"the interval of an area resamples {found.area.faithful_kinds} faithful and {found.area.unfaithful_kinds} "
            "unfaithful kinds; with so few it is too narrow"
        )
    return notes
