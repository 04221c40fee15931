"""Format tables and numbers for Markdown pages and for the terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from io import StringIO
from typing import TYPE_CHECKING

from attnaudit.formatting import terminal_safe

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

#: Reports on the terminal are formatted for at least this many columns. A narrower terminal wraps their lines.
MINIMUM_WIDTH = 80
#: The text of a cell without a value.
NO_VALUE = "—"


def fixed(value: float | None, digits: int) -> str:
    """Format a number with a fixed number of decimals and a typographic minus sign.

    Args:
        value: The number. None gives an em dash.
        digits: The number of decimals.
    """
    if value is None:
        return NO_VALUE
    return f"{value:.{digits}f}".replace("-", "\N{MINUS SIGN}")


def escape_cell(text: str) -> str:
    """Make a text safe for a cell of a Markdown table. Vertical bars are escaped, and line breaks become spaces."""
    return text.replace("|", "\\|").replace("\n", " ")


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]], *, numeric: Sequence[str] = ()) -> list[str]:
    """Return the lines of a Markdown table, followed by an empty line.

    Args:
        head: The names of the columns.
        rows: The cells of each row. This function escapes them.
        numeric: The names of the columns that are aligned to the right.
    """
    rule = "|".join("---:" if name in numeric else "---" for name in head)
    lines = [f"| {' | '.join(head)} |", f"|{rule}|"]
    lines += [f"| {' | '.join(escape_cell(cell) for cell in row)} |" for row in rows]
    return [*lines, ""]


def terminal_text(draw: Callable[[Console], None], *, width: int) -> str:
    """Return the text that `draw` prints, without colours or trailing spaces.

    Args:
        draw: Prints to the console that it is called with.
        width: The width of the console in columns. A value below 80 counts as 80.
    """
    from rich.console import Console

    out = StringIO()
    columns = max(MINIMUM_WIDTH, width)
    draw(Console(file=out, width=columns, color_system=None, highlight=False, markup=False, emoji=False))
    # Clean the text only after wrapping, because wrapping may move any word to the start of a line.
    printed = terminal_safe(out.getvalue(), keep_lines=True)
    return "\n".join(line.rstrip() for line in printed.split("\n")).removesuffix("\n")


def terminal_table(head: Sequence[str], *, text_columns: int = 1, unbroken_from: int | None = None) -> Table:
    """Return an empty table without a frame.

    Args:
        head: The names of the columns.
        text_columns: The number of columns, from the left, whose cells are left-aligned. The others are right-aligned.
        unbroken_from: The index of the first column whose cells must not be wrapped. The columns after it are not
            wrapped either. None allows wrapping in all columns.
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
