"""Figures that are computed from the quantities of measured rows: strips and curves."""

from __future__ import annotations

import msgspec
import pytest

from attnaudit.research.reproduction.curve_plots import mean_curve
from attnaudit.research.reproduction.paper_figures import draw
from attnaudit.research.reproduction.paper_report import Row
from attnaudit.research.reproduction.papers import PAPERS, paper
from attnaudit.research.reproduction.quantity_figures import CurvePlan, PointPlan, curve_figures, strip_figures
from tests.units.research.reproduction.synthetic_reports import row


def with_paper(made: Row, **numbers: float) -> Row:
    lines = [msgspec.structs.replace(line, paper=numbers.get(line.quantity)) for line in made.lines]
    return msgspec.structs.replace(made, lines=lines)


ROWS = [
    with_paper(row("sst/bilstm", {"tau": [0.1, None, 0.3], "tau std": [0.2], "tvd": [0.5, 0.6]}), tau=0.4),
    row("imdb/bilstm", {"tau": [-0.2], "tvd": [0.9]}, excluded="one seed"),
    row("snli/bilstm", {"tau": [None]}),
]


def test_a_strip_has_a_dot_per_seed_and_a_mark_at_the_papers_number() -> None:
    (figure,) = strip_figures(ROWS, ())
    assert figure.strips is not None
    assert [(one.label, one.values, one.paper, one.counts) for one in figure.strips.strips] == [
        ("sst/bilstm", [0.1, 0.3], 0.4, True),
        ("imdb/bilstm", [-0.2], None, False),
    ]
    drawn = draw(figure)
    assert drawn is not None
    dots = [shape.x for shape in drawn.shapes if shape.kind == "dot"]
    (mark,) = (shape for shape in drawn.shapes if shape.css == "mark threshold")
    unit = (dots[1] - dots[0]) / 0.2
    assert mark.x == pytest.approx(dots[0] + 0.3 * unit)
    assert [css for css, _ in drawn.legend] == ["s0", "s1"]
    assert "paper" in drawn.note


def test_the_strips_of_a_table_have_the_same_axis() -> None:
    figures = strip_figures(ROWS, ("tvd",))
    assert [figure.name for figure in figures] == ["strips tau", "strips tvd"]
    axes = {(one.strips.low, one.strips.high) for one in figures if one.strips is not None}
    assert axes == {(-0.2, 0.9)}
    assert strip_figures([ROWS[2]], ("tau",)) == []


PLAN = CurvePlan(
    name="curve",
    title="tvd by tau",
    x_label="x",
    y_label="y",
    caption="c.",
    lines={
        "swept": [PointPlan(label="λ=1", x="x 1", y="y 1"), PointPlan(label="λ=2", x="x 2", y="y 2")],
        "fixed": [PointPlan(label="here", x=3.0, y="y 2")],
        "missing": [PointPlan(label="none", x="no", y="no")],
    },
)
MEASURED = row("sst/bilstm", {"x 1": [0.0, 0.2], "y 1": [1.0, 3.0], "x 2": [1.0, 1.0], "y 2": [2.0, None]})


def test_a_curve_has_a_line_for_every_seed_and_their_mean() -> None:
    other = row("imdb/bilstm", {"x 1": [9.0], "y 1": [-9.0]})
    figures = curve_figures([MEASURED, other, ROWS[0]], (PLAN,))
    assert [figure.row for figure in figures] == ["sst/bilstm", "imdb/bilstm"]
    first, second = (figure.curves for figure in figures)
    assert first is not None
    assert second is not None
    swept, fixed = first.curves
    assert [[(one.label, one.x, one.y) for one in seed] for seed in swept.seeds] == [
        [("λ=1", 0.0, 1.0), ("λ=2", 1.0, 2.0)],
        [("λ=1", 0.2, 3.0)],
    ]
    assert [(one.label, one.x, one.y) for one in mean_curve(swept)] == [("λ=1", 0.1, 2.0), ("λ=2", 1.0, 2.0)]
    assert [[(one.x, one.y) for one in seed] for seed in fixed.seeds] == [[(3.0, 2.0)]]
    assert (first.x_low, first.x_high, first.y_low, first.y_high) == (0.0, 9.0, -9.0, 3.0)
    assert (second.x_low, second.y_high) == (0.0, 3.0)
    drawn = draw(figures[0])
    assert drawn is not None
    assert sum(shape.css == "stroke seed s0" for shape in drawn.shapes) == 2
    assert {shape.text for shape in drawn.shapes if shape.anchor == "start"} >= {"λ=1", "λ=2"}


@pytest.mark.parametrize("name", PAPERS)
def test_the_figures_of_the_papers_name_declared_quantities(name: str) -> None:
    for table in paper(name).tables:
        known = {quantity.name for quantity in table.quantities}
        points = [point for plan in table.curves for line in plan.lines.values() for point in line]
        named = {one for point in points for one in (point.x, point.y) if isinstance(one, str)}
        assert named | set(table.drawn) <= known, table.name
