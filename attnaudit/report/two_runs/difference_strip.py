"""A small drawing of a paired difference: its interval on one line around zero."""

from __future__ import annotations

import math

from attnaudit.formatting import number
from attnaudit.records.comparison_records import PairedValue
from attnaudit.report.charts import Drawing, Scale, Shape
from attnaudit.report.check_charts import STRIP_HEIGHT, STRIP_MARGIN, STRIP_MIDDLE, STRIP_WIDTH


def difference_strip(paired: PairedValue, css: str) -> Drawing | None:
    """Draw a difference and its interval. Zero is in the middle, and the better side is shaded.

    Args:
        paired: The difference.
        css: The verdict whose colour the drawing gets.

    Returns:
        The drawing; None if there is no interval, or if a bound is infinite.
    """
    interval, value = paired.interval, paired.difference
    if interval is None or value is None or not all(map(math.isfinite, (interval.low, interval.high, value))):
        return None
    reach = 1.1 * max(abs(interval.low), abs(interval.high), abs(value)) or 1.0
    left, right, middle = STRIP_MARGIN, STRIP_WIDTH - STRIP_MARGIN, STRIP_MIDDLE
    x = Scale(low=-reach, high=reach, start=left, end=right)
    shapes = []
    if paired.direction is not None:
        start = x(0) if paired.direction == "at_least" else left
        shapes.append(Shape(kind="rect", css="required", x=start, y=middle - 9, width=right - x(0), height=18))
    shapes.append(Shape(kind="line", css="axis", x=left, y=middle, x2=right, y2=middle))
    start, end = x(interval.low), x(interval.high)
    width = max(end - start, 1.5)
    shapes.append(Shape(kind="rect", css=f"interval {css}", x=start, y=middle - 3.5, width=width, height=7))
    shapes.append(Shape(kind="line", css="mark threshold", x=x(0), y=middle - 10, x2=x(0), y2=middle + 10))
    shapes.append(Shape(kind="dot", css=f"point {css}", x=x(value), y=middle, width=4.5))
    for bound, anchor, at in ((-reach, "start", left), (reach, "end", right)):
        text = number(bound, digits=2)
        shapes.append(Shape(kind="text", css="end", x=at, y=STRIP_HEIGHT - 0.5, text=text, anchor=anchor))
    label = f"difference {number(value)}, interval {number(interval.low)} to {number(interval.high)}"
    return Drawing(width=STRIP_WIDTH, height=STRIP_HEIGHT, label=label, shapes=tuple(shapes))
