"""Find the rows that may decide a claim: those whose models were all trained well, with all planned seeds.

A model counts as trained if its score on the test part is close enough to its score in the paper: at most TOLERANCE
away from it on average over the seeds, and at most 2 × TOLERANCE below it for every seed. A much higher score shows
that the task differs from the paper's, as on corpora that were generated again. If tables give several scores for the
same model, it is compared with the highest one. Models that differ only in their seed are judged together. If the paper
gives no score for a model, the model is compared with the best score that was measured here for the same corpus and
encoder. Only models that are as good as in the paper count for this best score. If there is no such model, the best
score of the paper for the corpus and the encoder is used. If the paper has no score for the encoder, a score of another
paper for a comparable encoder is used (`Paper.comparable_scores`). A model is never compared with itself. Only
published scores are also upper limits: a model without a score of its own must not exceed the best published one for
the corpus and the encoder by more than TOLERANCE.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from attnaudit.formatting import number, plural
from attnaudit.research.reproduction.model_plans import PLAIN, Plan
from attnaudit.research.reproduction.paper_tables import MODEL, Paper, RowPlan
from attnaudit.research.reproduction.results.results_file import MeasuredRow

#: The mean score of a trained model may be at most this far from the published score that it is compared with.
TOLERANCE = 0.03
#: Differences of decimal numbers are not exact: .90 - .87 is above .03.
ROUNDING = 1e-9
UNRECORDED = "was not recorded"
#: (name of a table, name of a row)
RowKey = tuple[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class RowExclusion:
    """Why a row cannot decide a claim.

    Attributes:
        reason: The reason as text.
        unrecorded: Whether the only reason is that a score was not recorded. The row has to be run again.
    """

    reason: str
    unrecorded: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Standards:
    """The scores that models are compared with.

    Attributes:
        score: The name of the score, "accuracy" or "f1".
        published: Plan, with seed 0 -> published score, the highest one if there are several, and where it is from.
        of_paper: (corpus, encoder) -> best published score.
        best: (corpus, encoder) -> score that models without a score in the paper are compared with.
        comparable: (corpus, encoder) -> score of another paper, for encoders without a score in this paper.
        here: (corpus, encoder) -> plan, with seed 0 -> mean score measured here, for encoders without any published
            score.
    """

    score: str
    published: Mapping[Plan, tuple[float, str]]
    of_paper: Mapping[tuple[str, str], float]
    best: Mapping[tuple[str, str], float]
    comparable: Mapping[tuple[str, str], float]
    here: Mapping[tuple[str, str], Mapping[Plan, float]]

    def expected(self, plan: Plan) -> tuple[float | None, str]:
        """Return the score that a model must reach, and a description of it.

        The score is None if none is known for the corpus and the encoder.
        """
        group, plan = _group(plan), plan.with_seed(0)
        if plan in self.published:
            return self.published[plan]
        if group in self.best:
            return self.best[group], "is the best for this encoder"
        if group in self.comparable:
            return self.comparable[group], "for a comparable encoder in another paper"
        others = [score for other, score in self.here.get(group, {}).items() if other != plan]
        return max(others, default=None), "is the best for this encoder"

    def limit(self, plan: Plan) -> tuple[float | None, str]:
        """Return the published score that a model must not exceed by much, and a description of it.

        The score is None if there is none for the corpus and the encoder.
        """
        group, plan = _group(plan), plan.with_seed(0)
        if plan in self.published:
            return self.published[plan]
        if group in self.of_paper:
            return self.of_paper[group], "is the highest published score for this encoder"
        return self.comparable.get(group), "for a comparable encoder in another paper"


def row_exclusions(rows: Sequence[MeasuredRow], paper: Paper, corpora: Sequence[str]) -> dict[RowKey, RowExclusion]:
    """Return the rows that cannot decide a claim, because a model was not trained well or its score is not known.

    Args:
        rows: The measured rows of the paper.
        paper: The declaration of the paper.
        corpora: The names of the corpora of the run.

    Returns:
        (table, row) -> reason. Rows that may decide a claim are left out.
    """
    plans = {(table.name, row.name): row for table in paper.tables for row in table.rows(corpora)}
    measured = [(plans[row.table, row.name], row) for row in rows if row.quantities]
    standards = _standards(paper, measured, corpora)
    found = {(row.table, row.name): _exclusion(plan, row, standards) for plan, row in measured}
    return {key: exclusion for key, exclusion in found.items() if exclusion is not None}


def _standards(paper: Paper, measured: Iterable[tuple[RowPlan, MeasuredRow]], corpora: Sequence[str]) -> Standards:
    published: dict[Plan, tuple[float, str]] = {}
    for table in paper.tables:
        for row, quantity in itertools.product(table.rows(corpora), table.quantities):
            if quantity.score_of in row.models and quantity.name in row.paper:
                plan = row.models[quantity.score_of].with_seed(0)
                found = (row.paper[quantity.name], f"in {'the' if table.compared_with == 'paper' else 'another'} paper")
                published[plan] = max(found, published.get(plan, found))
    of_paper = _best((plan, score) for plan, (score, _) in published.items() if plan.variant == PLAIN)
    plain = [
        (plan, [score for score in scores if score is not None])
        for row_plan, row in measured
        for plan, (_, scores) in _models(row_plan, row, paper.score).items()
        if plan.variant == PLAIN
    ]
    here: dict[tuple[str, str], dict[Plan, float]] = {}
    for plan, scores in plain:
        if scores and _group(plan) not in of_paper:
            of_group = here.setdefault(_group(plan), {})
            of_group[plan] = max(statistics.fmean(scores), of_group.get(plan, 0.0))
    trained = _best(
        (plan, statistics.fmean(scores))
        for plan, scores in plain
        if scores and plan in published and _reaches(scores, published[plan][0])
        if not _exceeds(scores, published[plan][0])
    )
    return Standards(
        score=paper.score,
        published=published,
        of_paper=of_paper,
        best={**of_paper, **trained},
        comparable=paper.comparable_scores,
        here=here,
    )


def _models(row_plan: RowPlan, row: MeasuredRow, score: str) -> dict[Plan, tuple[str, list[float | None]]]:
    """Return the models of a row. Models that differ only in their seed are one model with several scores.

    Returns:
        Plan, with seed 0 -> the first role of the model in the row, and its scores.
    """
    found: dict[Plan, tuple[str, list[float | None]]] = {}
    for role, plan in row_plan.models.items():
        found.setdefault(plan.with_seed(0), (role, []))[1].extend(_scores(row, role, score) or (None,))
    return found


def _best(scores: Iterable[tuple[Plan, float]]) -> dict[tuple[str, str], float]:
    best: dict[tuple[str, str], float] = {}
    for plan, score in scores:
        best[_group(plan)] = max(score, best.get(_group(plan), score))
    return best


def _reaches(scores: Sequence[float], expected: float) -> bool:
    lowest, mean = expected - min(scores), expected - statistics.fmean(scores)
    return mean <= TOLERANCE + ROUNDING and lowest <= 2 * TOLERANCE + ROUNDING


def _exceeds(scores: Sequence[float], limit: float) -> bool:
    return statistics.fmean(scores) - limit > TOLERANCE + ROUNDING


def _exclusion(row_plan: RowPlan, row: MeasuredRow, standards: Standards) -> RowExclusion | None:
    reasons = []
    for plan, (role, scores) in _models(row_plan, row, standards.score).items():
        if plan.variant != PLAIN and role not in row_plan.must_be_trained:
            continue
        problem = _problem(plan, scores, standards)
        if problem:
            reasons.append(problem if role == MODEL else f"{_words(role)}: {problem}")
    if not reasons:
        return None
    missed = [reason for reason in reasons if not reason.endswith(UNRECORDED)]
    first, *others = missed or reasons
    more = f" (and {plural(len(others), 'other model')} of the row)" if others else ""
    if missed and len(missed) < len(reasons):
        more += f"; the score of {plural(len(reasons) - len(missed), 'other model')} {UNRECORDED}"
    return RowExclusion(reason=first + more, unrecorded=not missed)


def _words(role: str) -> str:
    """Return the role of a model as reports write it. In grids, roles are the values of a weight, such as "10"."""
    if role.lstrip("-").replace(".", "", 1).isdecimal():
        return f"with the value {role}"
    return {"twin": "adversary"}.get(role, role.replace("_", " "))


def _problem(plan: Plan, scores: Sequence[float | None], standards: Standards) -> str:
    name = {"f1": "F1"}.get(standards.score, standards.score)
    known = [score for score in scores if score is not None]
    if not known or len(known) < len(scores):
        return f"{name} {UNRECORDED}"
    values = ", ".join(number(score) for score in known)
    expected, where = standards.expected(plan)
    if expected is not None and not _reaches(known, expected):
        return f"{name} {values}; {number(expected)} {where}"
    limit, where = standards.limit(plan)
    if limit is not None and _exceeds(known, limit):
        return f"{name} {values}; only {number(limit)} {where}"
    return ""


def _scores(row: MeasuredRow, role: str, score: str) -> Sequence[float | None]:
    scores = row.scores.get(role)
    if scores is None:
        return ()
    return scores.f1 if score == "f1" else scores.accuracy


def _group(plan: Plan) -> tuple[str, str]:
    return plan.corpus, plan.architecture.encoder
