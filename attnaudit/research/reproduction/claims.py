"""Check a paper's claims against our numbers.

A claim is a sentence that numbers can support or contradict. It is answered from the values of all seeds in the
finished tables. Every answer is reported, including "no" and "undecided".
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
#: Number of rows that the evidence of a claim lists one by one.
LISTED = 8
NOTHING_RUN = "No row that this claim needs has been run here."
#: (whether the claim holds, the evidence as text)
Answer = tuple[Holds, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A claim of a paper.

    Attributes:
        name: short name, unique in the paper.
        sentence: the claim in words.
        paper: its place in the paper, such as "§4.1".
        read: function that answers the claim from the report. Rows that were not run have no lines in the report.
    """

    name: str
    sentence: str
    paper: str
    read: Callable[[Reproduction], Answer]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One setting in which a claim is checked.

    Attributes:
        name: name of the setting.
        values: one number per seed; positive numbers support the claim.
    """

    name: str
    values: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MeanInterval:
    """A mean with Student's 95% interval.

    Attributes:
        mean: mean of the values.
        low: lower bound; None with fewer than two values.
        high: upper bound; None with fewer than two values.
        n: number of values.
    """

    mean: float
    low: float | None
    high: float | None
    n: int

    def text(self, digits: int = 3) -> str:
        """Return the mean and interval, as in "+0.12 [0.08, 0.16]", or "+0.12 (one seed)"."""
        mean = number(self.mean, digits=digits)
        mean = mean if mean.startswith("−") else f"+{mean}"
        if self.low is None or self.high is None:
            return f"{mean} (one seed)"
        return f"{mean} [{number(self.low, digits=digits)}, {number(self.high, digits=digits)}]"


def answer_claims(claims: Sequence[Claim], report: Reproduction) -> tuple[Finding, ...]:
    """Answer each claim from the report, in the order of the claims."""
    findings = []
    for claim in claims:
        holds, evidence = claim.read(report)
        findings.append(
            Finding(claim=claim.name, sentence=claim.sentence, paper=claim.paper, holds=holds, evidence=evidence)
        )
    return tuple(findings)


def measured_row(report: Reproduction, table: str, name: str) -> Row | None:
    """Return a row of a table; None if there is no such row or it has no lines."""
    for found in report.tables:
        if found.name == table:
            return next((row for row in found.rows if row.name == name and row.lines), None)
    return None


def values_by_seed(report: Reproduction, table: str, name: str, quantity: str) -> dict[int, float]:
    """Return the defined values of a quantity by seed.

    Returns:
        seed -> value; empty if the row or the quantity was not measured. If the numbers of seeds and values differ,
        because the row compares seeds, the keys are 0, 1, … instead of seeds.
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
    """Return one case per row of a table: the quantity minus a constant, for each seed."""
    return [
        Case(name=name, values=tuple(value - minus for value in values_by_seed(report, table, name, quantity).values()))
        for name in row_names(report, table)
    ]


def differences_within_rows(report: Reproduction, table: str, quantity: str, minus: str) -> list[Case]:
    """Return one case per row of a table: one quantity minus another, for each seed that has both."""
    return [
        _difference(
            name, values_by_seed(report, table, name, quantity), values_by_seed(report, table, name, minus)
        )
        for name in row_names(report, table)
    ]  # fmt: skip


def differences_between_rows(
    report: Reproduction, table: str, quantity: str, of: str, minus: str, *, tolerance: float = 0.0
) -> list[Case]:
    """Compare rows whose names differ in one part: one case per row with `of` in its name, as differences by seed.

    The row with `minus` instead of `of` in its name is subtracted.

    Args:
        report: the report.
        table: name of the table.
        quantity: name of the quantity.
        of: a part of a row's name, such as "average" in "sst/average/additive".
        minus: the part that replaces it in the name of the row that is subtracted.
        tolerance: added to every difference.
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
    """Return the mean of values with Student's 95% interval. Raises ValueError if there are no values."""
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

    The answer is "no" if the interval over seeds of any case is at or below 0, "yes" if all intervals are above 0, and
    "undecided" otherwise. Cases without values were not run and are ignored. A case with one seed has no interval: if
    its value is not positive, it turns "yes" into "undecided"; otherwise it has no influence. If all cases have one
    seed, the answer is "undecided".

    Args:
        cases: the settings.
        what: the number in words, such as "drop in F1, tying minus base".
        digits: decimals in the evidence.
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

    The answer is "yes" if Wilson's 95% interval of the share is above one half, "no" if it is at or below one half, and
    "undecided" otherwise or if n is 0.

    Args:
        hits: number of settings in which it happens.
        n: number of settings.
        what: what happens.
        settings: the plural noun for the settings, such as "texts".
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
    """Return every row with its interval; if there are more than LISTED, only the lowest ones and the highest one."""
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
