"""Draw curves as shapes: a thin line for every seed, and a thick line with labelled points for the mean over seeds."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from attnaudit.report.charts import BOTTOM, HEIGHT, LEFT, RIGHT, WIDTH, Drawing, Scale, Shape, axes, nice_ticks
from attnaudit.research.reproduction.figure_records import Curve, CurvePoint, Curves

#: The y coordinate of the upper end of the vertical axis, in pixels.
TOP = 26.0
STYLES = 6
#: The approximate width of a character of a label, in pixels.
GLYPH = 7.0


def curve_plots(record: Curves) -> Drawing | None:
    """Draw the curves of a figure. Return None if no curve has a point."""
    drawn = [curve for curve in record.curves if any(curve.seeds)]
    if not drawn:
        return None
    x_ticks = nice_ticks(record.x_low, record.x_high, target=5)
    y_ticks = nice_ticks(record.y_low, record.y_high, target=4)
    x = Scale(low=x_ticks[0], high=x_ticks[-1], start=LEFT, end=WIDTH - RIGHT)
    y = Scale(low=y_ticks[0], high=y_ticks[-1], start=HEIGHT - BOTTOM, end=TOP)
    shapes = axes(x, y, x_ticks=x_ticks, y_ticks=y_ticks, x_label=record.x_label, y_label=record.y_label)
    styles = [f"s{index % STYLES}" for index in range(len(drawn))]
    for curve, css in zip(drawn, styles, strict=True):
        if len(curve.seeds) > 1:
            shapes += [Shape(kind="path", css=f"stroke seed {css}", text=_path(seed, x, y)) for seed in curve.seeds]
        mean = mean_curve(curve)
        shapes.append(Shape(kind="path", css=f"stroke {css}", text=_path(mean, x, y)))
        for point in mean:
            words = f"{curve.name}, {point.label}: {point.x:.3f}, {point.y:.3f}"
            shapes.append(Shape(kind="dot", css=f"fill {css}", x=x(point.x), y=y(point.y), width=3, text=words))
    for point in mean_curve(drawn[0]):
        shapes.append(_label(point, x, y))
    legend = tuple((css, curve.name) for css, curve in zip(styles, drawn, strict=True))
    label = f"{record.y_label} against {record.x_label}: {'; '.join(curve.name for curve in drawn)}"
    return Drawing(width=WIDTH, height=HEIGHT, label=label, shapes=tuple(shapes), legend=legend)


def _label(point: CurvePoint, x: Scale, y: Scale) -> Shape:
    """Draw the label of a point: to its right, or to its left if there is no room on the right."""
    right = x(point.x) + 4 + GLYPH * len(point.label) <= WIDTH
    anchor = "start" if right else "end"
    text = point.label.replace("=-", "=−")
    return Shape(
        kind="text", css="tick", x=x(point.x) + (4 if right else -4), y=y(point.y) - 5, text=text, anchor=anchor
    )


def mean_curve(curve: Curve) -> list[CurvePoint]:
    """Return the mean over the seeds of the points with the same label."""
    by_label: dict[str, list[CurvePoint]] = {}
    for seed in curve.seeds:
        for point in seed:
            by_label.setdefault(point.label, []).append(point)
    return [
        CurvePoint(
            label=label, x=statistics.fmean(one.x for one in points), y=statistics.fmean(one.y for one in points)
        )
        for label, points in by_label.items()
    ]


def _path(points: Sequence[CurvePoint], x: Scale, y: Scale) -> str:
    return " ".join(f"{'L' if place else 'M'}{x(one.x):.1f} {y(one.y):.1f}" for place, one in enumerate(points))
