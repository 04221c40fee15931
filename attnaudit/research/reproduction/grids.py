"""Rows whose models differ in one number, such as λ of a projection: trends over it, and lines against it."""

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

#: role -> the number that its model has
Grid = Mapping[str, float]


def trend_of_means(grid: Grid, column: str) -> Callable[[Models], Reading]:
    """Kendall's τ-b, over the models, of the grid's number with the mean of a measured column; n is the models where
    the column is defined."""

    def read(models: Models) -> Reading:
        found = {role: defined(models[role], column) for role in grid}
        return _tau([(grid[role], statistics.fmean(values)) for role, values in found.items() if values])

    return read


def trend_of_texts(grid: Grid, column: str) -> Callable[[Models], Reading]:
    """The same over all pairs of a model and a text; n is the pairs. As the grid's numbers are tied between texts, it
    stays below 1 in size even where every text follows the grid."""

    def read(models: Models) -> Reading:
        return _tau([(grid[role], value) for role in grid for value in defined(models[role], column)])

    return read


def _tau(pairs: Sequence[tuple[float, float]]) -> Reading:
    if len(pairs) < 2:
        return None, len(pairs)
    left, right = torch.tensor(pairs, dtype=torch.float64).unbind(1)
    tau = kendall_tau_b(left, right).item()
    return (None if math.isnan(tau) else tau), len(pairs)


def means(grid: Grid, models: Models, column: str) -> dict[float, float]:
    """The grid's number -> the mean of a measured column, where that is defined."""
    found = {number: defined(models[role], column) for role, number in grid.items()}
    return {number: statistics.fmean(values) for number, values in sorted(found.items()) if values}


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
    """A line over the grid for each entry of series: its name -> (x -> y)."""
    lines = [Series(name=called, x=list(points), y=list(points.values())) for called, points in series.items()]
    return Figure(
        name=name,
        row=row.name,
        title=f"{row.title}: {title}",
        caption=caption or "Means over the texts of the first seed's models.",
        chart=Chart(title=title, x_label=x_label, y_label=y_label, kind="line", series=lines),
    )


def overlaid(
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
    """Histograms of several measures of the same texts on one axis, each as shares of its own values."""
    edges = np.linspace(low, high, bins + 1)
    middle = [round(float(x), 6) for x in (edges[:-1] + edges[1:]) / 2]
    series = []
    for called, numbers in values.items():
        counts, _ = np.histogram(np.clip(numbers, low, high), bins=edges)
        shares: list[float | None] = [round(float(c), 5) for c in counts / max(1, len(numbers))]
        series.append(Series(name=f"{called} (n={len(numbers):,})", x=middle, y=shares))
    return Figure(
        name=name,
        row=row.name,
        title=f"{row.title}: {title}",
        caption=caption,
        chart=Chart(title=title, x_label=x_label, y_label="share", kind="bar", series=series),
    )
