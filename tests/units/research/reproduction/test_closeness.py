"""How close the numbers of a table are to the paper's: rank correlation and median absolute difference."""

from __future__ import annotations

import msgspec
import pytest
import scipy.stats

from attnaudit.research.reproduction import paper_pages
from attnaudit.research.reproduction.closeness import Closeness, closeness, closeness_of_rows
from attnaudit.research.reproduction.paper_report import Row
from attnaudit.research.reproduction.paper_summary import summary
from tests.units.research.reproduction.synthetic_reports import reproduction, row


def with_paper(made: Row, **paper: float) -> Row:
    lines = [msgspec.structs.replace(line, paper=paper.get(line.quantity), ours=line.values[0]) for line in made.lines]
    return msgspec.structs.replace(made, lines=lines)


ROWS = [
    with_paper(row("a", {"tau": [0.30], "f1": [0.8]}), tau=0.35, f1=0.82),
    with_paper(row("b", {"tau": [0.10], "f1": [0.9]}), tau=0.05),
    with_paper(row("c", {"tau": [0.40], "f1": [None]}), tau=0.20, f1=0.9),
    with_paper(row("d", {"tau": [0.90]}, excluded="accuracy 0.5"), tau=0.10),
]


def test_numbers_match_scipys_correlation_and_the_median_difference() -> None:
    pairs = [(0.35, 0.3), (0.05, 0.1), (0.2, 0.4), (0.1, 0.9)]
    found = closeness(pairs)
    assert found.spearman == pytest.approx(scipy.stats.spearmanr([a for a, _ in pairs], [b for _, b in pairs])[0])
    assert (found.cells, found.median_difference) == (4, pytest.approx(0.125))


@pytest.mark.parametrize("pairs", [[(0.1, 0.2), (0.3, 0.4)], [(0.1, 0.2), (0.1, 0.3), (0.1, 0.4)]])
def test_few_or_equal_numbers_have_no_correlation(pairs: list[tuple[float, float]]) -> None:
    assert closeness(pairs).spearman is None
    assert closeness(pairs).median_difference is not None


def test_without_cells_nothing_is_known() -> None:
    assert closeness([]) == Closeness(cells=0, spearman=None, median_difference=None)
    assert closeness_of_rows([row("a", {"tau": [0.3]})]) == []


def test_a_table_is_compared_as_a_whole_by_quantity_and_for_the_rows_that_count() -> None:
    whole, tau, f1 = closeness_of_rows(ROWS)
    assert (whole.quantity, whole.every.cells, whole.counted.cells) == ("", 5, 4)
    assert (tau.quantity, tau.every.cells, tau.counted.cells) == ("tau", 4, 3)
    assert tau.counted.spearman == pytest.approx(0.5)
    assert (f1.quantity, f1.every.cells, f1.every.spearman) == ("f1", 1, None)
    assert f1.every.median_difference == pytest.approx(0.02)
    assert [one.quantity for one in closeness_of_rows([ROWS[1]])] == [""]


def test_every_format_shows_how_close_the_numbers_are() -> None:
    one = reproduction(t=ROWS)
    assert "| all quantities | 5 | 0.30 | 0.050 | 4 | 0.80 | 0.050 |" in paper_pages.markdown(one)
    assert "How close our numbers are to the paper" in summary(one, width=100)
    assert "How close our numbers are to the paper" in paper_pages.html({"synthetic": one})
    assert "How close" not in paper_pages.markdown(reproduction(t=[row("a", {"tau": [0.3]})]))
