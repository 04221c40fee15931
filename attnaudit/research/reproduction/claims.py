"""What a paper says of its numbers, held against ours: claim, whether it holds here, evidence.

A claim is a sentence that a number can speak for or against. It is read off the finished tables, over seeds, and comes
out as it is: none is forced.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from attnaudit.report.wording import number, plural
from attnaudit.research.reproduction.paper_report import Finding, Holds, Line, Reproduction, Row
from attnaudit.research.validation.roc import wilson

CONFIDENCE = 0.95
#: Rows that the evidence of a claim names one by one.
SHOWN = 8
#: (holds, evidence in a sentence)
Answer = tuple[Holds, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """sentence: the claim in words. paper: where it is made, such as "§4.1". read: off the whole reproduction; rows
    that were not run are missing there."""

    name: str
    sentence: str
    paper: str
    read: Callable[[Reproduction], Answer]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One setting in which a claim can hold: its name, and a number per seed that speaks for the claim where it is
    positive."""

    name: str
    values: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Mean of n values, with Student's 95% interval over them; the bounds are None with fewer than two."""

    mean: float
    low: float | None
    high: float | None
    n: int

    def words(self, digits: int = 3) -> str:
        """'+0.12 [0.08, 0.16]'."""
        mean = number(self.mean, digits=digits)
        mean = mean if mean.startswith("−") else f"+{mean}"
        if self.low is None or self.high is None:
            return f"{mean} (one seed)"
        return f"{mean} [{number(self.low, digits=digits)}, {number(self.high, digits=digits)}]"


def judged(claims: Sequence[Claim], one: Reproduction) -> tuple[Finding, ...]:
    """What became of each claim, in their order."""
    found = []
    for claim in claims:
        holds, evidence = claim.read(one)
        found.append(
            Finding(claim=claim.name, sentence=claim.sentence, paper=claim.paper, holds=holds, evidence=evidence)
        )
    return tuple(found)


def row(one: Reproduction, table: str, name: str) -> Row | None:
    """A row that has lines; None where it was not run."""
    for found in one.tables:
        if found.name == table:
            return next((row for row in found.rows if row.name == name and row.lines), None)
    return None


def line(one: Reproduction, table: str, name: str, quantity: str) -> Line | None:
    """A quantity of a row; None where the row was not run or has no such quantity."""
    found = row(one, table, name)
    return None if found is None else next((x for x in found.lines if x.quantity == quantity), None)


def by_seed(one: Reproduction, table: str, name: str, quantity: str) -> dict[int, float]:
    """seed -> value, where it is defined; empty where there is none. A row that is itself about seeds has fewer values
    than seeds: they are then counted from 0."""
    whole, part = row(one, table, name), line(one, table, name, quantity)
    if whole is None or part is None or whole.provenance is None:
        return {}
    seeds = whole.provenance.seeds if len(whole.provenance.seeds) == len(part.values) else range(len(part.values))
    return {seed: value for seed, value in zip(seeds, part.values, strict=True) if value is not None}


def levels(one: Reproduction, table: str, quantity: str, *, above: float = 0.0) -> list[Case]:
    """Every row of the table: the quantity less `above`."""
    return [
        Case(name=name, values=tuple(value - above for value in by_seed(one, table, name, quantity).values()))
        for name in names(one, table)
    ]


def within(one: Reproduction, table: str, more: str, less: str) -> list[Case]:
    """Every row of the table: one of its quantities less another, seed by seed."""
    return [_case(name, by_seed(one, table, name, more), by_seed(one, table, name, less)) for name in names(one, table)]


def against(one: Reproduction, table: str, quantity: str, more: str, less: str, *, allowed: float = 0.0) -> list[Case]:
    """Every row that has the part `more` in its name ("sst/average/additive" has three) and its fellow with `less`
    there: the quantity of the first less that of the second, plus what is `allowed` to be missing, seed by seed."""
    found = []
    for name in names(one, table):
        parts = name.split("/")
        if more in parts:
            fellow = "/".join(less if part == more else part for part in parts)
            first = {seed: value + allowed for seed, value in by_seed(one, table, name, quantity).items()}
            found.append(_case(f"{name} against {less}", first, by_seed(one, table, fellow, quantity)))
    return found


def span(values: Sequence[float]) -> Span:
    """Raises ValueError without values."""
    if not values:
        raise ValueError("span: expected at least one value")
    mean = statistics.fmean(values)
    if len(values) < 2:
        return Span(mean=mean, low=None, high=None, n=len(values))
    from scipy.special import stdtrit

    half = float(stdtrit(len(values) - 1, (1 + CONFIDENCE) / 2)) * statistics.stdev(values) / math.sqrt(len(values))
    return Span(mean=mean, low=mean - half, high=mean + half, n=len(values))


def everywhere(cases: Sequence[Case], *, what: str, digits: int = 3) -> Answer:
    """Whether a number is positive in every case: "yes" where all intervals over seeds are above 0, "no" where one is
    at or below it, else "undecided".

    what: the number in words, such as "drop in F1, tying less base". Cases without values were not run, and do not
    count. Those of one seed have no interval: they are told, and decide nothing, but that where one of them speaks
    against a claim it does not hold everywhere; a claim that has no others is undecided.
    """
    spans = [(case.name, span(case.values)) for case in cases if case.values]
    if not spans:
        return "undecided", "none of the rows that this needs was run here"
    single = [one for _, one in spans if one.n == 1]
    bounds = [(one.low, one.high) for _, one in spans if one.low is not None and one.high is not None]
    sides = [_side(low, high) for low, high in bounds]
    clear = sides and "undecided" not in sides and all(one.mean > 0 for one in single)
    holds: Holds = "no" if "no" in sides else "yes" if clear else "undecided"
    seeds = sorted({one.n for _, one in spans})
    over = f"{seeds[0]} to {seeds[-1]} seeds" if len(seeds) > 1 else plural(seeds[0], "seed")
    counts = []
    if sides:
        counts.append(f"so in {sides.count('yes')} of {plural(len(sides), 'row')}, the reverse in {sides.count('no')}")
    if single:
        like = sum(one.mean > 0 for one in single)
        counts.append(f"of {plural(len(single), 'row')} of one seed, which cannot decide, {like} so")
    level = f", {CONFIDENCE:.0%} interval" if sides else ""
    return holds, f"{what} (mean over {over}{level}): {'; '.join(counts)}. {_shown(spans, digits)}"


def mostly(hits: int, n: int, *, what: str, over: str = "settings") -> Answer:
    """Whether something is so in most of n settings: "yes" where Wilson's interval of the share is above one half, "no"
    where it is at or below. what, over: what is so, and of what."""
    if not n:
        return "undecided", "none of the rows that this needs was run here"
    rate = wilson(hits, n)
    holds: Holds = "yes" if rate.low > 0.5 else "no" if rate.high <= 0.5 else "undecided"
    return holds, (
        f"{what} in {rate.hits} of {rate.n} {over} (share {rate.value:.2f}, 95% interval over {over} "
        f"[{rate.low:.2f}, {rate.high:.2f}])"
    )


def _shown(spans: Sequence[tuple[str, Span]], digits: int) -> str:
    """Each row with its interval; where they are many, those that speak least for the claim and the one that does
    most."""
    said = [f"{name} {one.words(digits)}" for name, one in spans]
    if len(said) <= SHOWN:
        return "; ".join(said)
    order = sorted(range(len(spans)), key=lambda i: spans[i][1].mean)
    least = "; ".join(said[i] for i in order[: SHOWN - 2])
    return f"Least: {least}; … most: {said[order[-1]]}"


def _side(low: float, high: float) -> Holds:
    return "yes" if low > 0 else "no" if high <= 0 else "undecided"


def _case(name: str, more: dict[int, float], less: dict[int, float]) -> Case:
    return Case(name=name, values=tuple(more[seed] - less[seed] for seed in more if seed in less))


def names(one: Reproduction, table: str) -> list[str]:
    """The rows of a table, those included that were not run."""
    return [row.name for found in one.tables if found.name == table for row in found.rows]
