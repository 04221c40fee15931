"""Draw curves as shapes: a thin line for every seed, and a thick line with labelled points for the mean over seeds.

Numbers that others have published are squares with a label.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from attnaudit.report.charts import BOTTOM, HEIGHT, LEFT, RIGHT, WIDTH, Drawing, Scale, Shape, axes, nice_ticks
from attnaudit.research.reproduction.figures.figure_records import Curve, CurvePoint, Curves
from attnaudit.research.reproduction.figures.label_placement import GLYPH, Box, Position, place_labels

#: The y coordinate of the upper end of the vertical axis, in pixels.
TOP = 26.0
STYLES = 6
#: The width of a square, and the distance between labels and the axes, in pixels.
SQUARE, GAP = 7.0, 3.0
#: The CSS classes of published numbers.
PUBLISHED = "published"


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
            words = _in_words(curve, point)
            shapes.append(Shape(kind="dot", css=f"fill {css}", x=x(point.x), y=y(point.y), width=3, text=words))
    published = [(curve, point) for curve in record.published for point in mean_curve(curve)]
    shapes += [_square(x(point.x), y(point.y), _in_words(curve, point)) for curve, point in published]
    labelled = [*mean_curve(drawn[0]), *(point for _, point in published)]
    for label in place_labels(
        [(point.label.replace("=-", "=−"), (x(point.x), y(point.y))) for point in labelled],
        inside=Box(left=x.start + GAP, top=GAP, right=WIDTH - GAP, bottom=y.start - GAP),
        taken=[Box(left=0.0, top=0.0, right=GLYPH * (len(record.y_label) + 1), bottom=y.end - GAP)],
        points=[
            *((x(point.x), y(point.y)) for curve in drawn for point in mean_curve(curve)),
            *((x(point.x), y(point.y)) for _, point in published),
        ],
        lines=[_corners(mean_curve(curve), x, y) for curve in drawn],
    ):
        shapes += label.shapes()
    legend = (
        *((css, curve.name) for css, curve in zip(styles, drawn, strict=True)),
        *((f"{PUBLISHED} square", curve.name) for curve in record.published),
    )
    names = "; ".join(curve.name for curve in (*drawn, *record.published))
    label_of_all = f"{record.y_label} against {record.x_label}: {names}"
    return Drawing(width=WIDTH, height=HEIGHT, label=label_of_all, shapes=tuple(shapes), legend=legend)


def _in_words(curve: Curve, point: CurvePoint) -> str:
    return f"{curve.name}, {point.label}: {point.x:.3f}, {point.y:.3f}"


def _square(x: float, y: float, words: str) -> Shape:
    left, top = x - SQUARE / 2, y - SQUARE / 2
    return Shape(kind="rect", css=f"fill {PUBLISHED}", x=left, y=top, width=SQUARE, height=SQUARE, text=words)


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


def _corners(points: Sequence[CurvePoint], x: Scale, y: Scale) -> list[Position]:
    return [(x(one.x), y(one.y)) for one in points]


def _path(points: Sequence[CurvePoint], x: Scale, y: Scale) -> str:
    corners = enumerate(_corners(points, x, y))
    return " ".join(f"{'L' if place else 'M'}{across:.1f} {down:.1f}" for place, (across, down) in corners)
