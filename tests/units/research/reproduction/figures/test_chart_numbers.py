"""The tables of numbers below charts: every number can be attributed to a row, a seed or a series."""

from __future__ import annotations

import pytest

from attnaudit.records import Chart, Series
from attnaudit.research.reproduction.figures.chart_numbers import chart_numbers
from attnaudit.research.reproduction.figures.figure_records import (
    Box,
    Boxes,
    Curve,
    CurvePoint,
    Curves,
    Figure,
    Strip,
    Strips,
    Violin,
    Violins,
)
from tests.units.research.reproduction.pages.report_with_figures import figures


def figure(record: Strips | Curves | Boxes | Violins | Chart) -> Figure:
    return Figure(name="f", row="", title="t", caption="c", **{type(record).__name__.lower(): record})  # type: ignore[arg-type]


STRIPS = Strips(
    x_label="τ",
    low=0.0,
    high=1.0,
    strips=[
        Strip(label="a", values=[0.1, 0.2], paper=0.5, counts=True, seeds=(0, 1)),
        Strip(label="b", values=[0.3], paper=None, counts=False, seeds=(2,)),
        Strip(label="c", values=[-0.4], paper=None, counts=True),
    ],
)


def test_each_row_of_a_strip_plot_is_one_row_with_a_column_per_seed() -> None:
    found = chart_numbers(figure(STRIPS))
    assert found is not None
    assert found.head == ("row", "seed 0", "seed 1", "seed 2", "over all seeds", "paper")
    assert found.rows == [
        ("a", "0.100", "0.200", "", "", "0.500"),
        ("b (does not count)", "", "", "0.300", "", ""),
        ("c", "", "", "", "−0.400", ""),
    ]


def test_columns_without_a_number_are_left_out() -> None:
    found = chart_numbers(figure(Strips(x_label="τ", low=0, high=1, strips=STRIPS.strips[2:])))
    assert found is not None
    assert (found.head, found.rows) == (("row", "ours"), [("c", "−0.400")])


def test_grouped_bars_have_a_column_per_series() -> None:
    series = [Series(name="yes", x=[-0.5, 0.5], y=[0.25, None]), Series(name="no", x=[0.5], y=[1.0])]
    found = chart_numbers(figure(Chart(title="t", x_label="τ", y_label="share", kind="bar", series=series)))
    assert found is not None
    assert found.head == ("τ, middle of the bin", "yes", "no")
    assert found.rows == [("−0.5", "0.250", ""), ("0.5", "—", "1.000")]


def test_curves_name_their_points() -> None:
    points = [[CurvePoint(label="λ=-1", x=1.0, y=y)] for y in (0.2, 0.4)]
    curve = Curve(name="swept", seeds=points)
    curves = Curves(x_label="x", y_label="y", x_low=0, x_high=1, y_low=0, y_high=1, curves=[curve])
    found = chart_numbers(figure(curves))
    assert found is not None
    assert found.head == ("curve", "point", "x (mean over seeds)", "y (mean over seeds)")
    assert found.rows == [("swept", "λ=−1", "1.000", "0.300")]
    assert found.names == 2


def test_boxes_and_violins_name_their_groups() -> None:
    boxes = Boxes(sides=["BiLSTM", "CNN"], x_label="τ", boxes=[Box(label="dot", side=1, values=[0.0, 1.0, 0.5])])
    found = chart_numbers(figure(boxes))
    assert found is not None
    assert found.rows == [("dot, CNN", "3", "0.000", "0.250", "0.500", "0.750", "1.000")]
    violin = Violin(bin=1, side=0, at=[0.0, 1.0], density=[1.0, 0.5], median=0.1, n=1234)
    for sides, expected in ((["no", "yes"], ("high", "no", "0.100", "1,234")), (["all"], ("high", "0.100", "1,234"))):
        record = Violins(bins=["low", "high"], sides=sides, x_label="x", y_label="y", violins=[violin])
        found = chart_numbers(figure(record))
        assert found is not None
        assert found.rows == [expected]
        assert len(found.head) == len(expected)


@pytest.mark.parametrize("one", figures(), ids=lambda one: one.name)
def test_only_a_text_has_no_table(one: Figure) -> None:
    assert (chart_numbers(one) is None) is (one.counterfactual is not None)
