"""Check the claims of a paper against the measured numbers.

A claim is a sentence that numbers can support or contradict. It is judged from the values of all seeds in the rows that
count: rows whose models were trained well enough (see `row_exclusions`), with the planned seeds. The verdicts are:

* "holds" and "does not hold": the intervals of the rows decide the claim;
* "undecided": rows were run, but they do not decide it;
* "saturated": in every row that counts, the two compared values are at the same end of their scale, so that comparing
  them says nothing;
* "not run": no row that the claim needs was run.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from attnaudit.formatting import plural, sentence
from attnaudit.research.reproduction.paper_report import ENCODERS, ClaimVerdict, Finding, OpenCause, Reproduction
from attnaudit.research.reproduction.verdicts_on_claims.claim_cases import Case
from attnaudit.research.reproduction.verdicts_on_claims.holm_intervals import (
    ERROR,
    MeanInterval,
    holm_intervals,
    mean_interval,
    seeds_needed,
)
from attnaudit.research.validation.roc import wilson

#: The largest number of rows that the evidence of a claim lists.
LISTED = 8
NOTHING_RUN = "No row that this claim needs has been run here."


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The verdict on a claim.

    Attributes:
        verdict: The verdict.
        reason: One sentence that gives the reason for the verdict.
        evidence: The numbers that the verdict is based on, as text.
        left_out: Names of the settings that were run but do not count.
        against: Names of the settings that contradict the claim.
        cause: Why the claim is undecided. None for all other verdicts.
        seeds_needed: How many seeds the settings whose intervals contain 0 would need, if their means and spreads
            stayed the same. None if this is not known, or if no such number of seeds would be enough.
        alone: Whether the claim holds, and a single row, or pair of compared rows, counts.
        again: Whether a setting that counts has new seeds, because the claim had been judged with other ones.
    """

    verdict: ClaimVerdict
    reason: str
    evidence: str = ""
    left_out: tuple[str, ...] = ()
    against: tuple[str, ...] = ()
    cause: OpenCause | None = None
    seeds_needed: int | None = None
    alone: bool = False
    again: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A claim of a paper.

    Attributes:
        name: A short name, unique in the paper.
        sentence: The claim as a sentence.
        paper: The place of the claim in the paper, such as "§4.1".
        read: Answers the claim from the report. Rows that were not run have no lines in the report.
        explanations: Pattern of the names of settings -> why such a setting may contradict the claim, as one sentence.
            It is shown if the claim does not hold because of such a setting.
        ours: Whether the claim is ours instead of the paper's. Such claims are not counted with those of the paper.
    """

    name: str
    sentence: str
    paper: str
    read: Callable[[Reproduction], Answer]
    explanations: Mapping[str, str] = field(default_factory=dict)
    ours: bool = False

    def explain(self, answer: Answer) -> str:
        """Return the reason for the verdict, with an explanation if a setting that contradicts the claim has one."""
        known = [
            text
            for pattern, text in self.explanations.items()
            if any(fnmatch.fnmatchcase(name, pattern) for name in answer.against)
        ]
        return " ".join((answer.reason, *known))


def answer_claims(claims: Sequence[Claim], report: Reproduction) -> tuple[Finding, ...]:
    """Answer each claim from the report. The answers have the order of the claims."""
    findings = []
    for claim in claims:
        answer = claim.read(report)
        findings.append(
            Finding(
                claim=claim.name,
                sentence=claim.sentence,
                paper=claim.paper,
                verdict=answer.verdict,
                reason=claim.explain(answer),
                evidence=answer.evidence,
                left_out=answer.left_out,
                cause=answer.cause,
                seeds_needed=answer.seeds_needed,
                alone=answer.alone,
                again=answer.again,
                ours=claim.ours,
            )
        )
    return tuple(findings)


def holds_in_every_case(cases: Sequence[Case], *, what: str, about_scores: bool = False) -> Answer:
    """Answer a claim that a number is positive in every case.

    Each case has an interval over its seeds, corrected for the number of intervals by Holm's method. The claim does not
    hold if the whole interval of any case is at or below 0. It holds if the intervals of all cases are above 0.
    Otherwise it is undecided. It is also undecided if the cases that count are outnumbered by the cases whose models
    were not trained well enough. Cases that only lack planned seeds do not enter this comparison. Otherwise, a claim
    could become less certain because a row was started.

    Cases without values were not run and are ignored. Excluded and saturated cases do not count. A case with one seed
    has no interval and cannot decide the claim. If its value is not positive, the claim is at best undecided.

    Args:
        cases: The settings.
        what: A description of the number for the evidence, such as "drop in F1, tying minus base".
        about_scores: Whether the claim is about the accuracy or F1 of the models. If so, the claim cannot hold while a
            case is excluded because its model was not trained well enough. Otherwise, cases would be left out because
            of the very scores that the claim is about.

    Returns:
        The answer.
    """
    measured = [case for case in cases if case.values]
    excluded = [case for case in measured if case.excluded]
    saturated = [case for case in measured if case.saturated and not case.excluded]
    counted = [case for case in measured if not case.excluded and not case.saturated]
    untrained = _untrained(excluded)
    if not counted:
        return without_counted_rows(saturated=len(_rows(saturated)), excluded=excluded)
    noun = "comparison" if any(case.row not in ("", case.name) for case in measured) else "row"
    intervals = holm_intervals([case.values for case in counted])
    several = [(case, one) for case, one in zip(counted, intervals, strict=True) if one.n > 1]
    against = [case for case, one in several if one.high is not None and one.high <= 0]
    open_ = [case for case, one in several if one.low is not None and one.low <= 0 and case not in against]
    single = [(case, one) for case, one in zip(counted, intervals, strict=True) if one.n == 1]
    doubtful = [case for case, one in single if one.mean <= 0]
    with_interval = Counted(len(several), f"{noun} with several seeds" if single else noun)
    single_text = f"{plural(len(single), noun)} with a single seed"
    verdict: ClaimVerdict = "holds"
    cause: OpenCause | None = None
    needed: int | None = None
    if against:
        verdict = "does not hold"
        reason = f"The interval is at or below 0 in {with_interval.share(len(against))}: {_names(against)}."
        if doubtful:
            reason += f" The value is also not above 0 in {plural(len(doubtful), noun)} with a single seed."
    elif not several:
        verdict, cause = "undecided", "one seed"
        reason = f"{'The only row' if len(single) == 1 else f'Each of the {len(single)} {noun}s'} has a single seed."
    elif open_ or doubtful:
        verdict = "undecided"
        cause = "intervals" if open_ else "one seed"
        if open_ and not doubtful and _decided_without_correction(open_):
            cause = "correction"
        needed = _seeds_for_all(open_, len(several))
        parts = [f"the interval contains 0 in {with_interval.share(len(open_))}"] if open_ else []
        parts += [f"the value is not above 0 in {len(doubtful)} of the {single_text}"] if doubtful else []
        reason = sentence(" and ".join(parts))
    elif about_scores and untrained:
        verdict, cause = "undecided", "scores"
        reason = (
            f"The interval is above 0 in {with_interval.every}, but a claim about scores cannot hold if rows do not "
            "count because of their scores."
        )
    elif len(untrained) > len(counted):
        verdict, cause = "undecided", "left out"
        reason = f"The interval is above 0, but {_too_few(len(counted), len(untrained), noun)}."
    else:
        reason = f"The interval is above 0 in {with_interval.every}.{_without_encoders(cases, counted)}"
    notes = [_without_saturated(len(saturated), noun)] if saturated else []
    notes += [single_text] if single and several else []
    seeds = sorted({one.n for one in intervals})
    over = f"{seeds[0]} to {seeds[-1]} seeds" if len(seeds) > 1 else plural(seeds[0], "seed")
    corrected = f", {1 - ERROR:.0%} interval" if several else ""
    corrected += f", corrected for {len(several)} intervals" if len(several) > 1 else ""
    head = f"{what}: mean over {over}{corrected}{''.join(f'; {note}' for note in notes)}."
    listed = _listed([(case.name, one) for case, one in zip(counted, intervals, strict=True)])
    return Answer(
        verdict=verdict,
        reason=reason,
        evidence=f"{head} {listed}",
        left_out=_rows(excluded),
        against=tuple(case.name for case in against),
        cause=cause,
        seeds_needed=needed,
        alone=verdict == "holds" and len(_rows(counted)) == 1,
        again=any(case.again for case in counted),
    )


@dataclass(frozen=True, slots=True)
class Counted:
    """The number of settings that count, and a noun for them, such as "row" or "row with several seeds"."""

    n: int
    noun: str

    @property
    def every(self) -> str:
        """All of them, as in "all 3 rows that count"."""
        if self.n == 1:
            return f"the only {self.noun} that counts"
        return f"{'both' if self.n == 2 else f'all {self.n}'} {self._plural} that count"

    def share(self, k: int) -> str:
        """Return k of them, as in "2 of 3 rows that count"."""
        return self.every if k == self.n else f"{k} of {self.n} {self._plural} that count"

    @property
    def _plural(self) -> str:
        first, _, rest = self.noun.partition(" ")
        return f"{first}s {rest}".rstrip()


def holds_in_most(
    hits: int,
    n: int,
    *,
    what: str,
    settings: str = "settings",
    notes: Sequence[str] = (),
    excluded: Sequence[Case] = (),
) -> Answer:
    """Answer a claim that something happens in most of n settings.

    The answer depends on Wilson's 95% interval of the share hits / n. The claim holds if the whole interval is above
    one half, and does not hold if it is at or below one half. Otherwise it is undecided. It is also undecided if the
    settings that count are outnumbered by the settings whose models were not trained well enough.

    Args:
        hits: The number of settings in which it happens.
        n: The number of settings, at least one.
        what: A description of what happens, for the evidence.
        settings: The plural noun for the settings, such as "texts".
        notes: Notes on the settings, for the evidence.
        excluded: The settings that were run but do not count.

    Returns:
        The answer.
    """
    rate = wilson(hits, n)
    verdict: ClaimVerdict = "holds" if rate.low > 0.5 else "does not hold" if rate.high <= 0.5 else "undecided"
    cause: OpenCause | None = "share" if verdict == "undecided" else None
    untrained = _untrained(excluded)
    relation = {"holds": "is above", "does not hold": "is at or below"}.get(verdict, "contains")
    reason = f"The interval of the share {relation} one half."
    if verdict == "holds" and len(untrained) > n:
        verdict, cause = "undecided", "left out"
        reason = f"The interval of the share is above one half, but {_too_few(n, len(untrained), 'setting')}."
    return Answer(
        verdict=verdict,
        reason=reason,
        evidence=(
            f"{what} in {rate.hits} of {rate.n} {settings} (share {rate.value:.2f}, 95% interval over {settings} "
            f"[{rate.low:.2f}, {rate.high:.2f}]{''.join(f'; {note}' for note in notes)})"
        ),
        left_out=_rows(excluded),
        cause=cause,
    )


def without_counted_rows(*, saturated: int, excluded: Sequence[Case]) -> Answer:
    """Return the answer to a claim for which no row counts.

    Args:
        saturated: The number of rows that compare two values at the same end of their scale.
        excluded: The settings that were run but do not count.
    """
    left_out = _rows(excluded)
    if saturated:
        where = {1: "the only row", 2: "both rows"}.get(saturated, f"all {saturated} rows") + " that would count"
        reason = f"Both values are at the same end of their scale in {where}."
        return Answer(verdict="saturated", reason=reason, left_out=left_out)
    if left_out:
        start = {
            1: "The only row that was run does not count",
            2: "Neither of the two rows that were run counts",
        }.get(len(left_out), f"None of the {len(left_out)} rows that were run counts")
        cause: OpenCause = "untrained" if _untrained(excluded) else "unfinished"
        these = "this row" if len(left_out) == 1 else "these rows"
        reason = f"{start}: {_why_excluded(excluded)}. The report lists {these}."
        return Answer(verdict="undecided", reason=reason, left_out=left_out, cause=cause)
    return Answer(verdict="not run", reason=NOTHING_RUN)


def _why_excluded(excluded: Sequence[Case]) -> str:
    """Return why rows do not count, as a part of a sentence. The number of rows is given if there are several."""
    rows, untrained = len(_rows(excluded)), len(_rows(_untrained(excluded)))
    found = (
        ("the score of a model is too far from the paper's", untrained),
        ("planned seeds or recorded scores are missing", rows - untrained),
    )
    alone = rows == 1
    every = "both" if rows == 2 else "all of them"
    where = {n: every if n == rows else plural(n, "row") for _, n in found}
    return ", and ".join(why if alone else f"{why} in {where[n]}" for why, n in found if n)


def _without_saturated(n: int, noun: str) -> str:
    return f"{plural(n, noun)} with both values at the end of the scale {'is' if n == 1 else 'are'} left out"


def _untrained(excluded: Sequence[Case]) -> list[Case]:
    """Return the excluded cases whose models were not trained well enough."""
    return [case for case in excluded if not case.unfinished]


def _without_encoders(cases: Sequence[Case], counted: Sequence[Case]) -> str:
    """Return a sentence that names the encoders of a claim of which no row counts, with a space before it.

    It is "" if there are none.
    """
    every, known = ({name for case in some for name in case.name.split("/")[1:2]} for some in (cases, counted))
    missing = [words for name, words in ENCODERS.items() if name in every - known]
    return f" No row with {' or '.join(missing)} counts." if missing else ""


def _decided_without_correction(cases: Sequence[Case]) -> bool:
    lows = [mean_interval(case.values).low for case in cases]
    return all(low is not None and low > 0 for low in lows)


def _seeds_for_all(cases: Sequence[Case], tests: int) -> int | None:
    """Return how many seeds would be enough for each case to be decided, with the smallest limit of Holm's method."""
    found = [seeds_needed(case.values, error=ERROR / tests) for case in cases]
    known = [one for one in found if one is not None]
    return max(known, default=None) if len(known) == len(found) else None


def _too_few(counted: int, untrained: int, noun: str) -> str:
    verb = "counts" if counted == 1 else "count"
    return f"only {counted} of the {counted + untrained} {noun}s with all planned seeds {verb}"


def _rows(cases: Sequence[Case]) -> tuple[str, ...]:
    """Return the names of the rows of cases, without duplicates."""
    return tuple(dict.fromkeys(case.row or case.name for case in cases))


def _names(cases: Sequence[Case]) -> str:
    names = [case.name for case in cases[:LISTED]]
    return ", ".join(names) + (f" and {len(cases) - LISTED} more" if len(cases) > LISTED else "")


def _listed(intervals: Sequence[tuple[str, MeanInterval]]) -> str:
    """List the rows with their intervals. If there are more than LISTED, list the lowest ones and the highest one."""
    texts = [f"{name} {interval.text(3)}" for name, interval in intervals]
    if len(texts) <= LISTED:
        return "; ".join(texts)
    order = sorted(range(len(intervals)), key=lambda i: intervals[i][1].mean)
    lowest = "; ".join(texts[i] for i in order[: LISTED - 2])
    return f"Lowest: {lowest}; … highest: {texts[order[-1]]}"
