"""Read the settings in which a claim is checked from the tables of a report."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, replace

from attnaudit.research.reproduction.paper_report import Line, Reproduction, Row

#: The two ends of the scale of a quantity.
Ends = tuple[float, float]
TAU_ENDS: Ends = (-1.0, 1.0)
#: A value is at the end of its scale if it is at most this far away. Papers give two decimals.
AT_END = 0.005


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One setting in which a claim is checked.

    Attributes:
        name: The name of the setting.
        values: One number per seed. Positive numbers support the claim.
        excluded: Why the setting cannot decide a claim, for example because a model was not trained well enough (see
            `row_exclusions`). It is "" if the setting counts.
        unfinished: Whether the setting is excluded only because its rows are unfinished (see `Row.unfinished`).
        saturated: Whether the two values that the setting compares are at the same end of their scale with every seed.
            Such a comparison says nothing.
        row: The name of the row that the setting belongs to; "" if it is the name of the setting. A row can have
            several settings, such as two quantities.
        again: Whether the setting has new seeds, because its row had been judged with other ones (see `has_new_seeds`).
    """

    name: str
    values: tuple[float, ...]
    excluded: str = ""
    unfinished: bool = False
    saturated: bool = False
    row: str = ""
    again: bool = False

    def shifted(self, amount: float) -> Case:
        """Return the same case with a constant added to every value."""
        return replace(self, values=tuple(value + amount for value in self.values))

    def reversed(self) -> Case:
        """Return the same case with the opposite sign of every value."""
        return replace(self, values=tuple(-value for value in self.values))

    def with_shared_models(self) -> Case:
        """Return the same case with values that are further apart, for values that share models.

        If each value compares the model of a seed with that of the next seed, neighbouring values share a model. Their
        correlation can be up to 1/2, because the two models of a value contribute at most its whole variance. The
        variance of the mean of n values can then be up to (2n - 1)/(n - 1) times s²/n, where s² is the sample variance.
        The spread of the values grows by the square root of this factor, so that intervals of the mean do, too.
        """
        n = len(self.values)
        if n < 2:
            return self
        mean, factor = statistics.fmean(self.values), math.sqrt((2 * n - 1) / (n - 1))
        return replace(self, values=tuple(mean + factor * (value - mean) for value in self.values))

    def renamed(self, name: str) -> Case:
        """Return the same case with another name, as one of several settings of its row."""
        return replace(self, name=name, row=self.row or self.name)


def measured_row(report: Reproduction, table: str, name: str) -> Row | None:
    """Return a row of a report.

    Args:
        report: The report.
        table: The name of the table.
        name: The name of the row.

    Returns:
        The row. It is None if there is no such row, or if the row was not run and therefore has no lines.
    """
    for found in report.tables:
        if found.name == table:
            return next((row for row in found.rows if row.name == name and row.lines), None)
    return None


def exclusion(report: Reproduction, table: str, name: str) -> str:
    """Return why a row cannot decide a claim; "" if the row can decide one, or if it was not run."""
    row = measured_row(report, table, name)
    return "" if row is None else row.excluded


def unfinished(report: Reproduction, table: str, *names: str) -> bool:
    """Return whether rows are excluded, and each of them only because it is unfinished."""
    rows = [row for name in names for row in [measured_row(report, table, name)] if row is not None and row.excluded]
    return bool(rows) and all(row.unfinished for row in rows)


def has_new_seeds(report: Reproduction, table: str, *names: str) -> bool:
    """Return whether a row has new seeds, which were planned after a look at its results with other seeds.

    Earlier seeds start from 0, and new ones follow them (see `seed_plan`).
    """
    made = (row.provenance for name in names for row in [measured_row(report, table, name)] if row is not None)
    return any(one is not None and min(one.seeds, default=0) > 0 for one in made)


def values_by_seed(report: Reproduction, table: str, name: str, quantity: str) -> dict[int, float]:
    """Return the defined values of a quantity in one row.

    Args:
        report: The report.
        table: The name of the table.
        name: The name of the row.
        quantity: The name of the quantity.

    Returns:
        Seed -> value. The dictionary is empty if the row or the quantity was not measured. If the models of a row have
        different seeds (`RowPlan.once`), there are more seeds than values. The keys are then 0, 1, … instead of the
        seeds.
    """
    row = measured_row(report, table, name)
    line: Line | None = None if row is None else next((x for x in row.lines if x.quantity == quantity), None)
    if row is None or line is None or row.provenance is None:
        return {}
    seeds = row.provenance.seeds if len(row.provenance.seeds) == len(line.values) else range(len(line.values))
    return {seed: value for seed, value in zip(seeds, line.values, strict=True) if value is not None}


def row_names(report: Reproduction, table: str) -> list[str]:
    """Return the names of all rows of a table, including the rows that were not run."""
    return [row.name for found in report.tables if found.name == table for row in found.rows]


def each_row(report: Reproduction, table: str, quantity: str, *, minus: float = 0.0) -> list[Case]:
    """Return one case per row of a table. Its values are those of a quantity, one per seed.

    Args:
        report: The report.
        table: The name of the table.
        quantity: The name of the quantity.
        minus: A constant that is subtracted from every value.
    """
    return [
        Case(
            name=name,
            values=tuple(value - minus for value in values_by_seed(report, table, name, quantity).values()),
            excluded=exclusion(report, table, name),
            unfinished=unfinished(report, table, name),
            again=has_new_seeds(report, table, name),
        )
        for name in row_names(report, table)
    ]


def differences_within_rows(
    report: Reproduction, table: str, quantity: str, minus: str, *, ends: Ends | None = None
) -> list[Case]:
    """Return one case per row of a table. Its values are differences of two quantities.

    There is one difference for each seed for which both quantities are defined.

    Args:
        report: The report.
        table: The name of the table.
        quantity: The name of the first quantity.
        minus: The name of the quantity that is subtracted from it.
        ends: The ends of the scale of both quantities. None if the scale has no ends.
    """
    return [
        difference(
            name,
            values_by_seed(report, table, name, quantity),
            values_by_seed(report, table, name, minus),
            ends=ends,
            excluded=exclusion(report, table, name),
            unfinished=unfinished(report, table, name),
            again=has_new_seeds(report, table, name),
        )
        for name in row_names(report, table)
    ]


def differences_between_rows(
    report: Reproduction, table: str, quantity: str, of: str, minus: str, *, ends: Ends | None = None
) -> list[Case]:
    """Return one case per pair of rows whose names differ in one part. Its values are differences of a quantity.

    The name of a row has parts, such as "sst/average/additive". The first row of a pair has the part `of`. The second
    row has the part `minus` in the same place, and its values are subtracted from those of the first row. There is one
    difference for each seed that both rows have. A pair is excluded if one of its two rows is excluded.

    Args:
        report: The report.
        table: The name of the table.
        quantity: The name of the quantity.
        of: The part in the name of the first row, such as "average".
        minus: The part in the name of the second row, such as "bilstm".
        ends: The ends of the scale of the quantity. None if the scale has no ends.
    """
    cases = []
    for name in row_names(report, table):
        parts = name.split("/")
        if of in parts:
            counterpart = "/".join(minus if part == of else part for part in parts)
            reasons = [f"{row}: {why}" for row in (name, counterpart) for why in [exclusion(report, table, row)] if why]
            pair = difference(
                name,
                values_by_seed(report, table, name, quantity),
                values_by_seed(report, table, counterpart, quantity),
                ends=ends,
                excluded="; ".join(reasons),
                unfinished=unfinished(report, table, name, counterpart),
                again=has_new_seeds(report, table, name, counterpart),
            )
            cases.append(pair.renamed(f"{name} against {minus}"))
    return cases


def difference(
    name: str,
    values: Mapping[int, float],
    minus: Mapping[int, float],
    *,
    ends: Ends | None = None,
    excluded: str = "",
    unfinished: bool = False,
    again: bool = False,
) -> Case:
    """Return a case with the differences of two quantities, for the seeds that both have.

    Args:
        name: The name of the case.
        values: Seed -> value of the first quantity.
        minus: Seed -> value of the quantity that is subtracted from it.
        ends: The ends of the scale of both quantities. None if the scale has no ends.
        excluded: Why the case cannot decide a claim. It is "" if the case counts.
        unfinished: Whether the case is excluded only because its rows are unfinished (see `Row.unfinished`).
        again: Whether a row of the case has new seeds (see `has_new_seeds`).
    """
    pairs = [(value, minus[seed]) for seed, value in values.items() if seed in minus]
    saturated = bool(pairs) and ends is not None and all(_at_one_end(pair, ends) for pair in pairs)
    gaps = tuple(a - b for a, b in pairs)
    return Case(name=name, values=gaps, excluded=excluded, unfinished=unfinished, saturated=saturated, again=again)


def _at_one_end(pair: tuple[float, float], ends: Ends) -> bool:
    return any(all(abs(value - end) <= AT_END for value in pair) for end in ends)
