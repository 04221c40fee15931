"""Compare how close our numbers are to a paper's with a goal that was set before the runs."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from attnaudit.formatting import number, plural
from attnaudit.research.reproduction.paper_report import GoalResult, GoalVerdict, Line, Reproduction, Row
from attnaudit.research.reproduction.verdicts_on_claims.claim_cases import AT_END
from attnaudit.research.reproduction.verdicts_on_claims.closeness import LEAST_CELLS, Closeness, closeness, known_pairs
from attnaudit.research.reproduction.verdicts_on_claims.holm_intervals import holm_intervals

#: Returns whether a goal is met, and the numbers as text.
ReadGoal = Callable[[Reproduction], tuple[GoalVerdict, str]]
NOT_MEASURED: tuple[GoalVerdict, str] = ("not measured", "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """How close our numbers should be to those of a paper.

    Attributes:
        sentence: The goal as a sentence.
        read: Compares the numbers of a report. Only rows that count for claims are compared.
        cause: What is known about why the goal is missed, as one or more sentences.
    """

    sentence: str
    read: ReadGoal
    cause: str


def goal_results(goals: Sequence[Goal], report: Reproduction) -> tuple[GoalResult, ...]:
    """Compare a report with each goal. The results have the order of the goals."""
    found = []
    for goal in goals:
        verdict, numbers = goal.read(report)
        if verdict == "missed":
            numbers = f"{numbers}. {goal.cause}"
        found.append(GoalResult(sentence=goal.sentence, verdict=verdict, numbers=numbers))
    return tuple(found)


def within(table: str, quantities: Sequence[str], limit: float, *, part: str = "") -> ReadGoal:
    """Return a function that tests whether every number is at most `limit` away from the paper's.

    The text also says how far one more seed may be from the mean of ours (see `margin_of_one_seed`).

    Args:
        table: The name of the table.
        quantities: The names of the quantities.
        limit: The largest absolute difference.
        part: Only rows whose name ends with this text are compared.
    """

    def differences(report: Reproduction, *, every: bool) -> list[tuple[str, float, float | None]]:
        return [
            (
                f"{row.name}{f', {line.quantity}' if len(quantities) > 1 else ''}",
                line.difference,
                margin_of_one_seed([value for value in line.values if value is not None]),
            )
            for row, line in _lines(report, table, quantities, every=every)
            if row.name.endswith(part) and line.difference is not None
        ]

    def read(report: Reproduction) -> tuple[GoalVerdict, str]:
        known = differences(report, every=False)
        if not known:
            return ("too few rows that count", "") if differences(report, every=True) else NOT_MEASURED
        listed = "; ".join(f"{name} {_with_margin(difference, margin)}" for name, difference, margin in known)
        met = all(abs(difference) <= limit for _, difference, _ in known)
        return _verdict(met), f"ours minus the paper's: {listed}{_within_margins(known)}"

    return read


def margin_of_one_seed(values: Sequence[float]) -> float | None:
    """Return half the width of the 95% prediction interval for the value of one more seed, around the mean of `values`.

    It is t · s · √(1 + 1/n) for n values with the sample standard deviation s, where t is the 97.5% quantile of
    Student's distribution with n − 1 degrees of freedom. It assumes that values of seeds are normally distributed.

    Args:
        values: One value per seed.

    Returns:
        The margin, in the unit of the values. None if there are fewer than two values.
    """
    n = len(values)
    if n < 2:
        return None
    from scipy.special import stdtrit

    return float(stdtrit(n - 1, 0.975)) * statistics.stdev(values) * math.sqrt(1 + 1 / n)


def _with_margin(difference: float, margin: float | None) -> str:
    return _signed(difference) if margin is None else f"{_signed(difference)} ± {number(margin, exponent=False)}"


def _within_margins(differences: Sequence[tuple[str, float, float | None]]) -> str:
    """Return a sentence with the number of differences that are within their margins. It is "" if none has one."""
    judged = [(difference, margin) for _, difference, margin in differences if margin is not None]
    if not judged:
        return ""
    count = sum(abs(difference) <= margin for difference, margin in judged)
    verb = "is" if count == 1 else "are"
    return f". {count} of {plural(len(judged), 'difference')} {verb} within the margin"


def ranked(table: str, quantity: str, least: float) -> ReadGoal:
    """Return a function that tests whether Spearman's correlation of our numbers and the paper's is at least `least`.

    Args:
        table: The name of the table.
        quantity: The name of the quantity.
        least: The smallest correlation that meets the goal.
    """

    def read(report: Reproduction) -> tuple[GoalVerdict, str]:
        lines = {every: _lines(report, table, (quantity,), every=every) for every in (False, True)}
        counted, all_run = (closeness(known_pairs(lines[every])) for every in (False, True))
        if not all_run.cells:
            return NOT_MEASURED
        if counted.cells < LEAST_CELLS:
            return (
                "too few rows that count",
                f"{counted.cells} of {plural(all_run.cells, 'number')}; {LEAST_CELLS} are needed",
            )
        numbers = _correlation(counted, all_run)
        if _at_end([line for _, line in lines[False] if line.difference is not None]):
            return "saturated", numbers
        return _verdict(counted.spearman is not None and counted.spearman >= least), numbers

    return read


def _correlation(counted: Closeness, all_run: Closeness) -> str:
    if counted.spearman is None:
        return f"ρ is undefined, because all {counted.cells} numbers of the paper, or all of ours, are equal"
    numbers = f"ρ = {number(counted.spearman, digits=2, exponent=False)} over {counted.cells} rows"
    if all_run.spearman is not None and all_run.cells > counted.cells:
        numbers += (
            f" ({number(all_run.spearman, digits=2, exponent=False)} over all {all_run.cells} rows that were run)"
        )
    return numbers


def same_order(table: str, quantity: str, families: Sequence[Sequence[str]]) -> ReadGoal:
    """Return a function that tests whether rows have the paper's order.

    The goal is met if every difference between neighbours in this order is above 0 over the seeds that both rows have,
    by intervals that are corrected by Holm's method. If only the means have this order, the goal is undecided.

    Args:
        table: The name of the table.
        quantity: The name of the quantity.
        families: Names of rows, from the largest number of the paper to the smallest. The first family whose rows were
            all measured is compared.
    """

    def read(report: Reproduction) -> tuple[GoalVerdict, str]:
        by_name = {row.name: (row, line) for row, line in _lines(report, table, (quantity,)) if line.ours is not None}
        for names in families:
            found = [by_name[name] for name in names if name in by_name]
            values = [line.ours for _, line in found if line.ours is not None]
            if len(values) < len(names):
                continue
            listed = "; ".join(f"{row.name} {number(line.ours, exponent=False)}" for row, line in found)
            if _at_end([line for _, line in found]):
                return "saturated", listed
            if any(first <= second for first, second in pairwise(values)):
                return "missed", listed
            falls = [_paired_differences(first, second) for first, second in pairwise(found)]
            if not all(falls):
                return "undecided", f"{listed}. Neighbours have no seed in common."
            intervals = holm_intervals(falls)
            clear = all(one.low is not None and one.low > 0 for one in intervals)
            shown = "; ".join(one.text() for one in intervals)
            return "met" if clear else "undecided", f"{listed}. Differences between neighbours: {shown}"
        measured = any(line.ours is not None for _, line in _lines(report, table, (quantity,), every=True))
        return ("too few rows that count", "") if measured else NOT_MEASURED

    return read


def _paired_differences(first: tuple[Row, Line], second: tuple[Row, Line]) -> list[float]:
    """Return the differences of two rows, first minus second, one per seed with which both have a value."""
    of_first, of_second = (_by_seed(row, line) for row, line in (first, second))
    return [value - of_second[seed] for seed, value in of_first.items() if seed in of_second]


def _by_seed(row: Row, line: Line) -> dict[int, float]:
    seeds = row.provenance.seeds if row.provenance is not None else range(len(line.values))
    return {seed: value for seed, value in zip(seeds, line.values, strict=True) if value is not None}


def _verdict(met: bool) -> GoalVerdict:
    return "met" if met else "missed"


def _at_end(lines: Sequence[Line]) -> bool:
    """Return whether all our numbers are at the upper end of a scale that ends at 1, such as that of τ."""
    return all(line.axis.high == 1 and line.ours is not None and line.ours >= 1 - AT_END for line in lines)


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
