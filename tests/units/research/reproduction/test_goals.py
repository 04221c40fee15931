"""How close our numbers should be to a paper's: goals, on synthetic tables."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
import pytest

from attnaudit.research.reproduction.figures.quantity_axes import DROP, TAU_B, Axis
from attnaudit.research.reproduction.pages import paper_pages
from attnaudit.research.reproduction.pages.paper_summary import summary
from attnaudit.research.reproduction.paper_report import GoalVerdict, Row
from attnaudit.research.reproduction.render_reports import read_reports
from attnaudit.research.reproduction.verdicts_on_claims.goals import (
    Goal,
    ReadGoal,
    goal_results,
    margin_of_one_seed,
    ranked,
    same_order,
    within,
)
from tests.units.research.reproduction.synthetic_reports import reproduction, row

COMMITTED = Path(__file__).parents[4] / "reports" / "papers"


def compared(name: str, paper: float | None, ours: float, *, excluded: str = "", axis: Axis = TAU_B) -> Row:
    made = row(name, {"tau": [ours]}, excluded=excluded)
    lines = [msgspec.structs.replace(line, paper=paper, ours=ours, axis=axis) for line in made.lines]
    return msgspec.structs.replace(made, lines=lines)


def result(read: ReadGoal, *rows: Row) -> tuple[GoalVerdict, str]:
    (found,) = goal_results([Goal(sentence="s", read=read, cause="Why.")], reproduction(t=list(rows)))
    return found.verdict, found.numbers.removesuffix(". Why.")


def test_every_number_that_counts_must_be_close() -> None:
    read = within("t", ("tau",), 0.05, part="/additive")
    near, far = compared("sst/additive", 0.3, 0.34), compared("imdb/additive", 0.3, 0.2)
    excluded = compared("snli/additive", 0.3, 0.9, excluded="accuracy 0.5")
    assert result(read, near) == ("met", "ours minus the paper's: sst/additive +0.040")
    assert result(read, near, far) == ("missed", "ours minus the paper's: sst/additive +0.040; imdb/additive −0.100")
    assert result(read, near, excluded)[0] == "met"
    assert result(read, compared("sst/dot", 0.3, 0.9), excluded) == ("too few rows that count", "")
    others = (compared("sst/dot", 0.3, 0.9), compared("agnews/additive", None, 0.9))
    assert result(read, *others) == ("not measured", "")


def seeds(name: str, paper: float, values: Sequence[float | None]) -> Row:
    known = [value for value in values if value is not None]
    made = row(name, {"tau": [0.5]})
    ours = statistics.fmean(known)
    lines = [msgspec.structs.replace(line, paper=paper, ours=ours, values=list(values)) for line in made.lines]
    assert made.provenance is not None
    provenance = msgspec.structs.replace(made.provenance, seeds=list(range(len(values))))
    return msgspec.structs.replace(made, lines=lines, provenance=provenance)


def test_a_difference_is_shown_with_the_margin_of_one_more_seed() -> None:
    read = within("t", ("tau",), 0.03)
    inside, outside = seeds("inside", 0.3, [0.25, None, 0.45]), seeds("outside", 0.1, [0.3, 0.31, 0.32])
    assert (
        result(read, inside)[1]
        == "ours minus the paper's: inside +0.050 ± 2.201. 1 of 1 difference is within the margin"
    )
    # 4.3027 (97.5% quantile of t, 2 degrees of freedom) · 0.01 · √(4/3)
    assert result(read, inside, outside, seeds("once", 0.3, [0.4]))[1] == (
        "ours minus the paper's: inside +0.050 ± 2.201; outside +0.210 ± 0.050; once +0.100. "
        "1 of 2 differences is within the margin"
    )


def test_a_margin_contains_one_more_seed_in_95_percent_of_cases() -> None:
    generator = np.random.default_rng(0)
    inside = []
    for values in generator.normal(0.3, 0.05, size=(4000, 5)):
        *known, new = values
        margin = margin_of_one_seed(known)
        assert margin is not None
        inside.append(abs(new - statistics.fmean(known)) <= margin)
    assert 0.94 < statistics.fmean(inside) < 0.96
    assert margin_of_one_seed([0.3]) is None


def test_a_rank_correlation_is_computed_from_the_rows_that_count() -> None:
    rows = [compared(f"row {i}", i / 10, i / 20) for i in range(5)]
    read = ranked("t", "tau", 0.9)
    assert result(read, *rows) == ("met", "ρ = 1.00 over 5 rows")
    last = compared("row 5", 0.9, -0.5, excluded="accuracy 0.5")
    assert result(read, *rows, last) == ("met", "ρ = 1.00 over 5 rows (0.14 over all 6 rows that were run)")
    assert result(read, *rows[:4], last) == ("too few rows that count", "4 of 5 numbers; 5 are needed")
    assert result(read, compared("row 1", None, 0.3)) == ("not measured", "")
    constant = [compared(f"row {i}", i / 10, 0.3) for i in range(5)]
    undefined = "ρ is undefined, because all 5 numbers of the paper, or all of ours, are equal"
    assert result(read, *constant) == ("missed", undefined)


def test_a_model_that_is_in_two_rows_counts_once_for_a_rank_correlation() -> None:
    rows = [compared(f"sst/mlp/{i}/λ", i / 10, i / 20) for i in range(4)]
    same, other = (compared(f"sst/mlp/{i}/10λ", 0.3, 0.15) for i in (3, 4))
    assert result(ranked("t", "tau", 0.9), *rows, same)[0] == "too few rows that count"
    assert result(ranked("t", "tau", 0.9), *rows, other)[0] == "met"


@pytest.mark.parametrize(
    ("means", "spread", "verdict"),
    [
        ((0.9, 0.8, 0.1), 0.01, "met"),
        ((0.9, 0.8, 0.1), 0.1, "undecided"),
        ((0.9, 0.1, 0.8), 0.01, "missed"),
        ((0.9, 0.9, 0.1), 0.01, "missed"),
    ],
)
def test_an_order_is_compared_within_the_first_complete_family(
    means: tuple[float, ...], spread: float, verdict: GoalVerdict
) -> None:
    steps = ((-1, 0, 1), (1, 0, -1), (0, 0, 0))
    rows = [
        seeds(f"b{i}", 0.5, [mean + spread * step for step in own])
        for i, (mean, own) in enumerate(zip(means, steps, strict=True))
    ]
    read = same_order("t", "tau", [["a0", "a1"], ["b0", "b1", "b2"]])
    assert result(read, compared("a0", None, 0.1), *rows)[0] == verdict
    assert result(read, *rows[:2]) == ("too few rows that count", "")
    assert result(read, row("b0", {"other": [0.1]})) == ("not measured", "")


def test_an_order_is_judged_by_intervals_of_differences_between_neighbours() -> None:
    read = same_order("t", "tau", [["b0", "b1"]])
    rows = seeds("b0", 0.5, [0.9, 0.8, 0.7]), seeds("b1", 0.5, [0.8, 0.7, 0.61])
    # differences 0.1, 0.1 and 0.09; t = 4.3027, standard error 0.01 / 3
    assert result(read, *rows) == ("met", "b0 0.800; b1 0.703. Differences between neighbours: +0.097 [0.082, 0.111]")
    one = seeds("b0", 0.5, [0.9]), seeds("b1", 0.5, [0.8])
    assert result(read, *one) == ("undecided", "b0 0.900; b1 0.800. Differences between neighbours: +0.100 (one seed)")


def test_an_order_of_numbers_at_the_end_of_their_scale_says_nothing() -> None:
    order, correlation = same_order("t", "tau", [[f"b{i}" for i in range(5)]]), ranked("t", "tau", 0.9)
    values = (1.0, 0.999, 0.998, 0.997, 0.995)
    rows = [compared(f"b{i}", 1 - i / 10, value) for i, value in enumerate(values)]
    assert result(order, *rows) == ("saturated", "b0 1.000; b1 0.999; b2 0.998; b3 0.997; b4 0.995")
    assert result(correlation, *rows) == ("saturated", "ρ = 1.00 over 5 rows")
    lower = [*rows[:4], compared("b4", 0.6, 0.994)]
    unlimited = [compared(f"b{i}", 1 - i / 10, value, axis=DROP) for i, value in enumerate(values)]
    for others in (lower, unlimited):
        assert (result(order, *others)[0], result(correlation, *others)[0]) == ("undecided", "met")


def test_the_page_of_claims_the_report_and_the_terminal_list_the_goals() -> None:
    goals = (
        Goal(sentence="near", read=within("t", ("tau",), 0.05), cause="Why."),
        Goal(sentence="far", read=within("t", ("tau",), 0.01), cause="Why."),
        Goal(sentence="absent", read=within("u", ("tau",), 0.05), cause="Why."),
    )
    one = reproduction(t=[compared("sst/additive", 0.3, 0.34)])
    one = msgspec.structs.replace(one, goals=goal_results(goals, one))
    page = paper_pages.claims_page({"made": one})
    assert "| made | near | met | ours minus the paper's: sst/additive +0.040 |" in page
    assert "| made | far | missed | ours minus the paper's: sst/additive +0.040. Why. |" in page
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
    assert all(goal.verdict != "not measured" and goal.numbers for goal in of_goals)
