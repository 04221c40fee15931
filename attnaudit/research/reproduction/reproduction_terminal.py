"""What a reproduction says on a terminal."""

from __future__ import annotations

from io import StringIO
from typing import TYPE_CHECKING

from attnaudit.research.reproduction import reproduction_wording
from attnaudit.research.reproduction.reproduction_records import Reproduction, Table

if TYPE_CHECKING:
    from rich.console import Console

NARROWEST = 80


def summary(one: Reproduction, *, width: int) -> str:
    """Every table; readable at 80 columns."""
    from rich.console import Console

    out = StringIO()
    console = Console(file=out, width=max(NARROWEST, width), color_system=None, highlight=False, markup=False)
    console.print(f"{reproduction_wording.heading(one)}. {one.citation}")
    for name, rows in one.data.items():
        console.print(f"{name}: {reproduction_wording.sizes(rows)} texts")
    for table in one.tables:
        _print(table, console)
    if one.findings:
        _claims(one, console)
    if one.remedies:
        console.print(f"\n{reproduction_wording.REMEDIES}")
        for remedy in one.remedies:
            console.print(f"* {remedy.words}")
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())


def _print(table: Table, console: Console) -> None:
    from rich.table import Table as Drawn
    from rich.text import Text

    console.print(f"\n{table.title} (in the paper: {table.source})")
    there = reproduction_wording.there(table)
    if there:
        for text in table.deviations:
            console.print(f"* {text}")
        drawn = Drawn(box=None, padding=(0, 1, 0, 0), pad_edge=False)
        for place, name in enumerate(reproduction_wording.HEAD):
            drawn.add_column(name, justify="right" if place else "left", overflow="fold", no_wrap=place > 2)
        for row in there:
            drawn.add_row(Text(row.title, style="bold"))
            for line in row.lines:
                drawn.add_row(*(Text(cell) for cell in reproduction_wording.cells(line)))
            for note in (reproduction_wording.how(row), *row.notes):
                drawn.add_row(Text(f"({note})"))
        console.print(drawn)
    for why, names in reproduction_wording.missing(table):
        console.print(f"{', '.join(names)}: {why}")


def _claims(one: Reproduction, console: Console) -> None:
    """Evidence under its claim: beside it there is no room at 80 columns."""
    console.print(f"\n{reproduction_wording.CLAIMS}")
    for finding in one.findings:
        console.print(f"{reproduction_wording.HOLDS[finding.holds]}: {finding.sentence} ({finding.paper})")
        console.print(f"  {finding.evidence}")
