"""Tables and numbers for Markdown pages and for the terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from io import StringIO
from typing import TYPE_CHECKING

from attnaudit.formatting import terminal_safe

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

#: Reports on the terminal are laid out for at least this many columns; a narrower terminal wraps the lines.
MINIMUM_WIDTH = 80
#: The text of a cell without a value.
NO_VALUE = "—"


def fixed(value: float | None, digits: int, *, signed: bool = False) -> str:
    """Return a number with a fixed number of decimals and a typographic minus; an em dash for None.

    Args:
        value: The number.
        digits: The number of decimals.
        signed: Whether a positive number gets a plus sign.
    """
    if value is None:
        return NO_VALUE
    return f"{value:{'+' if signed else ''}.{digits}f}".replace("-", "\N{MINUS SIGN}")


def escape_cell(text: str) -> str:
    """Make a text safe for a cell of a Markdown table: escape vertical bars and replace line breaks by spaces."""
    return text.replace("|", "\\|").replace("\n", " ")


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]], *, numeric: Sequence[str] = ()) -> list[str]:
    """Return the lines of a Markdown table, and an empty line after it.

    Args:
        head: The names of the columns.
        rows: The cells; this function escapes them.
        numeric: The columns that are aligned to the right.
    """
    rule = "|".join("---:" if name in numeric else "---" for name in head)
    lines = [f"| {' | '.join(head)} |", f"|{rule}|"]
    lines += [f"| {' | '.join(escape_cell(cell) for cell in row)} |" for row in rows]
    return [*lines, ""]


def terminal_text(draw: Callable[[Console], None], *, width: int) -> str:
    """Return the text that `draw` prints on a console of max(80, width) columns, without colours or trailing spaces."""
    from rich.console import Console

    out = StringIO()
    columns = max(MINIMUM_WIDTH, width)
    draw(Console(file=out, width=columns, color_system=None, highlight=False, markup=False, emoji=False))
    # Cleaned after wrapping, which may move any word to the start of a line.
    printed = terminal_safe(out.getvalue(), keep_lines=True)
    return "\n".join(line.rstrip() for line in printed.split("\n")).removesuffix("\n")


def terminal_table(head: Sequence[str], *, text_columns: int = 1, unbroken_from: int | None = None) -> Table:
    """Return an empty table without a frame.

    Args:
        head: The names of the columns.
        text_columns: How many columns are aligned to the left; the others are aligned to the right.
        unbroken_from: Cells are never wrapped from this column index on; None allows wrapping in all columns.
    """
    from rich.table import Table

    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False)
    for position, name in enumerate(head):
        table.add_column(
            name,
            justify="left" if position < text_columns else "right",
            overflow="fold",
            no_wrap=unbroken_from is not None and position >= unbroken_from,
        )
    return table
