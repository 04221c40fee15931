"""Rank correlations and charts for rows whose models differ only in one number, such as λ of a projection."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch

from attnaudit.metrics import kendall_tau_b
from attnaudit.records import Chart, Series
from attnaudit.research.reproduction.figures.figure_records import Figure
from attnaudit.research.reproduction.paper_tables import Models, Reading, RowPlan, defined

#: Role -> the number in which the model of the role differs from the other models.
Grid = Mapping[str, float]


def trend_of_means(grid: Grid, column: str) -> Callable[[Models], Reading]:
    """Return a function that computes whether the mean of a column rises with the setting in which the models differ.

    The function returns Kendall's τ-b between the setting of each model and the mean of the column over the texts of
    the model. It also returns the number of models for which the mean is defined. τ-b is None if there are fewer than
    two such models, or if all settings or all means are equal.

    Args:
        grid: Role -> the setting of the model.
        column: The name of the column.
    """

    def read(models: Models) -> Reading:
        columns = {role: defined(models[role], column) for role in grid}
        return _tau([(grid[role], statistics.fmean(values)) for role, values in columns.items() if values])

    return read


def trend_of_texts(grid: Grid, column: str) -> Callable[[Models], Reading]:
    """Return a function that computes whether the values of texts rise with the setting in which the models differ.

    The function returns Kendall's τ-b over all pairs of a model and a text. It compares the setting of the model with
    the value of the column for the text. It also returns the number of pairs. All texts of a model have the same
    setting, while their values differ. |τ-b| is therefore below 1, even if the value of every text grows with the
    setting.

    Args:
        grid: Role -> the setting of the model.
        column: The name of the column.
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
        row: The row that the figure belongs to.
        name: The name of the figure.
        title: The title of the figure. It is shown after the title of the row.
        x_label: The label of the horizontal axis.
        y_label: The label of the vertical axis.
        series: Name of a line -> x -> y.
        caption: The text below the figure. "" for the default caption.
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
    """Return a figure with the histograms of several measures on one axis. All measures are about the same texts.

    Args:
        row: The row that the figure belongs to.
        name: The name of the figure.
        title: The title of the figure. It is shown after the title of the row.
        x_label: The label of the horizontal axis.
        values: Name of a measure -> values. A bar is the share of these values that lie in the bin.
        low: The left edge of the first bin. The first bin also counts smaller values.
        high: The right edge of the last bin. The last bin also counts larger values.
        bins: The number of bins.
        caption: The text below the figure.
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
