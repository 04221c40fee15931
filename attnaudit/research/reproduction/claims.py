"""Check the claims of a paper against the measured numbers.

A claim is a sentence that numbers can support or contradict. The answer is "yes", "no" or "undecided". It comes from
the values of all seeds in the finished tables. Every answer is reported.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from attnaudit.formatting import number, plural
from attnaudit.research.reproduction.paper_report import Finding, Holds, Line, Reproduction, Row
from attnaudit.research.validation.roc import wilson

CONFIDENCE = 0.95
#: The largest number of rows that the evidence of a claim lists.
LISTED = 8
NOTHING_RUN = "No row that this claim needs has been run here."
#: Whether the claim holds, and the evidence as text.
Answer = tuple[Holds, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A claim of a paper.

    Attributes:
        name: A short name, unique in the paper.
        sentence: The claim as a sentence.
        paper: The place of the claim in the paper, such as "§4.1".
        read: Answers the claim from the report. Rows that were not run have no lines in the report.
    """

    name: str
    sentence: str
    paper: str
    read: Callable[[Reproduction], Answer]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One setting in which a claim is checked.

    Attributes:
        name: The name of the setting.
        values: One number per seed. Positive numbers support the claim.
    """

    name: str
    values: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MeanInterval:
    """A mean with Student's 95% confidence interval.

    Attributes:
        mean: The mean of the values.
        low: The lower limit of the interval. None if there are fewer than two values.
        high: The upper limit of the interval. None if there are fewer than two values.
        n: The number of values.
    """

    mean: float
    low: float | None
    high: float | None
    n: int

    def text(self, digits: int = 3) -> str:
        """Return the mean with its interval, such as "+0.12 [0.08, 0.16]".

        If there is no interval, the text is, for example, "+0.12 (one seed)".
        """
        mean = number(self.mean, digits=digits)
        mean = mean if mean.startswith("−") else f"+{mean}"
        if self.low is None or self.high is None:
            return f"{mean} (one seed)"
        return f"{mean} [{number(self.low, digits=digits)}, {number(self.high, digits=digits)}]"


def answer_claims(claims: Sequence[Claim], report: Reproduction) -> tuple[Finding, ...]:
    """Answer each claim from the report. The answers have the order of the claims."""
    findings = []
    for claim in claims:
        holds, evidence = claim.read(report)
        findings.append(
            Finding(claim=claim.name, sentence=claim.sentence, paper=claim.paper, holds=holds, evidence=evidence)
        )
    return tuple(findings)


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


def values_by_seed(report: Reproduction, table: str, name: str, quantity: str) -> dict[int, float]:
    """Return the defined values of a quantity in one row.

    Args:
        report: The report.
        table: The name of the table.
        name: The name of the row.
        quantity: The name of the quantity.

    Returns:
        Seed -> value. The dictionary is empty if the row or the quantity was not measured. A row whose roles differ in
        their seeds has more seeds than values. The keys are then 0, 1, … instead of the seeds.
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
        Case(name=name, values=tuple(value - minus for value in values_by_seed(report, table, name, quantity).values()))
        for name in row_names(report, table)
    ]


def differences_within_rows(report: Reproduction, table: str, quantity: str, minus: str) -> list[Case]:
    """Return one case per row of a table. Its values are differences of two quantities.

    There is one difference for each seed for which both quantities are defined.

    Args:
        report: The report.
        table: The name of the table.
        quantity: The name of the first quantity.
        minus: The name of the quantity that is subtracted from it.
    """
    return [
        _difference(
            name, values_by_seed(report, table, name, quantity), values_by_seed(report, table, name, minus)
        )
        for name in row_names(report, table)
    ]  # fmt: skip


def differences_between_rows(
    report: Reproduction, table: str, quantity: str, of: str, minus: str, *, tolerance: float = 0.0
) -> list[Case]:
    """Return one case per pair of rows whose names differ in one part. Its values are differences of a quantity.

    The name of a row has parts, such as "sst/average/additive". The first row of a pair has the part `of`. The second
    row has the part `minus` in the same place, and its values are subtracted from those of the first row. There is one
    difference for each seed that both rows have.

    Args:
        report: The report.
        table: The name of the table.
        quantity: The name of the quantity.
        of: The part in the name of the first row, such as "average".
        minus: The part in the name of the second row, such as "bilstm".
        tolerance: A constant that is added to every difference.
    """
    cases = []
    for name in row_names(report, table):
        parts = name.split("/")
        if of in parts:
            counterpart = "/".join(minus if part == of else part for part in parts)
            values = values_by_seed(report, table, name, quantity)
            raised = {seed: value + tolerance for seed, value in values.items()}
            subtracted = values_by_seed(report, table, counterpart, quantity)
            cases.append(_difference(f"{name} against {minus}", raised, subtracted))
    return cases


def mean_interval(values: Sequence[float]) -> MeanInterval:
    """Return the mean of values with Student's 95% confidence interval.

    Raises:
        ValueError: There are no values.
    """
    if not values:
        raise ValueError("mean_interval: expected at least one value")
    mean = statistics.fmean(values)
    if len(values) < 2:
        return MeanInterval(mean=mean, low=None, high=None, n=len(values))
    from scipy.special import stdtrit

    half = float(stdtrit(len(values) - 1, (1 + CONFIDENCE) / 2)) * statistics.stdev(values) / math.sqrt(len(values))
    return MeanInterval(mean=mean, low=mean - half, high=mean + half, n=len(values))


def holds_in_every_case(cases: Sequence[Case], *, what: str, digits: int = 3) -> Answer:
    """Answer whether a number is positive in every case.

    Each case has an interval over its seeds. The answer is "no" if the whole interval of any case is at or below 0. It
    is "yes" if the intervals of all cases are above 0. Otherwise it is "undecided".

    Cases without values were not run and are ignored. A case with one seed has no interval. If its value is not
    positive, the answer cannot be "yes". If its value is positive, it has no influence. If no case has an interval, the
    answer is "undecided".

    Args:
        cases: The settings.
        what: A description of the number for the evidence, such as "drop in F1, tying minus base".
        digits: The number of decimals in the evidence.

    Returns:
        The answer, and the evidence as text.
    """
    intervals = [(case.name, mean_interval(case.values)) for case in cases if case.values]
    if not intervals:
        return "undecided", NOTHING_RUN
    single = [interval for _, interval in intervals if interval.n == 1]
    bounds = [(one.low, one.high) for _, one in intervals if one.low is not None and one.high is not None]
    sides = [_side(low, high) for low, high in bounds]
    clear = sides and "undecided" not in sides and all(interval.mean > 0 for interval in single)
    holds: Holds = "no" if "no" in sides else "yes" if clear else "undecided"
    seeds = sorted({interval.n for _, interval in intervals})
    over = f"{seeds[0]} to {seeds[-1]} seeds" if len(seeds) > 1 else plural(seeds[0], "seed")
    sentences = [f"{what}: mean over {over}{f', {CONFIDENCE:.0%} interval' if sides else ''}."]
    if sides:
        sentences.append(
            f"The interval is above 0 in {sides.count('yes')} of {plural(len(sides), 'row')}, at or below 0 in "
            f"{sides.count('no')}."
        )
    if single:
        positive = sum(interval.mean > 0 for interval in single)
        verb = "has" if len(single) == 1 else "have"
        sentences.append(
            f"{plural(len(single), 'row')} {verb} a single seed and cannot decide the claim "
            f"(above 0 in {positive} of {len(single)})."
        )
    return holds, " ".join([*sentences, _listed(intervals, digits)])


def holds_in_most(hits: int, n: int, *, what: str, settings: str = "settings") -> Answer:
    """Answer whether something happens in most of n settings.

    The answer depends on Wilson's 95% interval of the share hits / n. It is "yes" if the whole interval is above one
    half, and "no" if it is at or below one half. Otherwise, and if n is 0, it is "undecided".

    Args:
        hits: The number of settings in which it happens.
        n: The number of settings.
        what: A description of what happens, for the evidence.
        settings: The plural noun for the settings, such as "texts".

    Returns:
        The answer, and the evidence as text.
    """
    if not n:
        return "undecided", NOTHING_RUN
    rate = wilson(hits, n)
    holds: Holds = "yes" if rate.low > 0.5 else "no" if rate.high <= 0.5 else "undecided"
    return holds, (
        f"{what} in {rate.hits} of {rate.n} {settings} (share {rate.value:.2f}, 95% interval over {settings} "
        f"[{rate.low:.2f}, {rate.high:.2f}])"
    )


def _listed(intervals: Sequence[tuple[str, MeanInterval]], digits: int) -> str:
    """List the rows with their intervals. If there are more than LISTED, list the lowest ones and the highest one."""
    texts = [f"{name} {interval.text(digits)}" for name, interval in intervals]
    if len(texts) <= LISTED:
        return "; ".join(texts)
    order = sorted(range(len(intervals)), key=lambda i: intervals[i][1].mean)
    lowest = "; ".join(texts[i] for i in order[: LISTED - 2])
    return f"Lowest: {lowest}; … highest: {texts[order[-1]]}"


def _side(low: float, high: float) -> Holds:
    return "yes" if low > 0 else "no" if high <= 0 else "undecided"


def _difference(name: str, values: dict[int, float], minus: dict[int, float]) -> Case:
    return Case(name=name, values=tuple(values[seed] - minus[seed] for seed in values if seed in minus))
