"""Figures that are computed from the quantities of measured rows: strips and curves."""

from __future__ import annotations

import dataclasses

import msgspec
import pytest

from attnaudit.research.reproduction.figures import quantity_axes as axes
from attnaudit.research.reproduction.figures.chart_numbers import chart_numbers
from attnaudit.research.reproduction.figures.curve_plots import mean_curve
from attnaudit.research.reproduction.figures.figure_records import Curve, CurvePoint
from attnaudit.research.reproduction.figures.paper_figures import draw
from attnaudit.research.reproduction.figures.quantity_figures import (
    SPREAD,
    CurvePlan,
    PointPlan,
    curve_figures,
    strip_figures,
)
from attnaudit.research.reproduction.figures.shared_axes import share_axes
from attnaudit.research.reproduction.paper_report import Row
from attnaudit.research.reproduction.papers import PAPERS, paper
from tests.units.research.reproduction.synthetic_reports import reproduction, row


def with_paper(made: Row, **numbers: float) -> Row:
    lines = [msgspec.structs.replace(line, paper=numbers.get(line.quantity)) for line in made.lines]
    return msgspec.structs.replace(made, lines=lines)


ROWS = [
    with_paper(row("sst/bilstm", {"tau": [0.1, None, 0.3], "tau std": [0.2], "tvd": [0.5, 0.6]}), tau=0.4),
    row("imdb/bilstm", {"tau": [-0.2], "tvd": [0.9]}, excluded="one seed"),
    row("snli/bilstm", {"tau": [None]}),
]


def test_a_strip_has_a_dot_per_value_and_a_mark_at_the_papers_number() -> None:
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
    # The keys are dots and rings, as in the plot, and their colours are not those of box plots.
    assert drawn.legend == (
        ("s0 dot", "ours, one dot per value"),
        ("s5 ring", "ours, in a row that does not count for the claims"),
    )
    assert "paper" in drawn.note


def with_axes(made: Row, **of_quantity: axes.Axis) -> Row:
    lines = [msgspec.structs.replace(line, axis=of_quantity[line.quantity]) for line in made.lines]
    return msgspec.structs.replace(made, lines=lines)


def test_strips_of_the_same_kind_have_the_same_axis() -> None:
    numbers = {"tau": [-0.2], "other tau": [0.4], "accuracy": [0.7], "drop": [0.05]}
    kinds = {"tau": axes.TAU_B, "other tau": axes.TAU_B, "accuracy": axes.ACCURACY, "drop": axes.DROP}
    made = with_axes(row("sst/bilstm", numbers), **kinds)
    figures = strip_figures([made], tuple(numbers))
    assert [figure.name for figure in figures] == [f"strips {name}" for name in numbers]
    ranges = [(one.strips.x_label, one.strips.low, one.strips.high) for one in figures if one.strips is not None]
    assert ranges == [
        ("Kendall τ-b", -1.0, 1.0),
        ("Kendall τ-b", -1.0, 1.0),
        ("accuracy", 0.5, 1.0),
        ("drop in F1", 0.0, 0.05),
    ]
    assert strip_figures([ROWS[2]], ("tau",)) == []


@pytest.mark.parametrize("axis", [axes.ACCURACY, axes.F1])
@pytest.mark.parametrize(("ours", "paper", "low"), [(0.5, 0.9, 0.5), (0.9, 0.5, 0.5), (0.4, 0.9, 0.0), (0.9, 0.4, 0.0)])
def test_the_axis_of_a_score_starts_at_one_half_unless_a_number_is_lower(
    axis: axes.Axis, ours: float, paper: float, low: float
) -> None:
    made = with_axes(row("sst/bilstm", {"score": [ours], "other score": [0.9]}), **{"score": axis, "other score": axis})
    figures = strip_figures([with_paper(made, score=paper)], ("other score",))
    assert [figure.strips and (figure.strips.low, figure.strips.high) for figure in figures] == [(low, 1.0)] * 2


def test_strips_of_one_kind_cover_the_values_of_all_reports() -> None:
    reports = {}
    for name, drop, score in (("glove", 0.4, 0.8), ("random", -0.1, 0.3)):
        made = with_axes(row("sst/bilstm", {"drop": [drop], "f1": [score]}), drop=axes.DROP, f1=axes.F1)
        table = msgspec.structs.replace(reproduction(t=[made]).tables[0], figures=strip_figures([made], ("drop", "f1")))
        reports[name] = msgspec.structs.replace(reproduction(), tables=[table])
    for report in share_axes(reports).values():
        drop, f1 = (figure.strips for figure in report.tables[0].figures)
        assert drop is not None
        assert f1 is not None
        assert (drop.low, drop.high) == (-0.1, 0.4)
        assert (f1.low, f1.high) == (0.0, 1.0)


def test_a_strip_plot_of_one_class_names_the_class_of_each_corpus() -> None:
    rows = []
    for corpus, name in (("sst", "negative"), ("imdb", "negative"), ("agnews", "Business")):
        made = row(f"{corpus}/bilstm", {"class 0": [0.5]}, corpus=corpus)
        lines = [msgspec.structs.replace(made.lines[0], words=f"… of {name}", label="of the first", class_name=name)]
        rows.append(msgspec.structs.replace(made, title=f"{corpus}, BiLSTM", lines=lines))
    (figure,) = strip_figures(rows, ("class 0",))
    assert figure.title == "of the first"
    assert "negative (SST, IMDb), Business (AG News)." in figure.caption
    assert figure.strips is not None
    assert [one.label for one in figure.strips.strips] == ["sst, BiLSTM", "imdb, BiLSTM", "agnews, BiLSTM"]


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
    assert [shape.text for shape in drawn.shapes if shape.css == "tick label"] == ["λ=1", "λ=2"]


def test_published_numbers_are_squares_with_a_label_in_the_figures_of_their_corpus() -> None:
    published = Curve(name="of others", seeds=[[CurvePoint(label="Others 2022", x=4.0, y=-7.0)]])
    plan = dataclasses.replace(PLAN, published={"imdb": published}, about_published="Squares are of others.")
    other = row("imdb/bilstm", {"x 1": [0.3], "y 1": [2.0]}, corpus="imdb")
    figures = curve_figures([MEASURED, other], (plan,))
    assert [("Squares" in figure.caption) for figure in figures] == [False, True]
    for figure in figures:
        assert figure.curves is not None
        assert (figure.curves.x_high, figure.curves.y_low) == (4.0, -7.0)  # the axes cover the squares of all figures
    without, drawn = map(draw, figures)
    assert without is not None
    assert drawn is not None
    assert "published square" not in dict(without.legend)
    assert dict(drawn.legend)["published square"] == "of others"
    (square,) = (shape for shape in drawn.shapes if shape.kind == "rect")
    assert square.text == "of others, Others 2022: 4.000, -7.000"
    assert "Others 2022" in [shape.text for shape in drawn.shapes if shape.css == "tick label"]
    numbers = chart_numbers(figures[1])
    assert numbers is not None
    assert numbers.rows[-1] == ("of others", "Others 2022", "4.000", "−7.000")


def test_rows_of_corpora_that_the_paper_leaves_out_do_not_count() -> None:
    rows = [row(f"{corpus}/bilstm", {"tau": [0.1]}, corpus=corpus) for corpus in ("sst", "agnews")]
    (figure,) = strip_figures(rows, ("tau",), left_out=("agnews", "20news"))
    assert figure.strips is not None
    assert [strip.counts for strip in figure.strips.strips] == [True, False]


def test_the_values_of_a_strip_name_their_seeds() -> None:
    rows = [
        row("sst/bilstm", {"tau": [0.1, None, 0.3]}, seeds=[0, 1, 2]),
        row("imdb/bilstm", {"tau": [0.2]}, seeds=[0, 1, 2]),  # one value for all seeds
    ]
    (figure,) = strip_figures(rows, ("tau",))
    assert figure.strips is not None
    assert [strip.seeds for strip in figure.strips.strips] == [(0, 2), ()]
    drawn = draw(figure)
    assert drawn is not None
    assert [shape.text for shape in drawn.shapes if shape.kind == "dot"] == [
        "sst/bilstm, seed 0: 0.100",
        "sst/bilstm, seed 2: 0.300",
        "imdb/bilstm: 0.200",
    ]


@pytest.mark.parametrize("name", PAPERS)
def test_quantities_that_are_shown_alone_have_a_description_and_an_axis(name: str) -> None:
    for table in paper(name).tables:
        with_numbers = {quantity for row in table.rows(paper(name).corpora) for quantity in row.paper}
        shown = [one for one in table.quantities if one.name in with_numbers | set(table.drawn)]
        texts = [one.label or one.words for one in shown]
        assert len(set(texts)) == len(texts), table.name
        for one, text in zip(shown, texts, strict=True):
            assert not text.startswith("…"), one.name
            assert "{}" not in text, one.name
            assert one.axis != axes.NUMBER or one.name.endswith(SPREAD), one.name


@pytest.mark.parametrize("name", PAPERS)
def test_the_figures_of_the_papers_name_declared_quantities(name: str) -> None:
    for table in paper(name).tables:
        known = {quantity.name for quantity in table.quantities}
        points = [point for plan in table.curves for line in plan.lines.values() for point in line]
        named = {one for point in points for one in (point.x, point.y) if isinstance(one, str)}
        assert named | set(table.drawn) <= known, table.name
