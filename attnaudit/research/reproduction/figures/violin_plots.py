"""Draw split violins as shapes.

Each bin has one row. One half of its violin lies above the line of the row, and the other half below.
"""

from __future__ import annotations

from attnaudit.report.charts import BOTTOM, WIDTH, Drawing, Scale, Shape
from attnaudit.research.reproduction.figures.figure_records import Violin, Violins
from attnaudit.research.reproduction.figures.horizontal_axis import horizontal_axis

#: All lengths are in pixels.
LEFT = 84.0
TOP, ROW = 24.0, 44.0


def violin_plots(record: Violins, *, highest: float = 0.0) -> Drawing | None:
    """Draw the violins of a figure.

    Args:
        record: The violins.
        highest: A value that the horizontal axis must reach, so that several figures have the same axis.

    Returns:
        The drawing. None if there are no violins.
    """
    if not record.violins:
        return None
    height = TOP + ROW * len(record.bins) + BOTTOM
    positions = [position for violin in record.violins for position in violin.at]
    high = max(highest, *positions)
    x, shapes = horizontal_axis(0.0, high, left=LEFT, top=TOP, bottom=height - BOTTOM, label=record.x_label)
    shapes.append(Shape(kind="text", css="axis-name", x=4, y=14, text=record.y_label, anchor="start"))
    for place, bin_label in enumerate(record.bins):
        middle = TOP + ROW * (len(record.bins) - place - 0.5)
        shapes.append(Shape(kind="text", css="tick", x=LEFT - 8, y=middle + 3.5, text=bin_label, anchor="end"))
        shapes.append(Shape(kind="line", css="axis", x=x.start, y=middle, x2=x.end, y2=middle))
        for violin in (violin for violin in record.violins if violin.bin == place):
            shapes += _half(violin, x, middle)
    split = len(record.sides) > 1
    legend = tuple((f"s{i}", f"predicted {name}" if split else name) for i, name in enumerate(record.sides))
    label = f"{record.x_label} by {record.y_label}. " + "; ".join(
        f"{record.bins[violin.bin]}, {record.sides[violin.side]}: median {violin.median:.3f} of {violin.n}"
        for violin in record.violins
    )
    return Drawing(width=WIDTH, height=height, label=label, shapes=tuple(shapes), legend=legend)


def _half(violin: Violin, x: Scale, middle: float) -> list[Shape]:
    height = (ROW / 2 - 4) * (1 if violin.side else -1)
    outline = zip(violin.at, violin.density, strict=True)
    points = [f"{x(at):.1f} {middle + height * density:.1f}" for at, density in outline]
    first, last = f"{x(violin.at[0]):.1f} {middle:.1f}", f"{x(violin.at[-1]):.1f} {middle:.1f}"
    return [
        Shape(kind="path", css=f"fill s{violin.side}", text=f"M{first}L{'L'.join(points)}L{last}Z"),
        Shape(
            kind="line",
            css="mark threshold",
            x=x(violin.median),
            y=middle,
            x2=x(violin.median),
            y2=middle + height,
        ),
    ]
