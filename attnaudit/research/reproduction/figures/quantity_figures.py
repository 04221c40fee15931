"""Compute figures from the quantities of measured rows: all seeds, with the numbers of the paper, on shared axes."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from attnaudit.research.reproduction.corpora import corpus_title
from attnaudit.research.reproduction.figures.figure_records import Curve, CurvePoint, Curves, Figure, Strip, Strips
from attnaudit.research.reproduction.paper_report import Line, Row

#: A quantity whose name ends like this is a standard deviation over texts, and gets no strip plot.
SPREAD = " std"
SAME_AXIS = "All measured rows. Other figures with the same axis label in this table have the same axis."


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
        published: Name of a corpus -> a curve with numbers that others have published for it.
        about_published: Sentences that explain these numbers. They are part of the caption of figures that show them.
    """

    name: str
    title: str
    x_label: str
    y_label: str
    caption: str
    lines: Mapping[str, Sequence[PointPlan]]
    published: Mapping[str, Curve] = field(default_factory=dict)
    about_published: str = ""


def strip_figures(
    rows: Sequence[Row], drawn: Sequence[str], *, left_out: Collection[str] = (), compared_with: str = "paper"
) -> list[Figure]:
    """Return one figure for each quantity that has a number in the paper, or that is in `drawn`.

    A figure has one strip for each row. Figures of quantities of the same kind, such as accuracies, have the same axis.

    Args:
        rows: The measured rows of one table.
        drawn: Names of further quantities.
        left_out: The corpora that the paper leaves out of the table. Their rows do not count.
        compared_with: Whose numbers ours are compared with (see `TablePlan`).
    """
    pairs = [(row, line) for row in rows for line in row.lines]
    known = dict.fromkeys(line.quantity for _, line in pairs if line.paper is not None or line.quantity in drawn)
    by_quantity = {
        name: [(row, line) for row, line in pairs if line.quantity == name and any(v is not None for v in line.values)]
        for name in known
        if not name.endswith(SPREAD)
    }
    shown = {name: cells for name, cells in by_quantity.items() if cells}
    strips = {name: [_strip(row, line, left_out) for row, line in cells] for name, cells in shown.items()}
    axes = {name: cells[0][1].axis for name, cells in shown.items()}
    numbers: dict[str, list[float]] = {}
    for name, axis in axes.items():
        numbers.setdefault(axis.label, []).extend(end for one in strips[name] for end in _ends(one))
    return [
        Figure(
            name=f"strips {name}",
            row="",
            title=cells[0][1].alone,
            caption=" ".join((_classes(cells), SAME_AXIS)).lstrip(),
            strips=Strips(
                x_label=axes[name].label,
                low=axes[name].start(numbers[axes[name].label]),
                high=max(axes[name].high, *numbers[axes[name].label]),
                strips=strips[name],
                compared_with=compared_with,
            ),
        )
        for name, cells in shown.items()
    ]


def _classes(cells: Sequence[tuple[Row, Line]]) -> str:
    """Return a sentence that names the class of each corpus. It is "" if the quantity is not about one class."""
    by_class: dict[str, list[str]] = {}
    for row, line in cells:
        if line.class_name:
            by_class.setdefault(line.class_name, []).append(corpus_title(row.corpus))
    if not by_class:
        return ""
    named = [f"{name} ({', '.join(dict.fromkeys(corpora))})" for name, corpora in by_class.items()]
    return f"Classes are in alphabetical order. The class is {', '.join(named)}."


def _ends(strip: Strip) -> list[float]:
    return [*strip.values, *([] if strip.paper is None else [strip.paper])]


def _strip(row: Row, line: Line, left_out: Collection[str]) -> Strip:
    seeds = row.provenance.seeds if row.provenance is not None else []
    defined = [place for place, value in enumerate(line.values) if value is not None]
    return Strip(
        label=row.label or row.title,
        values=[value for value in line.values if value is not None],
        paper=line.paper,
        counts=not row.excluded and row.corpus not in left_out,
        seeds=tuple(seeds[place] for place in defined) if len(seeds) == len(line.values) else (),
    )


def curve_figures(rows: Sequence[Row], plans: Sequence[CurvePlan]) -> list[Figure]:
    """Return the curves of every row. All figures with the same plan have the same axes.

    Args:
        rows: The measured rows of one table.
        plans: The plans of the figures.
    """
    figures = []
    for plan in plans:
        by_row = [
            (row, curves, (plan.published[row.corpus],) if row.corpus in plan.published else ())
            for row in rows
            if (curves := _curves(row, plan))
        ]
        shown = [curve for _, curves, published in by_row for curve in (*curves, *published)]
        points = [one for curve in shown for seed in curve.seeds for one in seed]
        xs, ys = [one.x for one in points], [one.y for one in points]
        figures += [
            Figure(
                name=plan.name,
                row=row.name,
                title=f"{row.title}: {plan.title}",
                caption=" ".join(
                    (
                        plan.caption,
                        "Thin lines: one per seed; thick line: their mean.",
                        *([plan.about_published] if published else []),
                    )
                ),
                curves=Curves(
                    x_label=plan.x_label,
                    y_label=plan.y_label,
                    x_low=min(xs),
                    x_high=max(xs),
                    y_low=min(ys),
                    y_high=max(ys),
                    curves=curves,
                    published=published,
                ),
            )
            for row, curves, published in by_row
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
