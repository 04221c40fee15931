"""Format the figures of a validation as text. The HTML page, the Markdown page and the terminal share these texts."""

from __future__ import annotations

from attnaudit.research.study.text_tables import NO_VALUE, fixed
from attnaudit.research.validation.validation_schema import Area, CheckFigures, Figures, Rate, Validation

#: Question -> how reports ask it.
QUESTIONS = {
    "used": "Is attention used?",
    "points": "Does it point at what matters?",
    "evidence": "Neither: evidence",
}
#: The goals for the held-out figures of a policy: at least this area, and at most this rate of false alarms.
GOAL_AREA = 0.95
GOAL_FALSE_ALARMS = 0.05
#: The reports add a caution if there are fewer faithful models or fewer unfaithful models than FEW_MODELS. The same
#: holds for the kinds of these models and FEW_KINDS.
FEW_MODELS = 20
FEW_KINDS = 5


def number(value: float | None, digits: int = 2) -> str:
    """Return a number with a fixed number of decimals, such as "0.97", or an em dash for None."""
    return fixed(value, digits)


def share(rate: Rate | None) -> str:
    """Return a rate with its interval and its counts, such as "95% [76%, 99%], 19 of 20".

    None gives an em dash, and a rate over no models gives "no model".
    """
    if rate is None:
        return NO_VALUE
    if rate.value is None:
        return "no model"
    return f"{rate.value:.0%} [{rate.low:.0%}, {rate.high:.0%}], {rate.hits} of {rate.n}"


def short_share(rate: Rate | None) -> str:
    """Return the counts of a rate, such as "19/20". None and a rate over no models give an em dash."""
    return NO_VALUE if rate is None or rate.value is None else f"{rate.hits}/{rate.n}"


def area(value: Area | None) -> str:
    """Return an area with its interval, such as "0.97 [0.90, 1.00]", or an em dash for None."""
    return NO_VALUE if value is None else f"{number(value.value)} [{number(value.low)}, {number(value.high)}]"


def required(check: CheckFigures) -> str:
    """Return the threshold of a check with its direction, such as "≥ 0.08", or an em dash if it has no threshold."""
    if check.threshold is None:
        return NO_VALUE
    threshold = check.threshold if isinstance(check.threshold, str) else f"{check.threshold:g}"
    return f"{'≥' if check.direction == 'at_least' else '≤'} {threshold}"


def published_figures(check: CheckFigures) -> Figures | None:
    """Return the figures of a check that reports show: those of the held-out half, if any, else of the tuning half."""
    return check.held_out or check.tuning


def outcome(validation: Validation) -> str:
    """Return the result of the validation as one sentence without a full stop."""
    figures = validation.policy_held_out
    if figures is None or figures.area is None:
        return "The policy could not be scored: scoring needs faithful models, unfaithful models and a gated check"
    return (
        f"The policy separates faithful from unfaithful attention with an area of {area(figures.area)} on "
        f"{figures.area.faithful} faithful and {figures.area.unfaithful} unfaithful held-out models"
    )


def shortfalls(validation: Validation) -> list[str]:
    """Return how the policy falls short on the held-out half, one phrase per shortfall.

    A shortfall is a missed goal, or a kind of unfaithful models of which some raise no alarm.
    """
    figures = validation.policy_held_out
    if figures is None or figures.area is None:
        return []
    phrases = []
    if figures.area.value < GOAL_AREA:
        phrases.append(f"the area is {number(figures.area.value, 3)}, but the goal is at least {GOAL_AREA}")
    false_alarms = figures.false_alarms
    if false_alarms is not None and false_alarms.value is not None and false_alarms.value > GOAL_FALSE_ALARMS:
        phrases.append(f"{share(false_alarms)} of the faithful models raise a false alarm, but the goal is at most 5%")
    for kind in figures.by_kind:
        if kind.truth == "unfaithful" and kind.alarms is not None and kind.alarms.hits < kind.alarms.n:
            missed = kind.alarms.n - kind.alarms.hits
            phrases.append(f"kind '{kind.name}': {missed} of {kind.alarms.n} models raise no alarm")
    return phrases


def cautions(validation: Validation) -> list[str]:
    """Return one phrase for each reason why the held-out figures are uncertain: too few models, or too few kinds."""
    figures = validation.policy_held_out
    if figures is None or figures.area is None:
        return []
    models, kinds = figures.area, (figures.area.faithful_kinds, figures.area.unfaithful_kinds)
    phrases = []
    if min(models.faithful, models.unfaithful) < FEW_MODELS:
        phrases.append(
            f"fewer than {FEW_MODELS} faithful or unfaithful models are held out: rely on the intervals rather than on "
            "the values"
        )
    if min(kinds) < FEW_KINDS:
        phrases.append(
            f"the intervals of areas are too narrow, because they resample only {kinds[0]} faithful and {kinds[1]} "
            "unfaithful kinds"
        )
    return phrases
