"""Measure how close the numbers of a table are to the numbers of the paper."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from attnaudit.research.reproduction.paper_report import Line, Row

#: A rank correlation needs at least this many cells.
LEAST_CELLS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Closeness:
    """How close our numbers are to the paper's, over some cells.

    Attributes:
        cells: The number of cells that have a number in the paper and a measured one.
        spearman: Spearman's rank correlation of the paper's numbers and the measured ones. None if there are fewer than
            LEAST_CELLS cells, or if all numbers on one side are equal.
        median_difference: The median of the absolute differences. None if there are no cells.
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
        counted: The closeness over the rows that may decide a claim.
    """

    quantity: str
    every: Closeness
    counted: Closeness


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


def closeness_of_rows(rows: Sequence[Row]) -> list[QuantityCloseness]:
    """Compare the rows of a table with the paper: all quantities together, then each quantity.

    Returns:
        The closeness over the whole table, and then that of each quantity. A quantity is left out if none of its cells
        has both a number in the paper and a measured one. If only one quantity has such cells, the list contains the
        closeness over the whole table alone. If none has, the list is empty.
    """
    known = dict.fromkeys(line.quantity for row in rows for line in row.lines if _pair(line) is not None)
    if not known:
        return []
    names: list[str | None] = [None, *(known if len(known) > 1 else ())]
    return [
        QuantityCloseness(
            quantity=name or "",
            every=closeness(_pairs(rows, name)),
            counted=closeness(_pairs([row for row in rows if not row.excluded], name)),
        )
        for name in names
    ]


def _pairs(rows: Sequence[Row], quantity: str | None) -> list[tuple[float, float]]:
    lines = [line for row in rows for line in row.lines if quantity in (None, line.quantity)]
    return [pair for line in lines if (pair := _pair(line)) is not None]


def _pair(line: Line) -> tuple[float, float] | None:
    return None if line.paper is None or line.ours is None else (line.paper, line.ours)
