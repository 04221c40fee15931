"""Geometry of the report's charts: records in, shapes in SVG units out. Colours and fonts are CSS classes.

All charts share one small view box, so that their text stays legible when a phone scales them down.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from attnaudit.formatting import number
from attnaudit.records import Chart, CheckRecord, Histogram
from attnaudit.verdict_text import digits, requirement_symbol, shown_verdict

WIDTH, HEIGHT = 420.0, 232.0
LEFT, RIGHT, BOTTOM = 44.0, 14.0, 40.0
LANE = 15.0
CHARACTER = 6.2  # estimated width of one character at the charts' font size
SERIES_STYLES = 6
#: Statistics that average what a histogram shows.
AVERAGES = ("mean", "median", "proportion")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """One drawn thing. kind: "rect", "line", "path", "dot" or "text"; the numbers mean what the kind needs."""

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
    """An SVG: label is what a screen reader says; legend pairs a CSS class with a series name."""

    width: float
    height: float
    label: str
    shapes: tuple[Shape, ...]
    legend: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A vertical mark on a chart: the value, the threshold, a reference."""

    value: float
    text: str
    css: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """Maps [low, high] onto [start, end]."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)


def finite(values: Iterable[float | None]) -> list[float]:
    """The values that can be drawn."""
    return [float(v) for v in values if v is not None and math.isfinite(v)]


def nice_step(span: float, target: int) -> float:
    """The smallest of 1, 2, 2.5, 5 times a power of ten that cuts `span` into at most `target` steps."""
    raw = span / target
    power = 10.0 ** math.floor(math.log10(raw))
    for factor in (1.0, 2.0, 2.5, 5.0, 10.0):
        if factor * power >= raw * (1 - 1e-9):
            return factor * power
    return 10.0 * power


def nice_ticks(low: float, high: float, *, target: int = 5) -> list[float]:
    """Round numbers that cover [low, high]: the first is at most `low`, the last at least `high`.

    A single point is widened around itself. Raises ValueError when a bound is not finite.
    """
    if not (math.isfinite(low) and math.isfinite(high)):
        raise ValueError(f"Expected finite bounds but got {low} and {high}.")
    low, high = min(low, high), max(low, high)
    if high - low <= 1e-12 * max(1.0, abs(low), abs(high)):
        half = max(abs(low) * 0.1, 0.5)
        low, high = low - half, high + half
    step = nice_step(high - low, target)
    first = math.floor(low / step + 1e-9)
    last = math.ceil(high / step - 1e-9)
    digits = max(0, 2 - math.floor(math.log10(step)))
    return [round(i * step, digits) + 0.0 for i in range(first, last + 1)]


def tick_labels(ticks: Sequence[float]) -> list[str]:
    """Labels with as many decimals as the step between ticks needs."""
    step = min((b - a for a, b in pairwise(ticks)), default=1.0)
    if max(map(abs, ticks), default=0.0) >= 1e6 or step < 1e-4:
        return [f"{t:.2g}".replace("-", "−") for t in ticks]
    exact = (d for d in range(5) if all(abs(round(t, d) - t) <= step * 1e-6 for t in ticks))
    decimals = next(exact, 4)
    return [f"{t:,.{decimals}f}".replace("-", "−") for t in ticks]


def _axes(x: Scale, y: Scale, x_ticks: list[float], y_ticks: list[float], x_label: str, y_label: str) -> list[Shape]:
    shapes = [
        Shape(kind="text", css="axis-name", x=(x.start + x.end) / 2, y=y.start + 33, text=_short(x_label, 64)),
        Shape(kind="text", css="axis-name", x=4, y=y.end - 9, text=_short(y_label, 56), anchor="start"),
    ]
    for tick, label in zip(y_ticks, tick_labels(y_ticks), strict=True):
        shapes.append(Shape(kind="line", css="grid", x=x.start, y=y(tick), x2=x.end, y2=y(tick)))
        shapes.append(Shape(kind="text", css="tick", x=x.start - 6, y=y(tick) + 3.5, text=label, anchor="end"))
    shapes.append(Shape(kind="line", css="axis", x=x.start, y=y.start, x2=x.end, y2=y.start))
    for tick, label in zip(x_ticks, tick_labels(x_ticks), strict=True):
        shapes.append(Shape(kind="line", css="axis", x=x(tick), y=y.start, x2=x(tick), y2=y.start + 4))
        shapes.append(Shape(kind="text", css="tick", x=x(tick), y=y.start + 16, text=label))
    return shapes


def _short(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"


def lanes(marks: Sequence[Mark], x: Scale) -> list[tuple[Mark, float, int]]:
    """Where each mark's label goes: (mark, centre of the label, lane); lane 0 is the topmost.

    No two labels overlap, and where there is room no label is crossed by the line of a label above it: a label may
    stand to the right or the left of its own line.
    """
    placed: list[tuple[Mark, float, int]] = []

    def box(mark: Mark, centre: float) -> tuple[float, float]:
        half = len(mark.text) * CHARACTER / 2
        return centre - half - 3, centre + half + 3

    def free(mark: Mark, centre: float, lane: int, *, crossing: bool) -> bool:
        low, high = box(mark, centre)
        for other, at, its in placed:
            its_low, its_high = box(other, at)
            if its == lane and low < its_high and its_low < high:
                return False
            if crossing and its < lane and low < x(other.value) < high:
                return False
            if crossing and its > lane and its_low < x(mark.value) < its_high:
                return False
        return True

    for mark in sorted(marks, key=lambda m: m.value):
        half = len(mark.text) * CHARACTER / 2
        centres = [
            min(max(x(mark.value) + side * (half + 4), half + 2), max(WIDTH - half - 2, half + 2))
            for side in (0, 1, -1)
        ]
        choices = [(c, lane, True) for lane in range(len(marks)) for c in centres]
        choices += [(centres[0], lane, False) for lane in range(len(marks))]
        centre, lane, _ = next(c for c in choices if free(mark, c[0], c[1], crossing=c[2]))
        placed.append((mark, centre, lane))
    return placed


def check_marks(check: CheckRecord) -> list[Mark]:
    """The threshold, the value and the references of a check, as far as they are defined."""
    marks = []
    if check.requirement is not None:
        marks.append(Mark(value=check.requirement.value, text=requirement_symbol(check.requirement), css="threshold"))
    if check.value is not None:
        marks.append(
            Mark(
                value=check.value,
                text=f"{_short(check.statistic, 24)} {number(check.value, digits=digits(check))}",
                css="value",
            )
        )
    for one in check.references:
        if one.value is not None:
            text = f"{_short(one.name, 18)} {number(one.value)}"
            marks.append(Mark(value=one.value, text=text, css="reference"))
    return [m for m in marks if math.isfinite(m.value)]


def histogram(check: CheckRecord, one: Histogram) -> Drawing | None:
    """The per-instance values as bars whose area is proportional to the count, with the check's marks on top where its
    value is their average: a ratio or a difference has another scale.

    None when there is nothing to draw. Raises ValueError when edges and counts do not fit together.
    """
    if len(one.edges) != len(one.counts) + 1:
        raise ValueError(f"Expected {len(one.counts) + 1} edges for {len(one.counts)} counts but got {len(one.edges)}.")
    total = sum(one.counts)
    if not total:
        return None
    averaged = check.statistic in AVERAGES
    marks = check_marks(check) if averaged else []
    interval = check.interval if averaged else None
    span = [*one.edges, *(m.value for m in marks)]
    if interval is not None:
        span += [interval.low, interval.high]
    x_ticks = nice_ticks(min(span), max(span), target=6)
    x = Scale(low=x_ticks[0], high=x_ticks[-1], start=LEFT, end=WIDTH - RIGHT)
    placed = lanes(marks, x)
    top = 24 + LANE * (1 + max((lane for _, _, lane in placed), default=-1))
    height = HEIGHT + top - 24
    widths = [b - a for a, b in pairwise(one.edges)]
    common = sorted(widths)[len(widths) // 2] or 1.0
    # Bars of the usual width stand for their count; a wider bar is lowered so that its area stays the count.
    tall = [c * common / w if w > 0 else float(c) for c, w in zip(one.counts, widths, strict=True)]
    y_ticks = nice_ticks(0.0, max(tall), target=4)
    y = Scale(low=0.0, high=y_ticks[-1], start=height - BOTTOM, end=top + 14)
    shapes = _axes(x, y, x_ticks, y_ticks, one.label, "instances")
    if interval is not None:
        left, right = x(interval.low), x(interval.high)
        shapes.append(
            Shape(kind="rect", css="band", x=left, y=y.end, width=max(right - left, 1.0), height=y.start - y.end)
        )
    for low, width, count, high in zip(one.edges, widths, one.counts, tall, strict=False):
        left, right = x(low), x(low + width)
        says = f"{number(low)} to {number(low + width)}: {count:,} instances"
        shapes.append(
            Shape(
                kind="rect", css="bar", x=left + 0.5, y=y(high), width=max(right - left - 1, 0.75),
                height=y.start - y(high), text=says,
            )
        )  # fmt: skip
    for mark, centre, lane in placed:
        base = 12 + LANE * lane
        shapes.append(
            Shape(kind="line", css=f"mark {mark.css}", x=x(mark.value), y=base + 4, x2=x(mark.value), y2=y.start)
        )
        shapes.append(Shape(kind="text", css=f"label {mark.css}", x=centre, y=base, text=mark.text))
    label = f"Distribution of {one.label} over {total:,} instances. " + "; ".join(m.text for m in marks)
    return Drawing(width=WIDTH, height=height, label=label, shapes=tuple(shapes))


def chart(one: Chart) -> Drawing | None:
    """A line or bar chart. Undefined points leave a gap. None when no point is defined."""
    points = [
        [(x, y) for x, y in zip(s.x, s.y, strict=False) if y is not None and math.isfinite(x) and math.isfinite(y)]
        for s in one.series
    ]
    xs = sorted({x for series in points for x, _ in series})
    ys = [y for series in points for _, y in series]
    if not ys:
        return None
    bars = one.kind == "bar"
    gap = min((b - a for a, b in pairwise(xs)), default=1.0)
    pad = gap / 2 if bars else 0.0
    if bars or len(xs) == 1:
        x_low, x_high = xs[0] - (pad or 0.5), xs[-1] + (pad or 0.5)
    else:
        x_low, x_high = xs[0], xs[-1]
    few = len(xs) <= 10 and (bars or all(float(v).is_integer() for v in xs))
    x_ticks = xs if few else nice_ticks(x_low, x_high, target=6)
    x_low, x_high = min(x_low, x_ticks[0]), max(x_high, x_ticks[-1])
    y_low = min(0.0, *ys) if bars or min(ys) < 0.35 * max(ys) else min(ys)
    y_ticks = nice_ticks(y_low, max(0.0, *ys) if bars else max(ys), target=4)
    x = Scale(low=x_low, high=x_high, start=LEFT, end=WIDTH - RIGHT)
    y = Scale(low=y_ticks[0], high=y_ticks[-1], start=HEIGHT - BOTTOM, end=26)
    shapes = _axes(x, y, list(x_ticks), y_ticks, one.x_label, one.y_label)
    for index, (series, record) in enumerate(zip(points, one.series, strict=True)):
        css = f"s{index % SERIES_STYLES}"
        if bars:
            shapes += _bars(series, x, y, css=css, gap=gap, index=index, of=len(points))
        else:
            shapes += _line(list(zip(record.x, record.y, strict=False)), x, y, css=css)
    legend = tuple((f"s{i % SERIES_STYLES}", s.name) for i, s in enumerate(one.series)) if len(one.series) > 1 else ()
    label = f"{one.title}: {one.y_label} against {one.x_label}"
    return Drawing(width=WIDTH, height=HEIGHT, label=label, shapes=tuple(shapes), legend=legend)


def _bars(
    points: list[tuple[float, float]], x: Scale, y: Scale, *, css: str, gap: float, index: int, of: int
) -> list[Shape]:
    group = abs(x(gap) - x(0.0)) * 0.76
    width = min(group / of, 46.0)
    shapes = []
    for at, value in points:
        left = x(at) - width * of / 2 + index * width
        says = f"{at:g}: {number(value)}"
        top, base = min(y(value), y(0.0)), max(y(value), y(0.0))
        shapes.append(
            Shape(
                kind="rect", css=f"fill {css}", x=left, y=top, width=max(width - 1, 0.75), height=base - top, text=says
            )
        )
    return shapes


def _line(points: list[tuple[float, float | None]], x: Scale, y: Scale, *, css: str) -> list[Shape]:
    shapes: list[Shape] = []
    steps: list[str] = []
    pen = "M"
    for at, value in points:
        if value is None or not math.isfinite(value) or not math.isfinite(at):
            pen = "M"
            continue
        steps.append(f"{pen}{x(at):.1f} {y(value):.1f}")
        pen = "L"
        if len(points) <= 40:
            says = f"{at:g}: {number(value)}"
            shapes.append(Shape(kind="dot", css=f"fill {css}", x=x(at), y=y(value), width=3, text=says))
    return [Shape(kind="path", css=f"stroke {css}", text=" ".join(steps)), *shapes]


def strip_span(checks: Iterable[CheckRecord]) -> tuple[float, float] | None:
    """The range that holds every number of these checks, padded; None when none is defined."""
    numbers: list[float | None] = []
    for one in checks:
        numbers += [one.value, *(m.value for m in check_marks(one))]
        if one.interval is not None:
            numbers += [one.interval.low, one.interval.high]
    known = finite(numbers)
    if not known:
        return None
    low, high = min(known), max(known)
    pad = 0.08 * (high - low) or max(abs(low) * 0.1, 0.05)
    return low - pad, high + pad


def strip(check: CheckRecord, span: tuple[float, float] | None) -> Drawing | None:
    """The small picture in the verdict table: the required side shaded, threshold, interval, value, references."""
    if span is None:
        return None
    width, height, middle = 200.0, 30.0, 12.0
    x = Scale(low=span[0], high=span[1], start=4, end=width - 4)
    shapes = []
    says = []
    if check.requirement is not None:
        at = x(check.requirement.value)
        left, right = (at, width - 4) if check.requirement.direction == "at_least" else (4.0, at)
        shapes.append(Shape(kind="rect", css="wanted", x=left, y=middle - 9, width=right - left, height=18))
        says.append(f"required {requirement_symbol(check.requirement)}")
    shapes.append(Shape(kind="line", css="axis", x=4, y=middle, x2=width - 4, y2=middle))
    for one in check.references:
        if one.value is not None and math.isfinite(one.value):
            at = x(one.value)
            shapes.append(Shape(kind="line", css="mark reference", x=at, y=middle - 7, x2=at, y2=middle + 7))
            says.append(f"{one.name} {number(one.value)}")
    if check.interval is not None:
        left, right = x(check.interval.low), x(check.interval.high)
        shapes.append(
            Shape(
                kind="rect",
                css=f"interval {shown_verdict(check)}",
                x=left,
                y=middle - 3.5,
                width=max(right - left, 1.5),
                height=7,
            )
        )
        says.append(f"interval {number(check.interval.low)} to {number(check.interval.high)}")
    if check.requirement is not None:
        at = x(check.requirement.value)
        shapes.append(Shape(kind="line", css="mark threshold", x=at, y=middle - 10, x2=at, y2=middle + 10))
    if check.value is not None and math.isfinite(check.value):
        shapes.append(Shape(kind="dot", css=f"point {shown_verdict(check)}", x=x(check.value), y=middle, width=4.5))
        says.insert(0, f"value {number(check.value)}")
    for value, anchor, at in ((span[0], "start", 4.0), (span[1], "end", width - 4)):
        shapes.append(Shape(kind="text", css="end", x=at, y=height - 0.5, text=number(value, digits=2), anchor=anchor))
    return Drawing(width=width, height=height, label=", ".join(says) or "no value", shapes=tuple(shapes))
