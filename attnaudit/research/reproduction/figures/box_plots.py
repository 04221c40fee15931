"""Draw box plots as shapes. Boxes with the same label are next to each other. The colour of a box shows its `side`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from attnaudit.report.charts import BOTTOM, WIDTH, Drawing, Scale, Shape
from attnaudit.research.reproduction.figures.figure_records import Box, Boxes
from attnaudit.research.reproduction.figures.horizontal_axis import horizontal_axis

#: All lengths are in pixels.
LEFT = 84.0
TOP, LANE, GAP = 24.0, 15.0, 10.0
BOX_HEIGHT = 9.0


def box_plots(record: Boxes) -> Drawing | None:
    """Draw the box plots of a figure. Return None if none of the boxes has a value."""
    drawn = [box for box in record.boxes if box.values]
    if not drawn:
        return None
    labels = list(dict.fromkeys(box.label for box in drawn))
    height = TOP + LANE * len(drawn) + GAP * len(labels) + BOTTOM
    values = [value for box in drawn for value in box.values]
    low, high = min(record.low, *values), max(record.high, *values)
    x, shapes = horizontal_axis(low, high, left=LEFT, top=TOP, bottom=height - BOTTOM, label=record.x_label)
    top = TOP + GAP / 2
    for label in labels:
        of_label = [box for box in drawn if box.label == label]
        middle = top + LANE * len(of_label) / 2
        shapes.append(Shape(kind="text", css="tick", x=LEFT - 8, y=middle + 3.5, text=label, anchor="end"))
        for place, box in enumerate(of_label):
            shapes += _box(box, x, top + LANE * (place + 0.5), record.sides)
        top += LANE * len(of_label) + GAP
    medians = "; ".join(
        f"{box.label}, {record.sides[box.side]}: median {np.median(box.values):.3f} of {len(box.values)}{_aside(box)}"
        for box in drawn
    )
    shown = {box.side for box in drawn}
    legend = tuple((f"s{side}", name) for side, name in enumerate(record.sides) if side in shown)
    label = f"{record.x_label}. {medians}"
    return Drawing(width=WIDTH, height=height, label=label, shapes=tuple(shapes), legend=legend)


def _box(box: Box, x: Scale, y: float, sides: Sequence[str]) -> list[Shape]:
    """Draw one box plot: whiskers to the extremes, a box between the quartiles, the median, and one dot per value.

    If the values do not count, there are rings instead of dots.
    """
    low, first, median, third, high = np.quantile(box.values, (0, 0.25, 0.5, 0.75, 1))
    css = f"s{box.side}"
    dots = css if box.counts else f"ring {css}"
    return [
        Shape(kind="line", css="axis", x=x(low), y=y, x2=x(high), y2=y),
        Shape(
            kind="rect",
            css=f"fill quartiles {css}",
            x=x(first),
            y=y - BOX_HEIGHT / 2,
            width=x(third) - x(first),
            height=BOX_HEIGHT,
            text=f"{box.label}, {sides[box.side]}: median {median:.3f}, n = {len(box.values)}{_aside(box)}",
        ),
        Shape(
            kind="line", css="mark threshold", x=x(median), y=y - BOX_HEIGHT / 2, x2=x(median), y2=y + BOX_HEIGHT / 2
        ),
        *(Shape(kind="dot", css=f"fill {dots}", x=x(value), y=y, width=2.0) for value in box.values),
    ]


def _aside(box: Box) -> str:
    return "" if box.counts else " (does not count)"
