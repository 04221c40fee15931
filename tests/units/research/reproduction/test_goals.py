"""How close our numbers should be to a paper's: goals, on synthetic tables."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from attnaudit.research.reproduction import paper_pages
from attnaudit.research.reproduction.goals import Goal, ReadGoal, goal_results, ranked, same_order, within
from attnaudit.research.reproduction.paper_report import Row
from attnaudit.research.reproduction.paper_summary import summary
from attnaudit.research.reproduction.render_reports import read_reports
from tests.units.research.reproduction.synthetic_reports import reproduction, row

COMMITTED = Path(__file__).parents[4] / "reports" / "papers"


def compared(name: str, paper: float | None, ours: float, *, excluded: str = "") -> Row:
    made = row(name, {"tau": [ours]}, excluded=excluded)
    lines = [msgspec.structs.replace(line, paper=paper, ours=ours) for line in made.lines]
    return msgspec.structs.replace(made, lines=lines)


def result(read: ReadGoal, *rows: Row) -> tuple[bool | None, str]:
    (found,) = goal_results([Goal(sentence="s", read=read)], reproduction(t=list(rows)))
    return found.met, found.numbers


def test_every_number_that_counts_must_be_close() -> None:
    read = within("t", ("tau",), 0.05, part="/additive")
    near, far = compared("sst/additive", 0.3, 0.34), compared("imdb/additive", 0.3, 0.2)
    assert result(read, near) == (True, "ours minus the paper's: sst/additive +0.040")
    assert result(read, near, far) == (False, "ours minus the paper's: sst/additive +0.040; imdb/additive −0.100")
    assert result(read, near, compared("snli/additive", 0.3, 0.9, excluded="accuracy 0.5"))[0] is True
    assert result(read, compared("sst/dot", 0.3, 0.9), compared("agnews/additive", None, 0.9)) == (None, "")


def test_a_rank_correlation_is_computed_from_the_rows_that_count() -> None:
    rows = [compared(f"row {i}", i / 10, i / 20) for i in range(4)]
    assert result(ranked("t", "tau", 0.9), *rows) == (True, "ρ = 1.00 over 4 rows")
    last = compared("row 4", 0.9, -0.5, excluded="accuracy 0.5")
    assert result(ranked("t", "tau", 0.9), *rows, last) == (
        True,
        "ρ = 1.00 over 4 rows (0.00 over all 5 rows that were run)",
    )
    assert result(ranked("t", "tau", 0.9), *rows[:2]) == (None, "")


@pytest.mark.parametrize(
    ("values", "met"), [((0.9, 0.8, 0.1), True), ((0.9, 0.1, 0.8), False), ((0.9, 0.9, 0.1), False)]
)
def test_an_order_is_compared_within_the_first_complete_family(values: tuple[float, ...], met: bool) -> None:
    rows = [compared(f"b{i}", None, value) for i, value in enumerate(values)]
    read = same_order("t", "tau", [["a0", "a1"], ["b0", "b1", "b2"]])
    assert result(read, compared("a0", None, 0.1), *rows)[0] is met
    assert result(read, *rows[:2]) == (None, "")


def test_the_page_of_claims_the_report_and_the_terminal_list_the_goals() -> None:
    goals = (
        Goal(sentence="near", read=within("t", ("tau",), 0.05)),
        Goal(sentence="far", read=within("t", ("tau",), 0.01)),
        Goal(sentence="absent", read=within("u", ("tau",), 0.05)),
    )
    one = reproduction(t=[compared("sst/additive", 0.3, 0.34)])
    one = msgspec.structs.replace(one, goals=goal_results(goals, one))
    page = paper_pages.claims_page({"made": one})
    assert "| made | near | met | ours minus the paper's: sst/additive +0.040 |" in page
    assert "| made | far | missed |" in page
    assert "| made | absent | not measured |" in page
    assert "| near | met | ours minus the paper's: sst/additive +0.040 |" in paper_pages.markdown(one)
    printed = summary(one, width=120)
    assert "met: near\n  ours minus the paper's: sst/additive +0.040\nmissed: far" in printed
    assert printed.rstrip().endswith("not measured: absent")
    assert "How close our numbers should be" not in paper_pages.claims_page({"made": reproduction()})


def test_every_goal_reads_a_table_that_has_been_measured() -> None:
    reports = read_reports(COMMITTED)
    of_goals = [goal for stem, one in reports.items() if stem.endswith("glove.6B.50d") for goal in one.goals]
    assert len(of_goals) == 4
    assert all(goal.met is not None and goal.numbers for goal in of_goals)
