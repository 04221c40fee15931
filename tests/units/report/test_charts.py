"""Charts: their geometry agrees with the numbers."""

from __future__ import annotations

import math

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnaudit.records import Chart, Series
from attnaudit.report.charts import chart, nice_ticks, tick_labels
from tests.units.report.drawn_shapes import rects

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


@given(st.integers(-(10**6), 10**6), st.integers(-(10**6), 10**6))
def test_ticks_of_whole_numbers_can_be_whole_numbers(a: int, b: int) -> None:
    low, high = min(a, b), max(a, b) + 1
    ticks = nice_ticks(low, high, whole=True)
    assert all(tick.is_integer() for tick in ticks)
    assert ticks[0] <= low < high <= ticks[-1]
    assert len(ticks) <= 8


def test_a_chart_over_whole_numbers_has_whole_ticks() -> None:
    drawing = chart(example_chart([0.5] * 17))
    labels = [s.text for s in drawing.shapes if s.css == "tick" and s.anchor != "end"]  # type: ignore[union-attr]
    assert labels == ["0", "5", "10", "15", "20"]


@pytest.mark.parametrize("value", [0.0, 1.0, -3.5, 1e9, 1e-9])
def test_ticks_of_one_value_lie_on_both_sides_of_it(value: float) -> None:
    ticks = nice_ticks(value, value)
    assert ticks[0] < value < ticks[-1]


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_ticks_need_finite_bounds(bad: float) -> None:
    with pytest.raises(ValueError, match="finite"):
        nice_ticks(0.0, bad)


def test_tick_labels_have_enough_decimals_to_differ() -> None:
    assert tick_labels([-0.5, 0.0, 0.5]) == ["−0.5", "0.0", "0.5"]
    assert tick_labels([0.125, 0.375]) == ["0.125", "0.375"]
    assert tick_labels([0, 1000, 2000]) == ["0", "1,000", "2,000"]


def example_chart(y: list[float | None], kind: str = "line") -> Chart:
    x = [float(i) for i in range(len(y))]
    return msgspec.convert(
        {"title": "t", "x_label": "x", "y_label": "y", "kind": kind, "series": [Series(name="s", x=x, y=y)]}, Chart
    )


def test_an_undefined_point_leaves_a_gap() -> None:
    drawing = chart(example_chart([1.0, 2.0, None, 3.0, 4.0]))
    path = next(s for s in drawing.shapes if s.kind == "path")  # type: ignore[union-attr]
    assert [part[0] for part in path.text.split() if part[0].isalpha()] == ["M", "L", "M", "L"]
    assert sum(s.kind == "dot" for s in drawing.shapes) == 4  # type: ignore[union-attr]


@pytest.mark.parametrize("kind", ["line", "bar"])
def test_a_chart_without_any_point_is_not_drawn(kind: str) -> None:
    assert chart(example_chart([None, None], kind)) is None
    assert chart(example_chart([], kind)) is None


@pytest.mark.parametrize("kind", ["line", "bar"])
@pytest.mark.parametrize("y", [[0.0, 0.0, 0.0], [2.0, 2.0], [0.4], [-1.0, None, 3.0], [1e-9, 2e-9]])
def test_every_shape_stays_inside_the_picture(kind: str, y: list[float | None]) -> None:
    drawing = chart(example_chart(y, kind))
    assert drawing is not None
    for shape in drawing.shapes:
        if shape.kind in ("rect", "dot"):
            assert 0 <= shape.x <= drawing.width
            assert 0 <= shape.y <= drawing.height
            assert shape.kind == "dot" or shape.y + shape.height <= drawing.height


def test_bars_are_as_tall_as_their_values() -> None:
    heights = [h for _, h in rects(chart(example_chart([1.0, 2.0, 4.0], "bar")), "fill s0")]
    assert heights == [pytest.approx(heights[0]), pytest.approx(2 * heights[0]), pytest.approx(4 * heights[0])]
