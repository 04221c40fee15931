"""How close the numbers of a table are to the paper's: rank correlation and median absolute difference."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import pytest
import scipy.stats

from attnaudit.research.reproduction.figures.quantity_axes import ACCURACY, NUMBER, TAU_B, Axis
from attnaudit.research.reproduction.pages import paper_pages
from attnaudit.research.reproduction.pages.paper_summary import summary
from attnaudit.research.reproduction.paper_report import Row
from attnaudit.research.reproduction.verdicts_on_claims.closeness import Closeness, closeness, closeness_of_rows
from tests.units.research.reproduction.synthetic_reports import reproduction, row

#: Name of a quantity -> its axis.
AXES = {"tau": TAU_B, "accuracy": ACCURACY}


def with_paper(made: Row, axes: Mapping[str, Axis] = AXES, **paper: float) -> Row:
    lines = [
        msgspec.structs.replace(
            line, paper=paper.get(line.quantity), ours=line.values[0], axis=axes.get(line.quantity, NUMBER)
        )
        for line in made.lines
    ]
    return msgspec.structs.replace(made, lines=lines)


def table_rows(axes: Mapping[str, Axis] = AXES) -> list[Row]:
    numbers = [(0.35, 0.3, 0.9, 0.8), (0.05, 0.1, 0.8, 0.9), (0.2, 0.4, 0.7, 0.6), (0.3, 0.2, 0.6, 0.5)]
    made = [
        with_paper(row(f"row {i}", {"tau": [tau], "accuracy": [score]}), axes, tau=paper_tau, accuracy=paper_score)
        for i, (paper_tau, tau, paper_score, score) in enumerate(numbers)
    ]
    return [
        *made,
        with_paper(row("without a paper", {"tau": [0.1], "accuracy": [None]}), axes, accuracy=0.9),
        with_paper(row("one", {"tau": [0.5]}), axes, tau=0.6),
        with_paper(row("excluded", {"tau": [0.9]}, excluded="accuracy 0.5"), axes, tau=0.1),
    ]


ROWS = table_rows()


def test_numbers_match_scipys_correlation_and_the_median_difference() -> None:
    pairs = [(0.35, 0.3), (0.05, 0.1), (0.2, 0.4), (0.1, 0.9), (0.6, 0.5)]
    found = closeness(pairs)
    assert found.spearman == pytest.approx(scipy.stats.spearmanr([a for a, _ in pairs], [b for _, b in pairs])[0])
    assert (found.cells, found.median_difference) == (5, pytest.approx(0.1))


@pytest.mark.parametrize("pairs", [[(0.1, 0.2), (0.3, 0.4), (0.5, 0.6), (0.7, 0.8)], [(0.1, i / 10) for i in range(5)]])
def test_few_or_equal_numbers_have_no_correlation(pairs: list[tuple[float, float]]) -> None:
    assert closeness(pairs).spearman is None
    assert closeness(pairs).median_difference is not None


def test_without_cells_nothing_is_known() -> None:
    assert closeness([]) == Closeness(cells=0, spearman=None, median_difference=None)
    assert closeness_of_rows([row("a", {"tau": [0.3]})]) == []


def test_a_table_is_compared_as_a_whole_by_quantity_and_for_the_rows_that_count() -> None:
    whole, tau, accuracy = closeness_of_rows(table_rows({"tau": TAU_B, "accuracy": TAU_B}))
    assert (whole.quantity, whole.median, whole.every.cells, whole.counted.cells) == ("", False, 10, 9)
    assert whole.every.median_difference == pytest.approx(0.1)
    assert (tau.quantity, tau.every.cells, tau.counted.cells) == ("tau", 6, 5)
    assert tau.counted.spearman == pytest.approx(0.7)
    assert (accuracy.quantity, accuracy.every.cells, accuracy.every.spearman) == ("accuracy", 4, None)
    assert accuracy.every.median_difference == pytest.approx(0.1)
    assert [one.quantity for one in closeness_of_rows([with_paper(ROWS[0], tau=0.1)])] == [""]


@pytest.mark.parametrize(
    ("axes", "pooled"),
    [(AXES, False), ({"tau": TAU_B, "accuracy": TAU_B}, True), ({}, False), ({"tau": TAU_B}, False)],
    ids=["different", "same", "none declared", "one declared"],
)
def test_quantities_are_pooled_only_if_they_have_the_same_declared_axis(axes: Mapping[str, Axis], pooled: bool) -> None:
    numbers = [(0.9 + i / 100, 0.5 - i / 100) for i in range(5)]
    rows = [
        with_paper(row(f"row {i}", {"accuracy": [high], "tau": [low]}), axes, accuracy=1.81 - high, tau=0.96 - low)
        for i, (high, low) in enumerate(numbers)
    ]
    whole, accuracy, tau = closeness_of_rows(rows)
    assert accuracy.every.spearman == tau.every.spearman == pytest.approx(-1)
    assert whole.median is not pooled
    # Pooled numbers agree, because all accuracies are larger than all τ.
    assert whole.every.spearman == pytest.approx(0.515 if pooled else -1, abs=0.001)
    assert (whole.every.cells, whole.counted) == (10, whole.every)
    assert (whole.every.median_difference is None) is not pooled


def test_without_any_correlation_there_is_no_median() -> None:
    assert [one.quantity for one in closeness_of_rows(ROWS[:2])] == ["tau", "accuracy"]


def test_a_quantity_without_a_declared_axis_is_compared_on_its_own() -> None:
    rows = [with_paper(row(f"row {i}", {"x": [i / 5]}), {}, x=i / 10) for i in range(5)]
    (whole,) = closeness_of_rows(rows)
    assert (whole.median, whole.every.spearman) == (False, pytest.approx(1.0))


def test_a_model_that_is_in_several_rows_of_a_table_counts_once() -> None:
    def cells(*names: str) -> int:
        rows = [with_paper(row(name, {"accuracy": [0.8, 0.9]}), accuracy=0.8) for name in names]
        return closeness_of_rows(rows)[0].every.cells

    assert cells("sst/bilstm/additive/λ", "sst/bilstm/additive/10λ", "sst/bilstm/additive/100λ") == 1
    # Other models may have the same numbers, for example if a quantity is at the end of its scale.
    assert cells("sst/bilstm/additive", "sst/bilstm/dot", "sst/mlp/additive", "imdb/bilstm/additive") == 4
    rows = [
        with_paper(row(f"sst/bilstm/additive/{name}", {"accuracy": [ours]}), accuracy=0.8)
        for name, ours in (("λ", 0.8), ("10λ", 0.7))
    ]
    assert closeness_of_rows(rows)[0].every.cells == 2


def test_every_format_shows_how_close_the_numbers_are() -> None:
    one = reproduction(t=ROWS)
    page = paper_pages.markdown(one)
    assert "| median of the quantities | 6 | 0.26 | — | 5 | 0.70 | — |" in page
    assert "all quantities" not in page
    assert "all quantities" in paper_pages.markdown(reproduction(t=table_rows({"tau": TAU_B, "accuracy": TAU_B})))
    assert "How close our numbers are to the paper" in summary(one, width=100)
    assert "How close our numbers are to the paper" in paper_pages.html({"synthetic": one})
    assert "How close" not in paper_pages.markdown(reproduction(t=[row("a", {"tau": [0.3]})]))
