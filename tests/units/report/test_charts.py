"""Charts: their geometry says what the numbers say."""

from __future__ import annotations

import math

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnaudit.records import Chart, Histogram, Interval, Requirement, Series
from attnaudit.report.charts import (
    CHARACTER,
    LEFT,
    RIGHT,
    WIDTH,
    Drawing,
    Mark,
    Scale,
    chart,
    histogram,
    lanes,
    nice_ticks,
    strip,
    strip_span,
    tick_labels,
)
from tests.units.report.example_runs import check_record

bounds = st.floats(-1e6, 1e6, allow_nan=False).map(lambda v: round(v, 6))


@given(bounds, bounds)
def test_ticks_cover_the_range_in_equal_steps(a: float, b: float) -> None:
    low, high = min(a, b), max(a, b)
    ticks = nice_ticks(low, high)
    step = (ticks[-1] - ticks[0]) / (len(ticks) - 1)
    slack = 1e-6 * step + 1e-9 * max(abs(low), abs(high))
    assert ticks[0] <= low + slack
    assert ticks[-1] >= high - slack
    assert 2 <= len(ticks) <= 8
    assert np.allclose(np.diff(ticks), step, rtol=1e-6)


@pytest.mark.parametrize("value", [0.0, 1.0, -3.5, 1e9, 1e-9])
def test_a_constant_gets_an_axis_around_it(value: float) -> None:
    ticks = nice_ticks(value, value)
    assert ticks[0] < value < ticks[-1]


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_ticks_refuse_what_is_not_finite(bad: float) -> None:
    with pytest.raises(ValueError, match="finite"):
        nice_ticks(0.0, bad)


def test_tick_labels_have_the_decimals_that_tell_them_apart() -> None:
    assert tick_labels([-0.5, 0.0, 0.5]) == ["−0.5", "0.0", "0.5"]
    assert tick_labels([0.125, 0.375]) == ["0.125", "0.375"]
    assert tick_labels([0, 1000, 2000]) == ["0", "1,000", "2,000"]


def bars(drawing: Drawing, css: str) -> list[tuple[float, float]]:
    return [(s.width, s.height) for s in drawing.shapes if s.kind == "rect" and s.css == css]


def test_the_area_of_a_bar_is_its_count() -> None:
    one = Histogram(edges=[0.0, 0.1, 0.2, 0.4, 0.5], counts=[10, 20, 40, 5], label="x")
    drawn = bars(histogram(check_record(references=[]), one), "bar")  # type: ignore[arg-type]
    area = np.array([(width + 1) * height for width, height in drawn])
    assert np.allclose(area / area.sum(), np.array(one.counts) / 75, atol=1e-6)


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


def test_a_histogram_reaches_out_to_a_threshold_beyond_its_values() -> None:
    check = check_record(requirement=Requirement(direction="at_least", value=5.0))
    drawing = histogram(check, Histogram(edges=[0.0, 1.0], counts=[3], label="x"))
    line = next(s for s in drawing.shapes if s.css == "mark threshold")  # type: ignore[union-attr]
    assert LEFT <= line.x <= WIDTH - RIGHT


def test_constant_values_still_draw_one_bar() -> None:
    drawing = histogram(check_record(references=[]), Histogram(edges=[0.5, 0.5], counts=[9], label="x"))
    assert len(bars(drawing, "bar")) == 1  # type: ignore[arg-type]


def test_nothing_is_drawn_of_an_empty_histogram() -> None:
    assert histogram(check_record(), Histogram(edges=[0.0, 1.0], counts=[0], label="x")) is None


def test_edges_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="Expected 3 edges for 2 counts but got 2"):
        histogram(check_record(), Histogram(edges=[0.0, 1.0], counts=[1, 2], label="x"))


@given(st.lists(st.floats(0, 1), min_size=1, max_size=6))
def test_labels_of_marks_never_overlap(values: list[float]) -> None:
    x = Scale(low=0.0, high=1.0, start=LEFT, end=WIDTH - RIGHT)
    placed = lanes([Mark(value=v, text=f"value {v:.3f}", css="value") for v in values], x)
    assert sorted(m.value for m, _, _ in placed) == sorted(values)
    boxes = [(lane, at - len(m.text) * CHARACTER / 2, at + len(m.text) * CHARACTER / 2) for m, at, lane in placed]
    for i, (lane, low, high) in enumerate(boxes):
        assert low >= 0
        assert high <= WIDTH
        assert all(other != lane or high <= low_2 or high_2 <= low for other, low_2, high_2 in boxes[i + 1 :])


def line(y: list[float | None], kind: str = "line") -> Chart:
    x = [float(i) for i in range(len(y))]
    return msgspec.convert(
        {"title": "t", "x_label": "x", "y_label": "y", "kind": kind, "series": [Series(name="s", x=x, y=y)]}, Chart
    )


def test_an_undefined_point_leaves_a_gap() -> None:
    drawing = chart(line([1.0, 2.0, None, 3.0, 4.0]))
    path = next(s for s in drawing.shapes if s.kind == "path")  # type: ignore[union-attr]
    assert [part[0] for part in path.text.split() if part[0].isalpha()] == ["M", "L", "M", "L"]
    assert sum(s.kind == "dot" for s in drawing.shapes) == 4  # type: ignore[union-attr]


@pytest.mark.parametrize("kind", ["line", "bar"])
def test_a_chart_without_any_point_is_not_drawn(kind: str) -> None:
    assert chart(line([None, None], kind)) is None
    assert chart(line([], kind)) is None


@pytest.mark.parametrize("kind", ["line", "bar"])
@pytest.mark.parametrize("y", [[0.0, 0.0, 0.0], [2.0, 2.0], [0.4], [-1.0, None, 3.0], [1e-9, 2e-9]])
def test_every_shape_stays_inside_the_picture(kind: str, y: list[float | None]) -> None:
    drawing = chart(line(y, kind))
    assert drawing is not None
    for shape in drawing.shapes:
        if shape.kind in ("rect", "dot"):
            assert 0 <= shape.x <= drawing.width
            assert 0 <= shape.y <= drawing.height
            assert shape.kind == "dot" or shape.y + shape.height <= drawing.height


def test_bars_are_as_tall_as_their_values() -> None:
    heights = [h for _, h in bars(chart(line([1.0, 2.0, 4.0], "bar")), "fill s0")]  # type: ignore[arg-type]
    assert heights == [pytest.approx(heights[0]), pytest.approx(2 * heights[0]), pytest.approx(4 * heights[0])]


def test_the_strip_shades_the_required_side() -> None:
    for direction in ("at_least", "at_most"):
        check = check_record(requirement=Requirement(direction=direction, value=0.3))
        drawing = strip(check, (0.0, 1.0))
        wanted = next(s for s in drawing.shapes if s.css == "wanted")  # type: ignore[union-attr]
        threshold = next(s for s in drawing.shapes if s.css == "mark threshold")  # type: ignore[union-attr]
        edge = wanted.x if direction == "at_least" else wanted.x + wanted.width
        assert edge == pytest.approx(threshold.x)


def test_strips_of_one_check_share_a_span_that_holds_every_number() -> None:
    first = check_record(value=-0.4, interval=Interval(low=-0.5, high=-0.3, confidence=0.95, method="m"))
    low, high = strip_span([first, check_record(value=None, interval=None)]) or (0, 0)
    assert low < -0.5
    assert high > 0.61
    assert strip_span([check_record(value=None, interval=None, references=[], requirement=None)]) is None
    assert strip(check_record(), None) is None


def test_a_ratio_is_not_drawn_on_the_scale_of_what_it_is_made_of() -> None:
    one = Histogram(edges=[0.0, 0.5, 1.0], counts=[3, 2], label="gain")
    mean, ratio = (histogram(check_record(statistic=name), one) for name in ("mean", "ratio of means"))
    assert mean is not None
    assert ratio is not None
    assert any(shape.css.startswith("mark") for shape in mean.shapes)
    assert not any(shape.css.startswith(("mark", "band")) for shape in ratio.shapes)
