"""Numbers and tables as they are written and printed."""

from __future__ import annotations

import pytest

from attnaudit.research.study.text_tables import fixed, markdown_table, terminal_table, terminal_text


@pytest.mark.parametrize(("value", "text"), [(0.126, "0.13"), (-0.5, "−0.50"), (None, "—")])
def test_a_number_has_fixed_decimals_and_a_typographic_minus(value: float | None, text: str) -> None:
    assert fixed(value, 2) == text


def test_cells_of_a_markdown_table_cannot_break_it() -> None:
    lines = markdown_table(("name", "n"), [("a|b\nc", "1")], numeric=("n",))
    assert lines == ["| name | n |", "|---|---:|", "| a\\|b c | 1 |", ""]


def test_a_terminal_table_shows_cells_as_they_are() -> None:
    table = terminal_table(("name", "n"))
    table.add_row("[red]x :warning:", "1")
    text = terminal_text(lambda console: console.print(table), width=20)
    assert text.splitlines() == ["name             n", "[red]x :warning: 1"]


def test_the_terminal_is_at_least_80_columns_wide() -> None:
    assert terminal_text(lambda console: console.print("word " * 15), width=20).count("\n") == 0
