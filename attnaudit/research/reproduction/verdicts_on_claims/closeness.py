"""Measure how close the numbers of a table are to the numbers of the paper."""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from attnaudit.research.reproduction.figures.quantity_axes import NUMBER
from attnaudit.research.reproduction.paper_report import Line, Row

#: A rank correlation needs at least this many cells.
LEAST_CELLS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Closeness:
    """How close our numbers are to the paper's, over some cells.

    Attributes:
        cells: The number of cells that have a number in the paper and a measured one. A model that is in several rows
            of a table counts once.
        spearman: Spearman's rank correlation of the paper's numbers and the measured ones. None if there are fewer than
            LEAST_CELLS cells, or if all numbers on one side are equal.
        median_difference: The median of the absolute differences. None if there are no cells, or if the cells have
            different units.
    """

    cells: int
    spearman: float | None
    median_difference: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantityCloseness:
    """How close the numbers of one quantity, or of a whole table, are to the paper's.

    Attributes:
        quantity: The name of the quantity. "" for all quantities of the table together.
        every: The closeness over all measured rows.
        counted: The closeness over the rows that count for claims.
        median: Whether `every` and `counted` summarise quantities with different units. Their `spearman` is then the
            median of those of the quantities.
    """

    quantity: str
    every: Closeness
    counted: Closeness
    median: bool = False


def closeness(pairs: Sequence[tuple[float, float]]) -> Closeness:
    """Compare numbers of the paper with ours.

    Args:
        pairs: Pairs of the number in the paper and the measured one.
    """
    if not pairs:
        return Closeness(cells=0, spearman=None, median_difference=None)
    spearman = None
    if len(pairs) >= LEAST_CELLS and all(len(set(side)) > 1 for side in zip(*pairs, strict=True)):
        from scipy.stats import spearmanr

        found = float(spearmanr(*zip(*pairs, strict=True)).statistic)
        spearman = found if math.isfinite(found) else None
    differences = [abs(ours - paper) for paper, ours in pairs]
    return Closeness(cells=len(pairs), spearman=spearman, median_difference=statistics.median(differences))


def closeness_of_rows(rows: Sequence[Row], *, left_out: Collection[str] = ()) -> list[QuantityCloseness]:
    """Compare the rows of a table with the paper: all quantities together, then each quantity.

    The numbers of all quantities are pooled only if they have the same declared axis. Otherwise, a correlation would
    mainly show that some quantities are larger than others, so the first element has the median of the correlations.

    Args:
        rows: The rows of the table.
        left_out: The corpora that the paper leaves out of the table. Their rows do not count.

    Returns:
        The closeness over the whole table, and then that of each quantity. A quantity is left out if none of its cells
        has both a number in the paper and a measured one. The median is left out if no correlation is known. If only
        one quantity has such cells, the list contains the closeness over the whole table alone. If none has, the list
        is empty.
    """
    counted = [row for row in rows if not row.excluded and row.corpus not in left_out]
    known = {line.quantity: line.axis.label for row in rows for line in row.lines if _pair(line) is not None}
    if not known:
        return []
    each = [
        QuantityCloseness(quantity=name, every=_of_quantity(rows, name), counted=_of_quantity(counted, name))
        for name in known
    ]
    if len(each) == 1:
        return [QuantityCloseness(quantity="", every=each[0].every, counted=each[0].counted)]
    median = len(set(known.values())) > 1 or NUMBER.label in known.values()
    whole = QuantityCloseness(
        quantity="",
        every=_median([one.every for one in each]) if median else closeness(_pairs(rows, known)),
        counted=_median([one.counted for one in each]) if median else closeness(_pairs(counted, known)),
        median=median,
    )
    unknown = median and whole.every.spearman is None
    return each if unknown else [whole, *each]


def known_pairs(lines: Iterable[tuple[Row, Line]]) -> list[tuple[float, float]]:
    """Return the number of the paper and the measured one of each line that has both.

    A model that is in several rows of a table counts once. Such rows have the same two numbers, and their names have
    the same first three parts, as in "sst/bilstm/additive/λ" and "sst/bilstm/additive/10λ".

    Args:
        lines: The lines of one quantity, each with its row.
    """
    models = {(*row.name.split("/")[:3], pair): pair for row, line in lines if (pair := _pair(line)) is not None}
    return list(models.values())


def _of_quantity(rows: Sequence[Row], quantity: str) -> Closeness:
    return closeness(_pairs(rows, (quantity,)))


def _median(quantities: Sequence[Closeness]) -> Closeness:
    """Return the median of the correlations of quantities with different units."""
    known = [one for one in quantities if one.spearman is not None]
    return Closeness(
        cells=sum(one.cells for one in known),
        spearman=statistics.median(one.spearman for one in known if one.spearman is not None) if known else None,
        median_difference=None,
    )


def _pairs(rows: Sequence[Row], quantities: Iterable[str]) -> list[tuple[float, float]]:
    return [
        pair
        for quantity in quantities
        for pair in known_pairs((row, line) for row in rows for line in row.lines if line.quantity == quantity)
    ]


def _pair(line: Line) -> tuple[float, float] | None:
    return None if line.paper is None or line.ours is None else (line.paper, line.ours)
