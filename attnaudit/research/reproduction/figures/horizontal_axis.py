"""The horizontal axis of drawings with one lane per row, such as box plots."""

from __future__ import annotations

from attnaudit.report.charts import RIGHT, WIDTH, Scale, Shape, nice_ticks, tick_labels
from attnaudit.research.reproduction.figures.label_placement import GLYPH


def horizontal_axis(
    low: float, high: float, *, left: float, top: float, bottom: float, label: str
) -> tuple[Scale, list[Shape]]:
    """Return the scale of a horizontal axis, and its shapes: its name, and a grid line with a label at each tick.

    Args:
        low: The lowest value that the axis must reach.
        high: The highest value that the axis must reach.
        left: The left end of the axis, in pixels. Its right end is at the right margin of all charts, or further left
            if the last label needs more space.
        top: The upper end of the grid lines, in pixels.
        bottom: The lower end of the grid lines, in pixels.
        label: The name of the axis.
    """
    ticks = nice_ticks(low, high, target=5)
    texts = tick_labels(ticks)
    margin = max(RIGHT, GLYPH * len(texts[-1]) / 2)
    x = Scale(low=ticks[0], high=ticks[-1], start=left, end=WIDTH - margin)
    shapes = [Shape(kind="text", css="axis-name", x=(x.start + x.end) / 2, y=bottom + 33, text=label)]
    for tick, text in zip(ticks, texts, strict=True):
        shapes.append(Shape(kind="line", css="grid", x=x(tick), y=top, x2=x(tick), y2=bottom))
        shapes.append(Shape(kind="text", css="tick", x=x(tick), y=bottom + 16, text=text))
    return x, shapes
