"""Split violins as shapes: one row per bin, one half above and one below its line."""

from __future__ import annotations

from attnaudit.report.charts import BOTTOM, RIGHT, WIDTH, Drawing, Scale, Shape, nice_ticks, tick_labels
from attnaudit.research.reproduction.figure_records import Violin, Violins

LEFT = 84.0
TOP, ROW = 24.0, 44.0


def violins(one: Violins) -> Drawing | None:
    """None where no violin is defined."""
    if not one.violins:
        return None
    height = TOP + ROW * len(one.bins) + BOTTOM
    ticks = nice_ticks(0.0, max(x for v in one.violins for x in v.at), target=5)
    x = Scale(low=ticks[0], high=ticks[-1], start=LEFT, end=WIDTH - RIGHT)
    base = height - BOTTOM
    shapes = [
        Shape(kind="text", css="axis-name", x=(x.start + x.end) / 2, y=base + 33, text=one.x_label),
        Shape(kind="text", css="axis-name", x=4, y=14, text=one.y_label, anchor="start"),
    ]
    for tick, label in zip(ticks, tick_labels(ticks), strict=True):
        shapes.append(Shape(kind="line", css="grid", x=x(tick), y=TOP, x2=x(tick), y2=base))
        shapes.append(Shape(kind="text", css="tick", x=x(tick), y=base + 16, text=label))
    for place, label in enumerate(one.bins):
        middle = TOP + ROW * (len(one.bins) - place - 0.5)
        shapes.append(Shape(kind="text", css="tick", x=LEFT - 8, y=middle + 3.5, text=label, anchor="end"))
        shapes.append(Shape(kind="line", css="axis", x=x.start, y=middle, x2=x.end, y2=middle))
        for violin in (v for v in one.violins if v.bin == place):
            shapes += _half(violin, x, middle)
    legend = tuple((f"s{i}", f"predicted {name}" if len(one.sides) > 1 else name) for i, name in enumerate(one.sides))
    label = f"{one.x_label} by {one.y_label}. " + "; ".join(
        f"{one.bins[v.bin]}, {one.sides[v.side]}: median {v.median:.3f} of {v.n}" for v in one.violins
    )
    return Drawing(width=WIDTH, height=height, label=label, shapes=tuple(shapes), legend=legend)


def _half(violin: Violin, x: Scale, middle: float) -> list[Shape]:
    sign = 1 if violin.side else -1
    tall = ROW / 2 - 4
    points = [f"{x(at):.1f} {middle + sign * tall * d:.1f}" for at, d in zip(violin.at, violin.density, strict=True)]
    ends = f"{x(violin.at[0]):.1f} {middle:.1f}", f"{x(violin.at[-1]):.1f} {middle:.1f}"
    return [
        Shape(kind="path", css=f"fill s{violin.side}", text=f"M{ends[0]}L{'L'.join(points)}L{ends[1]}Z"),
        Shape(
            kind="line",
            css="mark threshold",
            x=x(violin.median),
            y=middle,
            x2=x(violin.median),
            y2=middle + sign * tall,
        ),
    ]
