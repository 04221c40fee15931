"""Compute figures from the quantities of measured rows: all seeds, with the numbers of the paper, on shared axes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from attnaudit.research.reproduction.figure_records import Curve, CurvePoint, Curves, Figure, Strip, Strips
from attnaudit.research.reproduction.paper_report import Line, Row

#: A quantity whose name ends like this is a standard deviation over texts, and gets no strip plot.
SPREAD = " std"


@dataclass(frozen=True, slots=True, kw_only=True)
class PointPlan:
    """One point of a curve.

    Attributes:
        label: The label of the point, such as "λ=0.5".
        x: A number, or the name of the quantity with the horizontal coordinate.
        y: The name of the quantity with the vertical coordinate.
    """

    label: str
    x: float | str
    y: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CurvePlan:
    """A figure with curves. A table has one such figure for each row.

    Attributes:
        name: The name of the figure, unique in the table.
        title: The title of the figure. It is shown after the title of the row.
        x_label: The label of the horizontal axis.
        y_label: The label of the vertical axis.
        caption: The text below the figure.
        lines: Name of a curve -> its points. The points of the first curve are labelled.
    """

    name: str
    title: str
    x_label: str
    y_label: str
    caption: str
    lines: Mapping[str, Sequence[PointPlan]]


def strip_figures(rows: Sequence[Row], drawn: Sequence[str]) -> list[Figure]:
    """Return one figure for each quantity that has a number in the paper, or that is in `drawn`.

    A figure has one strip for each row. All figures of a table have the same axis.

    Args:
        rows: The measured rows of one table.
        drawn: Names of further quantities.
    """
    lines = [line for row in rows for line in row.lines]
    known = dict.fromkeys(line.quantity for line in lines if line.paper is not None or line.quantity in drawn)
    by_quantity = {
        name: [strip for row in rows for line in row.lines if line.quantity == name and (strip := _strip(row, line))]
        for name in known
        if not name.endswith(SPREAD)
    }
    shown = {name: strips for name, strips in by_quantity.items() if strips}
    ends = [
        end
        for strips in shown.values()
        for one in strips
        for end in (*one.values, *([] if one.paper is None else [one.paper]))
    ]
    return [
        Figure(
            name=f"strips {name}",
            row="",
            title=_title(name, {line.words for line in lines if line.quantity == name}),
            caption="All measured rows. The other figures of this kind in this table have the same axis.",
            strips=Strips(x_label=name, low=min(ends), high=max(ends), strips=strips),
        )
        for name, strips in shown.items()
    ]


def _title(name: str, words: set[str]) -> str:
    """Return the title of a strip plot. A description that differs between rows is left out."""
    if len(words) > 1 or name in words:
        return name
    return f"{name}: {words.pop().removeprefix('… ')}"


def _strip(row: Row, line: Line) -> Strip | None:
    values = [value for value in line.values if value is not None]
    if not values:
        return None
    return Strip(label=row.name, values=values, paper=line.paper, counts=not row.excluded)


def curve_figures(rows: Sequence[Row], plans: Sequence[CurvePlan]) -> list[Figure]:
    """Return the curves of every row. All figures with the same plan have the same axes.

    Args:
        rows: The measured rows of one table.
        plans: The plans of the figures.
    """
    figures = []
    for plan in plans:
        by_row = [(row, curves) for row in rows if (curves := _curves(row, plan))]
        points = [one for _, curves in by_row for curve in curves for seed in curve.seeds for one in seed]
        xs, ys = [one.x for one in points], [one.y for one in points]
        figures += [
            Figure(
                name=plan.name,
                row=row.name,
                title=f"{row.title}: {plan.title}",
                caption=f"{plan.caption} Thin lines: one per seed; thick line: their mean.",
                curves=Curves(
                    x_label=plan.x_label,
                    y_label=plan.y_label,
                    x_low=min(xs),
                    x_high=max(xs),
                    y_low=min(ys),
                    y_high=max(ys),
                    curves=curves,
                ),
            )
            for row, curves in by_row
        ]
    return figures


def _curves(row: Row, plan: CurvePlan) -> list[Curve]:
    values = {line.quantity: line.values for line in row.lines}
    count = max((len(one) for one in values.values()), default=0)
    curves = [
        Curve(name=name, seeds=[_points(points, values, seed) for seed in range(count)])
        for name, points in plan.lines.items()
    ]
    return [Curve(name=one.name, seeds=[seed for seed in one.seeds if seed]) for one in curves if any(one.seeds)]


def _points(plans: Sequence[PointPlan], values: Mapping[str, Sequence[float | None]], seed: int) -> list[CurvePoint]:
    points = []
    for plan in plans:
        x = plan.x if isinstance(plan.x, float | int) else _value(values, plan.x, seed)
        y = _value(values, plan.y, seed)
        if x is not None and y is not None:
            points.append(CurvePoint(label=plan.label, x=float(x), y=y))
    return points


def _value(values: Mapping[str, Sequence[float | None]], name: str, seed: int) -> float | None:
    of_seeds = values.get(name, ())
    return of_seeds[seed] if seed < len(of_seeds) else None
