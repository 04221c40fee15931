"""Compare how close our numbers are to a paper's with a goal that was set before the runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from attnaudit.formatting import number
from attnaudit.research.reproduction.closeness import Closeness, closeness
from attnaudit.research.reproduction.paper_report import GoalResult, Line, Reproduction, Row

#: Returns whether a goal is met, and the numbers as text. None instead of both if nothing was measured for it.
ReadGoal = Callable[[Reproduction], tuple[bool, str] | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """How close our numbers should be to those of a paper.

    Attributes:
        sentence: The goal as a sentence.
        read: Compares the numbers of a report. Rows that do not count for claims are left out.
    """

    sentence: str
    read: ReadGoal


def goal_results(goals: Sequence[Goal], report: Reproduction) -> tuple[GoalResult, ...]:
    """Compare a report with each goal. The results have the order of the goals."""
    found = []
    for goal in goals:
        met, numbers = goal.read(report) or (None, "")
        found.append(GoalResult(sentence=goal.sentence, met=met, numbers=numbers))
    return tuple(found)


def within(table: str, quantities: Sequence[str], limit: float, *, part: str = "") -> ReadGoal:
    """Return a function that tests whether every number is at most `limit` away from the paper's.

    Args:
        table: The name of the table.
        quantities: The names of the quantities.
        limit: The largest absolute difference.
        part: Only rows whose name ends with this text are compared.
    """

    def read(report: Reproduction) -> tuple[bool, str] | None:
        found = [
            (f"{row.name}{f', {line.quantity}' if len(quantities) > 1 else ''}", line.difference)
            for row, line in _lines(report, table, quantities)
            if row.name.endswith(part)
        ]
        known = [(name, difference) for name, difference in found if difference is not None]
        if not known:
            return None
        listed = "; ".join(f"{name} {_signed(difference)}" for name, difference in known)
        return all(abs(difference) <= limit for _, difference in known), f"ours minus the paper's: {listed}"

    return read


def ranked(table: str, quantity: str, least: float) -> ReadGoal:
    """Return a function that tests whether Spearman's correlation of our numbers and the paper's is at least `least`.

    Args:
        table: The name of the table.
        quantity: The name of the quantity.
        least: The smallest correlation that meets the goal.
    """

    def correlation(report: Reproduction, *, every: bool) -> Closeness:
        lines = [line for _, line in _lines(report, table, (quantity,), every=every)]
        return closeness([(one.paper, one.ours) for one in lines if one.paper is not None and one.ours is not None])

    def read(report: Reproduction) -> tuple[bool, str] | None:
        counted, every = (correlation(report, every=which) for which in (False, True))
        if counted.spearman is None:
            return None
        numbers = f"ρ = {number(counted.spearman, digits=2)} over {counted.cells} rows"
        if every.spearman is not None and every.cells > counted.cells:
            numbers += f" ({number(every.spearman, digits=2)} over all {every.cells} rows that were run)"
        return counted.spearman >= least, numbers

    return read


def same_order(table: str, quantity: str, families: Sequence[Sequence[str]]) -> ReadGoal:
    """Return a function that tests whether rows have the paper's order.

    Args:
        table: The name of the table.
        quantity: The name of the quantity.
        families: Names of rows, from the largest number of the paper to the smallest. The first family whose rows were
            all measured is compared.
    """

    def read(report: Reproduction) -> tuple[bool, str] | None:
        by_name = {row.name: line.ours for row, line in _lines(report, table, (quantity,))}
        for names in families:
            values = [(name, value) for name in names for value in [by_name.get(name)] if value is not None]
            if len(values) == len(names):
                listed = "; ".join(f"{name} {number(value)}" for name, value in values)
                return all(first[1] > second[1] for first, second in pairwise(values)), listed
        return None

    return read


def _lines(
    report: Reproduction, table: str, quantities: Sequence[str], *, every: bool = False
) -> list[tuple[Row, Line]]:
    """Return the lines of some quantities, in the rows that count or in every row that was run."""
    return [
        (row, line)
        for found in report.tables
        if found.name == table
        for row in found.rows
        if every or not row.excluded
        for line in row.lines
        if line.quantity in quantities
    ]


def _signed(value: float) -> str:
    return f"{value:+.3f}".replace("-", "−")
