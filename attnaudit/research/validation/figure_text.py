"""Format the figures of a validation as text. The HTML page, the Markdown page and the terminal share these texts."""

from __future__ import annotations

from collections.abc import Sequence

from attnaudit.research.study.text_tables import NO_VALUE, fixed
from attnaudit.research.validation.figures_schema import (
    Area,
    CheckFigures,
    Errors,
    Figures,
    InvarianceResult,
    RankCorrelation,
    Rate,
)
from attnaudit.research.validation.validation_schema import FamilyFigures

#: Question -> how reports ask it.
QUESTIONS = {
    "used": "Is attention used?",
    "points": "Does it point at what matters?",
    "enough": "Are the attended tokens enough?",
    "evidence": "Neither: evidence",
}
#: Family -> how reports name its models.
MODELS = {"pooled attention": "pooled models", "transformer": "readings of Transformers"}
#: The goals for the errors of a policy, and for the rank correlations of its gates.
GOAL_ERRORS = 0.05
GOAL_CORRELATION = 0.95
#: A change of a value below this is shown as 0.
SMALLEST_CHANGE = 5e-5
#: The reports add a caution if there are fewer than FEW_MODELS faithful or unfaithful models, or if the faithful or the
#: unfaithful models have fewer than FEW_MECHANISMS mechanisms.
FEW_MODELS = 60
FEW_MECHANISMS = 5


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
    """Return an area under the ROC curve with its interval, such as "0.97 [0.90, 1.00]". None gives an em dash."""
    return NO_VALUE if value is None else f"{number(value.value)} [{number(value.low)}, {number(value.high)}]"


def required(check: CheckFigures) -> str:
    """Return the threshold of a check with its direction, such as "≥ 0.08", or an em dash if it has no threshold."""
    if check.threshold is None:
        return NO_VALUE
    threshold = check.threshold if isinstance(check.threshold, str) else f"{check.threshold:g}"
    return f"{'≥' if check.direction == 'at_least' else '≤'} {threshold}"


def published_figures(check: CheckFigures) -> Figures | None:
    """Return the figures that reports show for a check: held-out figures if there are any, otherwise tuning figures."""
    return check.held_out or check.tuning


def error_phrases(errors: Errors) -> list[str]:
    """Return one phrase for each kind of error that was possible, such as "false alarms 5% [1%, 24%], 1 of 20"."""
    rates = (
        ("false alarms on faithful models", errors.false_alarms),
        ("unfaithful models that pass", errors.misses),
        ("graded models that pass although at most 60% of their attention is right", errors.graded_passes),
    )
    return [f"{what} {share(rate)}" for what, rate in rates if rate.n]


def short_errors(errors: Errors) -> tuple[str, str, str]:
    """Return the counts of false alarms, misses and graded models that pass, such as ("1/20", "0/31", "—")."""
    return short_share(errors.false_alarms), short_share(errors.misses), short_share(errors.graded_passes)


def correlation(row: RankCorrelation) -> str:
    """Return a rank correlation with its interval, such as "0.97 [0.93, 0.99]", or an em dash if it is undefined."""
    if row.value is None:
        return NO_VALUE
    return f"{number(row.value)} [{number(row.low)}, {number(row.high)}]"


def broken_invariances(invariances: Sequence[InvarianceResult]) -> list[str]:
    """Return one phrase for each check and each invariance that it does not keep."""
    return [
        f"{row.check} is not invariant ({row.invariance}): its value changes by {number(row.change, 3)} on {row.model}"
        for row in invariances
        if row.holds is False
    ]


def invariance_table(invariances: Sequence[InvarianceResult]) -> tuple[list[str], list[tuple[str, ...]]]:
    """Return the head and the rows of the invariance table: a row per invariance, and a column per check.

    A cell is the largest change of the value. It is followed by "not invariant" if it exceeds what is allowed, or by
    "does not apply".
    """
    checks = list(dict.fromkeys(row.check for row in invariances))
    cells = {(row.invariance, row.check): _invariance_cell(row) for row in invariances}
    names = dict.fromkeys(row.invariance for row in invariances)
    return ["invariance", *checks], [(name, *(cells[name, check] for check in checks)) for name in names]


def _invariance_cell(row: InvarianceResult) -> str:
    change = NO_VALUE if row.change is None else "0" if row.change < SMALLEST_CHANGE else f"{row.change:.4f}"
    if row.holds is None:
        return f"{change} (does not apply)" if row.change is not None else "not measured"
    return change if row.holds else f"{change} (not invariant)"


def overall_correlations(family: FamilyFigures) -> list[RankCorrelation]:
    """Return the rank correlation of each gate over all graded mechanisms together."""
    single = len({row.mechanism for row in family.correlations}) == 1
    return [row for row in family.correlations if row.gated and (single or not row.mechanism)]


def outcome(family: FamilyFigures) -> str:
    """Return the result for one family as one sentence without a full stop."""
    models, errors = MODELS[family.family], family.held_out_errors
    if errors is None or not errors.false_alarms.n or not errors.misses.n:
        return (
            f"The policy for {models} could not be scored: scoring needs held-out faithful and unfaithful models and a "
            "gated check"
        )
    return (
        f"On held-out {models}, the policy raises a false alarm on {errors.false_alarms.hits} of "
        f"{errors.false_alarms.n} faithful and misses {errors.misses.hits} of {errors.misses.n} unfaithful ones"
    )


def shortfalls(family: FamilyFigures) -> list[str]:
    """Return how the policy of a family falls short of the goals, one phrase per shortfall."""
    phrases = []
    groups = [("held-out models", family.held_out_errors)]
    groups += [(f"each {turn.what} left out in turn", turn.total) for turn in family.in_turn]
    for where, errors in groups:
        if errors is None:
            continue
        if (errors.false_alarms.value or 0) > GOAL_ERRORS:
            phrases.append(f"{where}: false alarms {share(errors.false_alarms)}; the goal is at most 5%")
        if (errors.misses.value or 0) > GOAL_ERRORS:
            phrases.append(f"{where}: misses {share(errors.misses)}; the goal is at most 5%")
        if errors.graded_passes.hits:
            phrases.append(
                f"{where}: {share(errors.graded_passes)} of the models whose attention is right on at most 60% pass; "
                "the goal is none"
            )
    for row in family.correlations:
        if row.gated and row.value is not None and row.value < GOAL_CORRELATION:
            phrases.append(
                f"{row.check}: rank correlation {correlation(row)} with the known share on "
                f"{row.mechanism or 'all graded mechanisms'}; the goal is at least {GOAL_CORRELATION}"
            )
    return phrases


def cautions(family: FamilyFigures) -> list[str]:
    """Return one phrase for each reason why the held-out figures are uncertain."""
    figures = family.held_out
    phrases = []
    if figures is not None and figures.area is not None:
        models = figures.area
        mechanisms = (figures.area.faithful_mechanisms, figures.area.unfaithful_mechanisms)
        if min(models.faithful, models.unfaithful) < FEW_MODELS:
            phrases.append(
                f"fewer than {FEW_MODELS} faithful or unfaithful models are held out: rely on the intervals rather "
                "than on the values"
            )
        if min(mechanisms) < FEW_MECHANISMS:
            phrases.append(
                f"the intervals of areas are too narrow, because they resample only {mechanisms[0]} mechanisms of "
                f"faithful and {mechanisms[1]} of unfaithful models"
            )
    if family.looks > 1:
        phrases.append(
            f"the held-out models have been scored {family.looks} times (looks.jsonl): if the policy was changed after "
            "the first time, the figures are too optimistic"
        )
    return phrases
