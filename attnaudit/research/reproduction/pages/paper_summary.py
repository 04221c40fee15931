"""Format a reproduction for the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from attnaudit.research.reproduction.pages import paper_wording as wording
from attnaudit.research.reproduction.pages.deviations import HEADING, deviations
from attnaudit.research.reproduction.paper_report import Reproduction, Table
from attnaudit.research.study.text_tables import terminal_table, terminal_text

if TYPE_CHECKING:
    from rich.console import Console


def summary(report: Reproduction, *, width: int) -> str:
    """Return the tables, claims and remedies of a report as text.

    Args:
        report: The report.
        width: The width of the terminal in columns. A value below 80 counts as 80.
    """
    return terminal_text(lambda console: _print_report(report, console), width=width)


def _print_report(report: Reproduction, console: Console) -> None:
    console.print(f"{wording.heading(report)}. {report.citation}")
    for texts in wording.texts_of(report):
        console.print(f"{texts} texts")
    differences = deviations([report])
    if differences.shared:
        console.print(f"\n{HEADING}")
    for text in differences.shared:
        console.print(f"* {text}")
    for table in report.tables:
        _print_table(table, differences.of_table.get(table.name, []), console)
    if report.findings:
        _print_claims(report, console)
    if report.goals:
        console.print(f"\n{wording.GOALS}")
    for _, sentence, result, numbers in wording.goal_cells("", report):
        console.print(f"{result}: {sentence}")
        if numbers:
            console.print(f"  {numbers}")
    if report.remedies:
        console.print(f"\n{wording.REMEDIES}")
        for remedy in report.remedies:
            console.print(f"* {remedy.words}")


def _print_table(table: Table, own: Sequence[str], console: Console) -> None:
    """Print a table, with the deviations that concern only this table."""
    from rich.text import Text

    console.print(f"\n{table.title} (in the paper: {table.source})")
    rows = wording.measured_rows(table)
    if rows:
        for text in own:
            console.print(f"* {text}")
        grid = terminal_table(wording.head(table), unbroken_from=3)
        for row in rows:
            grid.add_row(Text(wording.row_title(table, row), style="bold"))
            for line in row.lines:
                grid.add_row(*(Text(cell) for cell in wording.cells(line)))
            for note in (wording.how_measured(row), *row.notes):
                grid.add_row(Text(f"({note})"))
        console.print(grid)
    _print_closeness(table, console)
    for why, names in wording.missing_rows(table):
        console.print(f"{', '.join(names)}: {why}")


def _print_closeness(table: Table, console: Console) -> None:
    from rich.text import Text

    rows = wording.closeness_rows(table)
    if rows:
        console.print(wording.closeness_heading(table))
        grid = terminal_table(wording.CLOSENESS_HEAD)
        for row in rows:
            grid.add_row(*(Text(cell) for cell in row))
        console.print(grid)


def _print_claims(report: Reproduction, console: Console) -> None:
    """Print the claims. The evidence of a claim is on the next line, because 80 columns are too few for a table."""
    console.print(f"\n{wording.CLAIMS}")
    for finding in report.findings:
        console.print(f"{finding.verdict}: {finding.sentence} ({finding.paper})")
        console.print(f"  {wording.verdict_text(finding)}")
    for rows, reason in wording.excluded_rows(report):
        console.print(f"{rows} does not count: {reason}")
