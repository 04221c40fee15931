"""Box plots as shapes: one lane per box, lanes of one label together, one colour per side."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from attnaudit.report.charts import BOTTOM, RIGHT, WIDTH, Drawing, Scale, Shape, nice_ticks, tick_labels
from attnaudit.research.reproduction.figure_records import Box, Boxes

LEFT = 84.0
TOP, LANE, GAP = 24.0, 15.0, 10.0
TALL = 9.0


def boxes(one: Boxes) -> Drawing | None:
    """None where no box has a value."""
    there = [box for box in one.boxes if box.values]
    if not there:
        return None
    labels = list(dict.fromkeys(box.label for box in there))
    height = TOP + LANE * len(there) + GAP * len(labels) + BOTTOM
    values = [x for box in there for x in box.values]
    ticks = nice_ticks(min(0.0, *values), max(1.0, *values), target=5)
    x = Scale(low=ticks[0], high=ticks[-1], start=LEFT, end=WIDTH - RIGHT)
    base = height - BOTTOM
    shapes = [Shape(kind="text", css="axis-name", x=(x.start + x.end) / 2, y=base + 33, text=one.x_label)]
    for tick, text in zip(ticks, tick_labels(ticks), strict=True):
        shapes.append(Shape(kind="line", css="grid", x=x(tick), y=TOP, x2=x(tick), y2=base))
        shapes.append(Shape(kind="text", css="tick", x=x(tick), y=base + 16, text=text))
    top = TOP + GAP / 2
    for label in labels:
        mine = [box for box in there if box.label == label]
        middle = top + LANE * len(mine) / 2
        shapes.append(Shape(kind="text", css="tick", x=LEFT - 8, y=middle + 3.5, text=label, anchor="end"))
        for place, box in enumerate(mine):
            shapes += _box(box, x, top + LANE * (place + 0.5), one.sides)
        top += LANE * len(mine) + GAP
    told = "; ".join(
        f"{b.label}, {one.sides[b.side]}: median {np.median(b.values):.3f} of {len(b.values)}" for b in there
    )
    legend = tuple((f"s{side}", name) for side, name in enumerate(one.sides))
    return Drawing(width=WIDTH, height=height, label=f"{one.x_label}. {told}", shapes=tuple(shapes), legend=legend)


def _box(box: Box, x: Scale, y: float, sides: Sequence[str]) -> list[Shape]:
    """Whiskers to the ends, a box from the first to the third quartile, the median, and a dot per value."""
    low, first, median, third, high = np.quantile(box.values, (0, 0.25, 0.5, 0.75, 1))
    css = f"s{box.side}"
    return [
        Shape(kind="line", css="axis", x=x(low), y=y, x2=x(high), y2=y),
        Shape(
            kind="rect",
            css=f"fill quartiles {css}",
            x=x(first),
            y=y - TALL / 2,
            width=x(third) - x(first),
            height=TALL,
            text=f"{box.label}, {sides[box.side]}: median {median:.3f}, n = {len(box.values)}",
        ),
        Shape(kind="line", css="mark threshold", x=x(median), y=y - TALL / 2, x2=x(median), y2=y + TALL / 2),
        *(Shape(kind="dot", css=f"fill {css}", x=x(value), y=y, width=2.0) for value in box.values),
    ]
