"""Format the result of a validation for the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnaudit.research.study.text_tables import terminal_table, terminal_text
from attnaudit.research.validation import figure_text
from attnaudit.research.validation.validation_report import ordered
from attnaudit.research.validation.validation_schema import Figures, Validation

if TYPE_CHECKING:
    from rich.console import Console


def summary(validation: Validation, *, width: int) -> str:
    """Return the outcome, a table of the kinds of models and a table of the checks as text.

    Args:
        validation: The result of the validation.
        width: The width of the text in columns. A value below 80 counts as 80.
    """
    return terminal_text(lambda console: _print(validation, console), width=width)


def _print(validation: Validation, console: Console) -> None:
    held_out = validation.policy_held_out
    console.print(f"{figure_text.outcome(validation)}.")
    if held_out is not None:
        console.print(f"sensitivity {figure_text.share(held_out.sensitivity)}")
        console.print(f"false alarms {figure_text.share(held_out.false_alarms)}")
    for phrase in figure_text.shortfalls(validation):
        console.print(f"below the goal: {phrase}")
    for phrase in figure_text.cautions(validation):
        console.print(f"caution: {phrase}")
    if held_out is not None:
        _print_kinds(held_out, console)
    _print_checks(validation, console)
    for note in validation.notes:
        console.print(f"note: {note}")
    for folder, reason in sorted(validation.failed.items()):
        console.print(f"not audited: {folder}: {reason}")


def _print_kinds(figures: Figures, console: Console) -> None:
    table = terminal_table(("kind", "truth", "alarms", "area"), text_columns=2)
    for kind in figures.by_kind:
        table.add_row(kind.name, kind.truth, figure_text.short_share(kind.alarms), figure_text.number(kind.area))
    console.print(table)


def _print_checks(validation: Validation, console: Console) -> None:
    table = terminal_table(("check", "question", "area", "caught", "false"), text_columns=2)
    for check in ordered(validation.checks):
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
