"""The charts of a check: the histogram, its marks and their labels, and the strip."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnaudit.records import Histogram, Interval, Requirement
from attnaudit.report.charts import LEFT, RIGHT, WIDTH, Scale
from attnaudit.report.check_charts import CHARACTER_WIDTH, Mark, histogram, place_labels, strip, strip_range
from tests.units.report.drawn_shapes import rects
from tests.units.report.example_checks import check_record


def test_the_area_of_a_bar_is_proportional_to_its_count() -> None:
    record = Histogram(edges=[0.0, 0.1, 0.2, 0.4, 0.5], counts=[10, 20, 40, 5], label="x")
    drawn = rects(histogram(check_record(references=[]), record), "bar")
    area = np.array([(width + 1) * height for width, height in drawn])
    assert np.allclose(area / area.sum(), np.array(record.counts) / 75, atol=1e-6)


def test_a_histogram_marks_threshold_value_interval_and_references_where_they_are() -> None:
    check = check_record()
    drawing = histogram(check, check.distribution)  # type: ignore[arg-type]
    assert drawing is not None
    ticks = {s.text.replace("−", "-"): s.x for s in drawing.shapes if s.css == "tick" and s.anchor == "middle"}
    x = Scale(low=-1.0, high=1.0, start=ticks["-1.0"], end=ticks["1.0"])
    at = {s.css: s.x for s in drawing.shapes if s.kind == "line" and s.css.startswith("mark") and "ref" not in s.css}
    assert at == {"mark threshold": pytest.approx(x(0.3)), "mark value": pytest.approx(x(0.213))}
    band = next(s for s in drawing.shapes if s.css == "band")
    assert (band.x, band.x + band.width) == (pytest.approx(x(0.199)), pytest.approx(x(0.226)))
    references = [s.x for s in drawing.shapes if s.css == "mark reference"]
    assert references == [pytest.approx(x(0.001)), pytest.approx(x(0.61))]


def test_a_histogram_includes_a_threshold_outside_its_values() -> None:
    check = check_record(requirement=Requirement(direction="at_least", value=5.0))
    drawing = histogram(check, Histogram(edges=[0.0, 1.0], counts=[3], label="x"))
    line = next(s for s in drawing.shapes if s.css == "mark threshold")  # type: ignore[union-attr]
    assert LEFT <= line.x <= WIDTH - RIGHT


def test_constant_values_still_draw_one_bar() -> None:
    drawing = histogram(check_record(references=[]), Histogram(edges=[0.5, 0.5], counts=[9], label="x"))
    assert len(rects(drawing, "bar")) == 1


def test_an_empty_histogram_is_not_drawn() -> None:
    assert histogram(check_record(), Histogram(edges=[0.0, 1.0], counts=[0], label="x")) is None


def test_a_histogram_with_a_wrong_number_of_edges_is_refused() -> None:
    with pytest.raises(ValueError, match="Expected 3 edges for 2 counts but got 2"):
        histogram(check_record(), Histogram(edges=[0.0, 1.0], counts=[1, 2], label="x"))


@given(st.lists(st.floats(0, 1), min_size=1, max_size=6))
def test_labels_of_marks_never_overlap(values: list[float]) -> None:
    x = Scale(low=0.0, high=1.0, start=LEFT, end=WIDTH - RIGHT)
    labels = place_labels([Mark(value=v, text=f"value {v:.3f}", css="value") for v in values], x)
    assert sorted(label.mark.value for label in labels) == sorted(values)
    boxes = []
    for label in labels:
        half = len(label.mark.text) * CHARACTER_WIDTH / 2
        boxes.append((label.lane, label.centre - half, label.centre + half))
    for i, (lane, low, high) in enumerate(boxes):
        assert low >= 0
        assert high <= WIDTH
        assert all(lane != lane_2 or high <= low_2 or high_2 <= low for lane_2, low_2, high_2 in boxes[i + 1 :])


def test_the_strip_shades_the_required_side() -> None:
    for direction in ("at_least", "at_most"):
        check = check_record(requirement=Requirement(direction=direction, value=0.3))
        drawing = strip(check, (0.0, 1.0))
        required = next(s for s in drawing.shapes if s.css == "required")  # type: ignore[union-attr]
        threshold = next(s for s in drawing.shapes if s.css == "mark threshold")  # type: ignore[union-attr]
        edge = required.x if direction == "at_least" else required.x + required.width
        assert edge == pytest.approx(threshold.x)


def test_strips_of_one_check_share_a_range_that_holds_every_number() -> None:
    first = check_record(value=-0.4, interval=Interval(low=-0.5, high=-0.3, confidence=0.95, method="m"))
    low, high = strip_range([first, check_record(value=None, interval=None)]) or (0, 0)
    assert low < -0.5
    assert high > 0.61
    assert strip_range([check_record(value=None, interval=None, references=[], requirement=None)]) is None
    precise = check_record(value=0.065, interval=Interval(low=0.063, high=0.069, confidence=0.95, method="m"))
    alone = msgspec.structs.replace(precise, references=[], requirement=None)
    low, high = strip_range([alone]) or (1, 1)
    assert low == 0
    assert (0.069 - 0.063) / (high - low) < 0.1
    assert strip(check_record(), None) is None


def test_a_histogram_has_no_marks_where_the_statistic_is_not_an_average() -> None:
    record = Histogram(edges=[0.0, 0.5, 1.0], counts=[3, 2], label="gain")
    mean, ratio = (histogram(check_record(statistic=name), record) for name in ("mean", "ratio of means"))
    assert mean is not None
    assert ratio is not None
    assert any(shape.css.startswith("mark") for shape in mean.shapes)
    assert not any(shape.css.startswith(("mark", "band")) for shape in ratio.shapes)
    assert mean.label.startswith("Histogram of gain over 5 instances. Marked: ≥ 0.30, mean 0.213, ")
    assert ratio.label == "Histogram of gain over 5 instances"


def test_the_bins_of_a_histogram_have_different_ends() -> None:
    drawing = histogram(check_record(), Histogram(edges=[0.0006, 0.0008, 0.001], counts=[2, 3], label="effect"))
    assert drawing is not None
    bins = [shape.text for shape in drawing.shapes if shape.css == "bar"]
    assert bins == ["0.0006 to 0.0008: 2 instances", "0.0008 to 0.0010: 3 instances"]


def test_a_strip_describes_what_it_shows() -> None:
    drawing = strip(check_record(), (0.0, 1.0))
    assert drawing is not None
    assert drawing.label == (
        "value 0.213, interval 0.199 to 0.226, required at least 0.30, floor 0.001, gradient vs. leave-one-out 0.610"
    )
