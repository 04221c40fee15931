"""Trends and charts for rows whose models differ in one number, such as λ of a projection."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch

from attnaudit.metrics import kendall_tau_b
from attnaudit.records import Chart, Series
from attnaudit.research.reproduction.figure_records import Figure
from attnaudit.research.reproduction.paper_tables import Models, Reading, RowPlan, defined

#: role -> the number by which its model differs from the others
Grid = Mapping[str, float]


def trend_of_means(grid: Grid, column: str) -> Callable[[Models], Reading]:
    """Read Kendall's τ-b over the models, between the number of the grid and the mean of a measured column.

    n is the number of models with a defined value in the column. The value is None with fewer than two of them.
    """

    def read(models: Models) -> Reading:
        columns = {role: defined(models[role], column) for role in grid}
        return _tau([(grid[role], statistics.fmean(values)) for role, values in columns.items() if values])

    return read


def trend_of_texts(grid: Grid, column: str) -> Callable[[Models], Reading]:
    """Read Kendall's τ-b over all pairs of a model and a text, between the number of the grid and a measured column.

    n is the number of pairs. All texts of a model have the same number, so |τ-b| stays below 1 even if every text
    follows the grid.
    """

    def read(models: Models) -> Reading:
        return _tau([(grid[role], value) for role in grid for value in defined(models[role], column)])

    return read


def _tau(pairs: Sequence[tuple[float, float]]) -> Reading:
    if len(pairs) < 2:
        return None, len(pairs)
    left, right = torch.tensor(pairs, dtype=torch.float64).unbind(1)
    tau = kendall_tau_b(left, right).item()
    return (None if math.isnan(tau) else tau), len(pairs)


def grid_means(grid: Grid, models: Models, column: str) -> dict[float, float]:
    """Return number of the grid -> mean of a measured column, sorted, for the models where the column is defined."""
    columns = {number: defined(models[role], column) for role, number in grid.items()}
    return {number: statistics.fmean(values) for number, values in sorted(columns.items()) if values}


def grid_chart(
    row: RowPlan,
    name: str,
    title: str,
    x_label: str,
    y_label: str,
    series: Mapping[str, Mapping[float, float]],
    *,
    caption: str = "",
) -> Figure:
    """Return a line chart with the numbers of the grid on the horizontal axis.

    Args:
        row: the row that the figure belongs to.
        name: name of the figure.
        title: its title, printed after the row's.
        x_label: label of the horizontal axis.
        y_label: label of the vertical axis.
        series: name of a line -> x -> y.
        caption: text below the figure; "" for the default caption.
    """
    lines = [Series(name=label, x=list(points), y=list(points.values())) for label, points in series.items()]
    return Figure(
        name=name,
        row=row.name,
        title=f"{row.title}: {title}",
        caption=caption or "Means over the texts, with the models of the first seed.",
        chart=Chart(title=title, x_label=x_label, y_label=y_label, kind="line", series=lines),
    )


def overlaid_histograms(
    row: RowPlan,
    name: str,
    title: str,
    x_label: str,
    values: Mapping[str, Sequence[float]],
    *,
    low: float,
    high: float,
    bins: int,
    caption: str,
) -> Figure:
    """Return histograms of several measures of the same texts on one axis.

    Args:
        row: the row that the figure belongs to.
        name: name of the figure.
        title: its title, printed after the row's.
        x_label: label of the horizontal axis.
        values: name of a measure -> its values; its histogram shows shares of these values.
        low: left edge of the first bin, which also counts smaller values.
        high: right edge of the last bin, which also counts larger values.
        bins: number of bins.
        caption: text below the figure.
    """
    edges = np.linspace(low, high, bins + 1)
    middle = [round(float(x), 6) for x in (edges[:-1] + edges[1:]) / 2]
    series = []
    for measure, numbers in values.items():
        counts, _ = np.histogram(np.clip(numbers, low, high), bins=edges)
        shares: list[float | None] = [round(float(count), 5) for count in counts / max(1, len(numbers))]
        series.append(Series(name=f"{measure} (n={len(numbers):,})", x=middle, y=shares))
    return Figure(
        name=name,
        row=row.name,
        title=f"{row.title}: {title}",
        caption=caption,
        chart=Chart(title=title, x_label=x_label, y_label="share", kind="bar", series=series),
    )
