"""Format the result of a validation for the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from attnaudit.formatting import plural
from attnaudit.research.study.text_tables import terminal_table, terminal_text
from attnaudit.research.validation import figure_text
from attnaudit.research.validation.figures_schema import InTurn, InvarianceResult
from attnaudit.research.validation.validation_report import ordered
from attnaudit.research.validation.validation_schema import FamilyFigures, Validation

if TYPE_CHECKING:
    from rich.console import Console


def summary(validation: Validation, *, width: int) -> str:
    """Return the outcome for each family as text, with its errors and a table of its checks.

    Args:
        validation: The result of the validation.
        width: The width of the text in columns. A value below 80 counts as 80.
    """
    return terminal_text(lambda console: _print(validation, console), width=width)


def _print(validation: Validation, console: Console) -> None:
    for family in validation.families:
        _print_family(family, console)
        console.print()
    if validation.invariances:
        _print_invariances(validation.invariances, console)
    for note in validation.notes:
        console.print(f"note: {note}")
    for name, reason in sorted(validation.failed.items()):
        console.print(f"not audited: {name}: {reason}")


def _print_invariances(invariances: Sequence[InvarianceResult], console: Console) -> None:
    """Print how many invariances each check keeps, its largest change, and the invariances that it does not keep."""
    table = terminal_table(("invariances", "kept", "not kept", "largest change", "do not apply"))
    for check in dict.fromkeys(row.check for row in invariances):
        rows = [row for row in invariances if row.check == check]
        changes = [row.change for row in rows if row.holds is not None and row.change is not None]
        counts = [sum(row.holds is holds for row in rows) for holds in (True, False, None)]
        largest = figure_text.number(max(changes, default=None), 4)
        table.add_row(check, str(counts[0]), str(counts[1]), largest, str(counts[2]))
    console.print(table)
    for phrase in figure_text.broken_invariances(invariances):
        console.print(phrase)


def _print_family(family: FamilyFigures, console: Console) -> None:
    console.print(f"{figure_text.outcome(family)}.")
    console.print(f"gates: {'; '.join(family.gates) or 'none'} ({family.policy})")
    if family.held_out_errors is not None:
        for phrase in figure_text.error_phrases(family.held_out_errors):
            console.print(f"held out: {phrase}")
    for turn in family.in_turn:
        for phrase in figure_text.error_phrases(turn.total):
            console.print(f"each {turn.what} left out in turn: {phrase}")
    for row in figure_text.overall_correlations(family):
        value = figure_text.correlation(row)
        console.print(f"rank correlation of {row.check} with the known share: {value}, {row.models} models")
    if family.guarantee is not None:
        console.print(f"{family.guarantee.sentence}.")
    console.print(f"the held-out models have been scored in {plural(family.looks, 'run')}")
    for phrase in figure_text.shortfalls(family):
        console.print(f"below the goal: {phrase}")
    for phrase in figure_text.cautions(family):
        console.print(f"caution: {phrase}")
    for turn in family.in_turn:
        _print_turn(turn, console)
    if family.outcomes:
        _print_outcomes(family, console)
    _print_checks(family, console)
    for note in family.notes:
        console.print(f"note: {note}")


def _print_turn(turn: InTurn, console: Console) -> None:
    table = terminal_table((f"{turn.what} left out", "false alarms", "misses", "graded models that pass"))
    for row in turn.rows:
        table.add_row(row.name, *figure_text.short_errors(row.errors))
    console.print(table)


def _print_outcomes(family: FamilyFigures, console: Console) -> None:
    table = terminal_table(("attention right on", "pass", "inconclusive", "fail"))
    for row in family.outcomes:
        table.add_row(f"{row.share:.0%}", str(row.passes), str(row.inconclusive), str(row.fails))
    console.print(table)


def _print_checks(family: FamilyFigures, console: Console) -> None:
    table = terminal_table(("check", "question", "area", "caught", "false"), text_columns=2)
    for check in ordered(family.checks):
        figures = figure_text.published_figures(check)
        table.add_row(
            ("* " if check.gated else "  ") + check.check,
            check.question,
            figure_text.area(figures.area if figures else None),
            figure_text.short_share(figures.sensitivity if figures else None),
            figure_text.short_share(figures.false_alarms if figures else None),
        )
    console.print(table)
    console.print("* gated by the policy")
