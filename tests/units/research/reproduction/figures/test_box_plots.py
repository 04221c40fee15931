"""The shapes of box plots."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from attnaudit.research.reproduction.figures.figure_records import Box, Boxes, Figure
from attnaudit.research.reproduction.figures.paper_figures import draw
from attnaudit.research.reproduction.figures.shared_axes import share_axes
from tests.units.research.reproduction.synthetic_reports import reproduction

VALUES = [-0.2, 0.1, 0.3, 0.9]


def figure(*boxes: Box) -> Figure:
    return Figure(
        name="boxes",
        row="sst",
        title="t",
        caption="c",
        boxes=Boxes(sides=["BiLSTM", "CNN"], x_label="τ", boxes=list(boxes)),
    )


def test_the_parts_of_a_box_are_its_quantiles() -> None:
    drawn = draw(figure(Box(label="additive", side=1, values=VALUES)))
    assert drawn is not None
    dots = [shape.x for shape in drawn.shapes if shape.kind == "dot"]
    unit = (dots[-1] - dots[0]) / (VALUES[-1] - VALUES[0])
    zero = dots[0] - unit * VALUES[0]
    box = next(shape for shape in drawn.shapes if shape.kind == "rect")
    median = next(shape for shape in drawn.shapes if shape.css == "mark threshold")
    whisker = next(shape for shape in drawn.shapes if shape.css == "axis")
    found = [(x - zero) / unit for x in (whisker.x, box.x, median.x, box.x + box.width, whisker.x2)]
    assert found == pytest.approx(np.quantile(VALUES, (0, 0.25, 0.5, 0.75, 1)).tolist())
    assert box.css == "fill quartiles s1"
    assert drawn.legend == (("s1", "CNN"),)  # the legend has only what is drawn
    assert drawn.label == "τ. additive, CNN: median 0.200 of 4"


def test_a_row_that_does_not_count_has_rings_instead_of_dots_and_says_so() -> None:
    drawn = draw(figure(Box(label="dot", side=0, values=VALUES), Box(label="dot", side=1, values=VALUES, counts=False)))
    assert drawn is not None
    assert [shape.css for shape in drawn.shapes if shape.kind == "dot"] == ["fill s0"] * 4 + ["fill ring s1"] * 4
    texts = [shape.text for shape in drawn.shapes if shape.kind == "rect"]
    assert ["does not count" in text for text in texts] == [False, True]
    assert drawn.label.endswith("dot, CNN: median 0.200 of 4 (does not count)")


def test_boxes_of_one_label_are_drawn_together_and_empty_ones_are_left_out() -> None:
    drawn = draw(
        figure(
            Box(label="additive", side=0, values=[0.5]),
            Box(label="dot", side=0, values=[0.2]),
            Box(label="additive", side=1, values=[0.7]),
            Box(label="dot", side=1, values=[]),
        )
    )
    assert drawn is not None
    labels = [shape.text for shape in drawn.shapes if shape.css == "tick" and shape.anchor == "end"]
    assert labels == ["additive", "dot"]
    assert len([shape for shape in drawn.shapes if shape.kind == "rect"]) == 3
    assert draw(figure(Box(label="dot", side=0, values=[]))) is None


def test_the_box_plots_of_a_table_have_the_same_axis_in_all_reports() -> None:
    reports = {}
    for name, value in (("glove", 0.9), ("random", -0.25)):
        table = msgspec.structs.replace(
            reproduction(t=[]).tables[0], figures=[figure(Box(label="dot", side=0, values=[value]))]
        )
        reports[name] = msgspec.structs.replace(reproduction(), tables=[table])
    shared = [one.tables[0].figures[0] for one in share_axes(reports).values()]
    assert [(one.boxes.low, one.boxes.high) for one in shared if one.boxes] == [(-0.25, 1.0), (-0.25, 1.0)]
    ticks = [
        [shape.text for shape in drawn.shapes if shape.css == "tick" and shape.anchor != "end"]
        for one in shared
        if (drawn := draw(one)) is not None
    ]
    assert ticks[0] == ticks[1]
    assert "−0.25" in ticks[0]
