"""The numbers of a chart as a table, which the pages show below the chart."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from attnaudit.formatting import number
from attnaudit.records import Chart
from attnaudit.research.reproduction.figures.curve_plots import mean_curve
from attnaudit.research.reproduction.figures.figure_records import Boxes, Curves, Figure, Strip, Strips, Violins

Row = tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChartNumbers:
    """A table with the numbers of a chart.

    Attributes:
        head: The names of the columns.
        rows: The cells of each row.
        names: How many columns, from the left, contain names instead of numbers.
    """

    head: Row
    rows: list[Row]
    names: int = 1


def chart_numbers(figure: Figure) -> ChartNumbers | None:
    """Return the numbers of a figure. Return None for a counterfactual, whose text shows them.

    The name of a row of the figure is given once, with one column per seed. In a chart with several series, each series
    has a column.
    """
    if figure.strips is not None:
        return _of_strips(figure.strips)
    if figure.curves is not None:
        return _of_curves(figure.curves)
    if figure.boxes is not None:
        return _of_boxes(figure.boxes)
    if figure.violins is not None:
        return _of_violins(figure.violins)
    return None if figure.chart is None else _of_chart(figure.chart)


def _of_strips(record: Strips) -> ChartNumbers:
    seeds = sorted({seed for strip in record.strips for seed in strip.seeds})
    without_seeds = any(not strip.seeds for strip in record.strips)
    with_paper = any(strip.paper is not None for strip in record.strips)

    def cells(strip: Strip) -> Row:
        by_seed = dict(zip(strip.seeds, map(number, strip.values), strict=True)) if strip.seeds else {}
        return (
            strip.label if strip.counts else f"{strip.label} (does not count)",
            *(by_seed.get(seed, "") for seed in seeds),
            *(["" if strip.seeds else ", ".join(map(number, strip.values))] if without_seeds else []),
            *(["" if strip.paper is None else number(strip.paper)] if with_paper else []),
        )

    return ChartNumbers(
        head=(
            "row",
            *(f"seed {seed}" for seed in seeds),
            *(["over all seeds" if seeds else "ours"] if without_seeds else []),
            *([record.compared_with] if with_paper else []),
        ),
        rows=[cells(strip) for strip in record.strips],
    )


def _of_curves(record: Curves) -> ChartNumbers:
    several = any(len(curve.seeds) > 1 for curve in record.curves)
    mean = f" ({'ours: ' if record.published else ''}mean over seeds)" if several else ""
    return ChartNumbers(
        head=("curve", "point", f"{record.x_label}{mean}", f"{record.y_label}{mean}"),
        rows=[
            (curve.name, point.label.replace("=-", "=−"), number(point.x), number(point.y))
            for curve in (*record.curves, *record.published)
            for point in mean_curve(curve)
        ],
        names=2,
    )


def _of_boxes(record: Boxes) -> ChartNumbers:
    rows = []
    for box in record.boxes:
        if box.values:
            ends = [float(value) for value in np.quantile(box.values, (0, 0.25, 0.5, 0.75, 1))]
            rows.append((f"{box.label}, {record.sides[box.side]}", str(len(box.values)), *map(number, ends)))
    quantiles = ("smallest", "first quartile", "median", "third quartile", "largest")
    return ChartNumbers(head=("box", "seeds", *quantiles), rows=rows)


def _of_violins(record: Violins) -> ChartNumbers:
    split = len(record.sides) > 1
    ordered = sorted(record.violins, key=lambda violin: (violin.bin, violin.side))
    return ChartNumbers(
        head=(record.y_label, *(["predicted class"] if split else []), "median", "n"),
        rows=[
            (record.bins[one.bin], *([record.sides[one.side]] if split else []), number(one.median), number(one.n))
            for one in ordered
        ],
        names=2 if split else 1,
    )


def _of_chart(record: Chart) -> ChartNumbers:
    xs = sorted({x for series in record.series for x in series.x})
    columns = [dict(zip(series.x, series.y, strict=False)) for series in record.series]
    # Every bar chart of a paper is a histogram.
    what = f"{record.x_label}, middle of the bin" if record.kind == "bar" else record.x_label
    return ChartNumbers(
        head=(what, *(series.name for series in record.series)),
        rows=[
            (
                f"{x:g}".replace("-", "−"),
                *(number(column[x], exponent=False) if x in column else "" for column in columns),
            )
            for x in xs
        ],
    )
