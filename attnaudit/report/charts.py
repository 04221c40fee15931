"""Line and bar charts as shapes in SVG units, and the scales and axes of all charts.

Colours and fonts are CSS classes in report.css. The view box of all charts is small, so that their text stays legible
when a phone scales them down.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from attnaudit.formatting import number
from attnaudit.records import Chart
from attnaudit.report.wording import shorten

WIDTH, HEIGHT = 420.0, 232.0
LEFT, RIGHT, BOTTOM = 44.0, 14.0, 40.0
#: Number of styles of series in report.css. Further series use the same styles again.
SERIES_STYLES = 6
#: A line with more points than this is drawn without a dot at each point.
MOST_DOTS = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """One shape of a drawing.

    Attributes:
        kind: "rect", "line", "path", "dot" or "text".
        css: The CSS classes of the shape.
        x: The left edge of a rect, the start of a line, the centre of a dot, or the anchor of a text.
        y: The top edge of a rect, the start of a line, the centre of a dot, or the baseline of a text.
        width: The width of a rect, or the radius of a dot.
        height: The height of a rect.
        x2: The end of a line.
        y2: The end of a line.
        text: The content of a text, the tooltip of a rect or dot, or the commands of a path.
        anchor: The part of a text that is at x: "start", "middle" or "end".
    """

    kind: str
    css: str
    x: float = 0.0
    y: float = 0.0
    width: float = 0.0
    height: float = 0.0
    x2: float = 0.0
    y2: float = 0.0
    text: str = ""
    anchor: str = "middle"


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing:
    """The content of an SVG.

    Attributes:
        width: The width of the view box.
        height: The height of the view box.
        label: The description for screen readers.
        shapes: The shapes in the order in which they are drawn. Later shapes cover earlier ones.
        legend: Pairs of a CSS class and a name, one pair per series. It is empty if there is only one series.
        note: How to read the drawing, as sentences; "" if there is nothing to say.
    """

    width: float
    height: float
    label: str
    shapes: tuple[Shape, ...]
    legend: tuple[tuple[str, str], ...] = ()
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """A linear map from the numbers in [low, high] to the coordinates in [start, end]."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)


def finite(values: Iterable[float | None]) -> list[float]:
    """Return the values that can be drawn. None, NaN and infinite values are left out."""
    return [float(v) for v in values if v is not None and math.isfinite(v)]


def nice_step(span: float, target: int, *, whole: bool = False) -> float:
    """Return the smallest round step such that at most `target` steps cover `span`.

    A round step is 1, 2, 2.5 or 5 times a power of ten. With `whole`, it is a whole number.
    """
    raw = max(span / target, 1.0) if whole else span / target
    power = 10.0 ** math.floor(math.log10(raw))
    for factor in (1.0, 2.0, 2.5, 5.0, 10.0):
        step = factor * power
        if step >= raw * (1 - 1e-9) and (step.is_integer() or not whole):
            return step
    return 10.0 * power


def nice_ticks(low: float, high: float, *, target: int = 5, whole: bool = False) -> list[float]:
    """Return evenly spaced round numbers that cover a range.

    Args:
        low: One end of the range.
        high: The other end. If both ends are equal, the ticks cover a range around them.
        target: The approximate number of steps between the ticks.
        whole: Whether all ticks are whole numbers.

    Returns:
        The ticks in ascending order. The first is at most the lower end of the range, and the last at least the upper
        end.

    Raises:
        ValueError: An end of the range is not finite.
    """
    if not (math.isfinite(low) and math.isfinite(high)):
        raise ValueError(f"Expected finite bounds but got {low} and {high}.")
    low, high = min(low, high), max(low, high)
    if high - low <= 1e-12 * max(1.0, abs(low), abs(high)):
        half = max(abs(low) * 0.1, 0.5)
        low, high = low - half, high + half
    step = nice_step(high - low, target, whole=whole)
    first = math.floor(low / step + 1e-9)
    last = math.ceil(high / step - 1e-9)
    digits = max(0, 2 - math.floor(math.log10(step)))
    return [round(i * step, digits) + 0.0 for i in range(first, last + 1)]


def tick_labels(ticks: Sequence[float]) -> list[str]:
    """Format ticks with the fewest decimals that show them exactly, at most 4.

    If they are very large or very close together, they have two significant digits instead.
    """
    step = min((b - a for a, b in pairwise(ticks)), default=1.0)
    if max(map(abs, ticks), default=0.0) >= 1e6 or step < 1e-4:
        return [f"{t:.2g}".replace("-", "−") for t in ticks]
    exact = (d for d in range(5) if all(abs(round(t, d) - t) <= step * 1e-6 for t in ticks))
    decimals = next(exact, 4)
    return [f"{t:,.{decimals}f}".replace("-", "−") for t in ticks]


def axes(
    x: Scale, y: Scale, *, x_ticks: Sequence[float], y_ticks: Sequence[float], x_label: str, y_label: str
) -> list[Shape]:
    """Return the shapes of both axes, with names, ticks, tick labels and horizontal grid lines."""
    shapes = [
        Shape(kind="text", css="axis-name", x=(x.start + x.end) / 2, y=y.start + 33, text=shorten(x_label, 64)),
        Shape(kind="text", css="axis-name", x=4, y=y.end - 9, text=shorten(y_label, 56), anchor="start"),
    ]
    for tick, label in zip(y_ticks, tick_labels(y_ticks), strict=True):
        shapes.append(Shape(kind="line", css="grid", x=x.start, y=y(tick), x2=x.end, y2=y(tick)))
        shapes.append(Shape(kind="text", css="tick", x=x.start - 6, y=y(tick) + 3.5, text=label, anchor="end"))
    shapes.append(Shape(kind="line", css="axis", x=x.start, y=y.start, x2=x.end, y2=y.start))
    for tick, label in zip(x_ticks, tick_labels(x_ticks), strict=True):
        shapes.append(Shape(kind="line", css="axis", x=x(tick), y=y.start, x2=x(tick), y2=y.start + 4))
        shapes.append(Shape(kind="text", css="tick", x=x(tick), y=y.start + 16, text=label))
    return shapes


def chart(record: Chart, *, highest: float = 0.0) -> Drawing | None:
    """Draw a line or bar chart, with gaps at undefined points.

    Args:
        record: The chart.
        highest: A value that the vertical axis of a bar chart must reach, so that several charts have the same axis.

    Returns:
        The drawing. None if no point is defined.
    """
    points = [
        [(x, y) for x, y in zip(s.x, s.y, strict=False) if y is not None and math.isfinite(x) and math.isfinite(y)]
        for s in record.series
    ]
    xs = sorted({x for series in points for x, _ in series})
    ys = [y for series in points for _, y in series]
    if not ys:
        return None
    bars = record.kind == "bar"
    gap = min((b - a for a, b in pairwise(xs)), default=1.0)
    pad = gap / 2 if bars else 0.0
    if bars or len(xs) == 1:
        x_low, x_high = xs[0] - (pad or 0.5), xs[-1] + (pad or 0.5)
    else:
        x_low, x_high = xs[0], xs[-1]
    whole = all(float(v).is_integer() for v in xs)
    tick_every_x = len(xs) <= 10 and (bars or whole)
    x_ticks = xs if tick_every_x else nice_ticks(x_low, x_high, target=6, whole=whole)
    x_low, x_high = min(x_low, x_ticks[0]), max(x_high, x_ticks[-1])
    y_low = min(0.0, *ys) if bars or min(ys) < 0.35 * max(ys) else min(ys)
    y_ticks = nice_ticks(y_low, max(0.0, highest, *ys) if bars else max(ys), target=4)
    x = Scale(low=x_low, high=x_high, start=LEFT, end=WIDTH - RIGHT)
    y = Scale(low=y_ticks[0], high=y_ticks[-1], start=HEIGHT - BOTTOM, end=26)
    shapes = axes(x, y, x_ticks=x_ticks, y_ticks=y_ticks, x_label=record.x_label, y_label=record.y_label)
    styles = [f"s{i % SERIES_STYLES}" for i in range(len(record.series))]
    for index, (defined, series, css) in enumerate(zip(points, record.series, styles, strict=True)):
        if bars:
            shapes += _bars(defined, x, y, css=css, gap=gap, index=index, series_count=len(points))
        else:
            shapes += _line(list(zip(series.x, series.y, strict=False)), x, y, css=css)
    names = [series.name for series in record.series]
    legend = tuple(zip(styles, names, strict=True)) if len(names) > 1 else ()
    label = f"{record.title}: {record.y_label} against {record.x_label}"
    return Drawing(width=WIDTH, height=HEIGHT, label=label, shapes=tuple(shapes), legend=legend)


def _bars(
    points: Sequence[tuple[float, float]], x: Scale, y: Scale, *, css: str, gap: float, index: int, series_count: int
) -> list[Shape]:
    """Draw the bars of one series.

    The bars of all series at the same x form a group, whose width is at most 76% of the gap between two values of x.
    """
    group_width = abs(x(gap) - x(0.0)) * 0.76
    width = min(group_width / series_count, 46.0)
    shapes = []
    for at, value in points:
        left = x(at) - width * series_count / 2 + index * width
        top, base = min(y(value), y(0.0)), max(y(value), y(0.0))
        shapes.append(
            Shape(
                kind="rect",
                css=f"fill {css}",
                x=left,
                y=top,
                width=max(width - 1, 0.75),
                height=base - top,
                text=_tooltip(at, value),
            )
        )
    return shapes


def _line(points: Sequence[tuple[float, float | None]], x: Scale, y: Scale, *, css: str) -> list[Shape]:
    """Draw the line of one series, with gaps at undefined points.

    Defined points get dots with tooltips, unless there are more than MOST_DOTS points.
    """
    dots: list[Shape] = []
    path: list[str] = []
    command = "M"
    for at, value in points:
        if value is None or not math.isfinite(value) or not math.isfinite(at):
            command = "M"
            continue
        path.append(f"{command}{x(at):.1f} {y(value):.1f}")
        command = "L"
        if len(points) <= MOST_DOTS:
            dots.append(Shape(kind="dot", css=f"fill {css}", x=x(at), y=y(value), width=3, text=_tooltip(at, value)))
    return [Shape(kind="path", css=f"stroke {css}", text=" ".join(path)), *dots]


def _tooltip(x: float, y: float) -> str:
    return f"{x:g}: {number(y)}"
