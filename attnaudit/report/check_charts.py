"""The charts of one check: the histogram over instances, and the strip in the table of verdicts.

A strip is a small drawing that shows the value, the interval, the threshold and the references on one line.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from attnaudit.formatting import decimals, number, plural
from attnaudit.records import CheckRecord, Histogram
from attnaudit.records.unit_names import names_of
from attnaudit.report.charts import BOTTOM, HEIGHT, LEFT, RIGHT, WIDTH, Drawing, Scale, Shape, axes, finite, nice_ticks
from attnaudit.report.wording import shorten
from attnaudit.verdict_text import digits, displayed_name, interval_words, required_words, requirement_symbol

LANE_HEIGHT = 15.0
CHARACTER_WIDTH = 6.2  # estimated mean width of a character in the font of the charts
STRIP_WIDTH, STRIP_HEIGHT, STRIP_MIDDLE, STRIP_MARGIN = 200.0, 30.0, 12.0, 4.0
#: Statistics that are averages of the values in a histogram. They can be drawn on its horizontal axis.
AVERAGES = ("mean", "median", "proportion")


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A labelled vertical line on a chart.

    Attributes:
        value: The position on the horizontal axis, in the unit of the chart.
        text: The label.
        css: The CSS class: "value", "threshold" or "reference".
    """

    value: float
    text: str
    css: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedLabel:
    """The label of a mark and its place above the chart.

    Attributes:
        mark: The mark.
        centre: The horizontal centre of the label, in SVG units.
        lane: The line of text that contains the label, counted from 0 at the top.
    """

    mark: Mark
    centre: float
    lane: int


def check_marks(check: CheckRecord) -> list[Mark]:
    """Return marks for the threshold, the value and the references of a check, without those that are undefined."""
    marks = []
    if check.requirement is not None:
        marks.append(Mark(value=check.requirement.value, text=requirement_symbol(check.requirement), css="threshold"))
    if check.value is not None:
        text = f"{shorten(check.statistic, 24)} {number(check.value, digits=digits(check))}"
        marks.append(Mark(value=check.value, text=text, css="value"))
    for reference in check.references:
        if reference.value is not None:
            name = names_of(check.unit_names).named(displayed_name(reference.name))
            text = f"{shorten(name, 26)} {number(reference.value)}"
            marks.append(Mark(value=reference.value, text=text, css="reference"))
    return [mark for mark in marks if math.isfinite(mark.value)]


def place_labels(marks: Sequence[Mark], x: Scale) -> list[PlacedLabel]:
    """Place the label of each mark above its line, or to the right or left of it.

    Labels never overlap each other. If there is enough space, no line crosses the label of another mark.

    Args:
        marks: The marks.
        x: The horizontal scale of the chart.
    """
    placed: list[PlacedLabel] = []

    def box(mark: Mark, centre: float) -> tuple[float, float]:
        half = len(mark.text) * CHARACTER_WIDTH / 2
        return centre - half - 3, centre + half + 3

    def free(mark: Mark, centre: float, lane: int, *, avoid_lines: bool) -> bool:
        low, high = box(mark, centre)
        for label in placed:
            label_low, label_high = box(label.mark, label.centre)
            if label.lane == lane and low < label_high and label_low < high:
                return False
            if avoid_lines and label.lane < lane and low < x(label.mark.value) < high:
                return False
            if avoid_lines and label.lane > lane and label_low < x(mark.value) < label_high:
                return False
        return True

    for mark in sorted(marks, key=lambda m: m.value):
        half = len(mark.text) * CHARACTER_WIDTH / 2
        centres = [
            min(max(x(mark.value) + side * (half + 4), half + 2), max(WIDTH - half - 2, half + 2))
            for side in (0, 1, -1)
        ]
        choices = [(centre, lane, True) for lane in range(len(marks)) for centre in centres]
        choices += [(centres[0], lane, False) for lane in range(len(marks))]
        centre, lane, _ = next(c for c in choices if free(mark, c[0], c[1], avoid_lines=c[2]))
        placed.append(PlacedLabel(mark=mark, centre=centre, lane=lane))
    return placed


def histogram(check: CheckRecord, record: Histogram) -> Drawing | None:
    """Draw the histogram of the values per instance. The area of each bar is proportional to its count.

    If the statistic of the check is a mean, median or proportion of these values, its interval and its marks are drawn
    on top. Other statistics, such as a ratio or a difference, have another scale.

    Args:
        check: The check to which the values belong.
        record: The histogram.

    Returns:
        The drawing; None if no instance has a value.

    Raises:
        ValueError: The number of edges is not the number of counts plus 1.
    """
    edges, counts = record.edges, record.counts
    if len(edges) != len(counts) + 1:
        raise ValueError(f"Expected {len(counts) + 1} edges for {len(counts)} counts but got {len(edges)}.")
    total = sum(counts)
    if not total:
        return None
    averaged = check.statistic in AVERAGES
    marks = check_marks(check) if averaged else []
    interval = check.interval if averaged else None
    covered = [*edges, *(mark.value for mark in marks)]
    if interval is not None:
        covered += [interval.low, interval.high]
    x_ticks = nice_ticks(min(covered), max(covered), target=6)
    x = Scale(low=x_ticks[0], high=x_ticks[-1], start=LEFT, end=WIDTH - RIGHT)
    labels = place_labels(marks, x)
    top = 24 + LANE_HEIGHT * (1 + max((label.lane for label in labels), default=-1))
    height = HEIGHT + top - 24
    widths = [b - a for a, b in pairwise(edges)]
    usual_width = sorted(widths)[len(widths) // 2] or 1.0
    # The height of a bar with the usual width is its count. A wider bar is lower, so that its area represents its
    # count.
    heights = [c * usual_width / w if w > 0 else float(c) for c, w in zip(counts, widths, strict=True)]
    y_ticks = nice_ticks(0.0, max(heights), target=4)
    y = Scale(low=0.0, high=y_ticks[-1], start=height - BOTTOM, end=top + 14)
    shapes = axes(x, y, x_ticks=x_ticks, y_ticks=y_ticks, x_label=record.label, y_label="instances")
    if interval is not None:
        left, right = x(interval.low), x(interval.high)
        shapes.append(
            Shape(kind="rect", css="band", x=left, y=y.end, width=max(right - left, 1.0), height=y.start - y.end)
        )
    places = decimals(edges)
    for (low, high), count, bar_height in zip(pairwise(edges), counts, heights, strict=True):
        left, right = x(low), x(high)
        shapes.append(
            Shape(
                kind="rect",
                css="bar",
                x=left + 0.5,
                y=y(bar_height),
                width=max(right - left - 1, 0.75),
                height=y.start - y(bar_height),
                text=f"{number(low, digits=places)} to {number(high, digits=places)}: {plural(count, 'instance')}",
            )
        )
    for label in labels:
        base = 12 + LANE_HEIGHT * label.lane
        at, css = x(label.mark.value), label.mark.css
        shapes.append(Shape(kind="line", css=f"mark {css}", x=at, y=base + 4, x2=at, y2=y.start))
        shapes.append(Shape(kind="text", css=f"label {css}", x=label.centre, y=base, text=label.mark.text))
    description = f"Histogram of {record.label} over {plural(total, 'instance')}"
    if marks:
        description += f". Marked: {', '.join(mark.text for mark in marks)}"
    return Drawing(width=WIDTH, height=height, label=description, shapes=tuple(shapes))


def strip_range(checks: Iterable[CheckRecord]) -> tuple[float, float] | None:
    """Return a range that covers 0 and all numbers in the strips of some checks. Ends other than 0 have some padding.

    Without 0, a short interval could fill the whole strip and look uncertain. The range is None without numbers.
    """
    numbers: list[float | None] = []
    for check in checks:
        numbers += [check.value, *(mark.value for mark in check_marks(check))]
        if check.interval is not None:
            numbers += [check.interval.low, check.interval.high]
    known = finite(numbers)
    if not known:
        return None
    low, high = min(0.0, *known), max(0.0, *known)
    pad = 0.08 * (high - low) or 0.05
    return low - pad if low else 0.0, high + pad if high or not low else 0.0


def strip(check: CheckRecord, shown_range: tuple[float, float] | None) -> Drawing | None:
    """Draw the value, interval, threshold and references of a check on one line. The required side is shaded.

    Args:
        check: The check.
        shown_range: The lowest and the highest number on the line; None if there are no numbers to draw.

    Returns:
        The drawing; None if `shown_range` is None.
    """
    if shown_range is None:
        return None
    low, high = shown_range
    left, right, middle = STRIP_MARGIN, STRIP_WIDTH - STRIP_MARGIN, STRIP_MIDDLE
    x = Scale(low=low, high=high, start=left, end=right)
    shapes = []
    limit = check.requirement
    if limit is not None:
        start, end = (x(limit.value), right) if limit.direction == "at_least" else (left, x(limit.value))
        shapes.append(Shape(kind="rect", css="required", x=start, y=middle - 9, width=end - start, height=18))
    shapes.append(Shape(kind="line", css="axis", x=left, y=middle, x2=right, y2=middle))
    for value in finite(reference.value for reference in check.references):
        shapes.append(Shape(kind="line", css="mark reference", x=x(value), y=middle - 7, x2=x(value), y2=middle + 7))
    if check.interval is not None:
        start, end = x(check.interval.low), x(check.interval.high)
        css = f"interval {check.verdict}"
        shapes.append(Shape(kind="rect", css=css, x=start, y=middle - 3.5, width=max(end - start, 1.5), height=7))
    if limit is not None:
        at = x(limit.value)
        shapes.append(Shape(kind="line", css="mark threshold", x=at, y=middle - 10, x2=at, y2=middle + 10))
    if check.value is not None and math.isfinite(check.value):
        shapes.append(Shape(kind="dot", css=f"point {check.verdict}", x=x(check.value), y=middle, width=4.5))
    places = max(2, 1 - math.floor(math.log10(high - low)))
    for value, anchor, at in ((low, "start", left), (high, "end", right)):
        text = number(value, digits=places)
        shapes.append(Shape(kind="text", css="end", x=at, y=STRIP_HEIGHT - 0.5, text=text, anchor=anchor))
    return Drawing(width=STRIP_WIDTH, height=STRIP_HEIGHT, label=_strip_description(check), shapes=tuple(shapes))


def _strip_description(check: CheckRecord) -> str:
    """Return a description of a strip for screen readers."""
    parts = []
    if check.value is not None and math.isfinite(check.value):
        parts.append(f"value {number(check.value, digits=digits(check))}")
    if check.interval is not None:
        parts.append(f"interval {interval_words(check)}")
    if check.requirement is not None:
        parts.append(f"required {required_words(check.requirement)}")
    parts += [
        f"{names_of(check.unit_names).named(displayed_name(reference.name))} {number(reference.value)}"
        for reference in check.references
        if reference.value is not None and math.isfinite(reference.value)
    ]
    return ", ".join(parts) or "no value"
