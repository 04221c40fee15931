"""Find the rows that may decide a claim: those whose models were all trained well, with all planned seeds.

A model counts as trained if its score on the test part is close enough to its score in the paper: at most TOLERANCE
below it on average over the seeds, and at most 2 × TOLERANCE below it for every seed. If the paper gives no score, the
model is compared with the best score for the same corpus and encoder, in the paper or here.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from attnaudit.formatting import number, plural
from attnaudit.research.reproduction.model_plans import PLAIN, Plan
from attnaudit.research.reproduction.paper_tables import MODEL, Paper, RowPlan
from attnaudit.research.reproduction.results_file import MeasuredRow

#: The mean score of a trained model may be at most this far below the score that it is compared with.
TOLERANCE = 0.03
#: (name of a table, name of a row)
RowKey = tuple[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Standards:
    """The scores that models are compared with.

    Attributes:
        score: The name of the score, "accuracy" or "f1".
        published: Plan -> score in the paper.
        best: (corpus, encoder) -> best score, in the paper or here.
    """

    score: str
    published: Mapping[Plan, float]
    best: Mapping[tuple[str, str], float]

    def expected(self, plan: Plan) -> tuple[float | None, str]:
        """Return the score that a model is compared with, and a description of it.

        The score is None if none is known for the corpus and the encoder.
        """
        if plan in self.published:
            return self.published[plan], "in the paper"
        return self.best.get(_group(plan)), "is the best for this encoder"


def row_exclusions(rows: Sequence[MeasuredRow], paper: Paper, corpora: Sequence[str]) -> dict[RowKey, str]:
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
    reasons = {(row.table, row.name): _reason(plan, row, standards) for plan, row in measured}
    return {key: reason for key, reason in reasons.items() if reason}


def _standards(paper: Paper, measured: Iterable[tuple[RowPlan, MeasuredRow]], corpora: Sequence[str]) -> Standards:
    published = {
        row.models[quantity.score_of]: row.paper[quantity.name]
        for table in paper.tables
        for row in table.rows(corpora)
        for quantity in table.quantities
        if quantity.score_of in row.models and quantity.name in row.paper
    }
    known = [(_group(plan), score) for plan, score in published.items() if plan.variant == PLAIN]
    for row_plan, row in measured:
        for role, plan in row_plan.models.items():
            scores = [value for value in _scores(row, role, paper.score) if value is not None]
            if plan.variant == PLAIN and scores:
                known.append((_group(plan), statistics.fmean(scores)))
    best: dict[tuple[str, str], float] = {}
    for group, score in known:
        best[group] = max(score, best.get(group, score))
    return Standards(score=paper.score, published=published, best=best)


def _reason(row_plan: RowPlan, row: MeasuredRow, standards: Standards) -> str:
    reasons = []
    for role, plan in row_plan.models.items():
        if plan.variant != PLAIN and role not in row_plan.must_be_trained:
            continue
        problem = _problem(plan, _scores(row, role, standards.score), standards)
        if problem:
            reasons.append(problem if role == MODEL else f"{role}: {problem}")
    if not reasons:
        return ""
    more = f" (and {plural(len(reasons) - 1, 'other model')} of the row)" if len(reasons) > 1 else ""
    return reasons[0] + more


def _problem(plan: Plan, scores: Sequence[float | None], standards: Standards) -> str:
    name = {"f1": "F1"}.get(standards.score, standards.score)
    known = [score for score in scores if score is not None]
    if not known or len(known) < len(scores):
        return f"{name} was not recorded"
    expected, where = standards.expected(plan)
    if expected is None:
        return ""
    if expected - statistics.fmean(known) <= TOLERANCE and expected - min(known) <= 2 * TOLERANCE:
        return ""
    values = ", ".join(number(score) for score in known)
    return f"{name} {values}; {number(expected)} {where}"


def _scores(row: MeasuredRow, role: str, score: str) -> Sequence[float | None]:
    scores = row.scores.get(role)
    if scores is None:
        return ()
    return scores.f1 if score == "f1" else scores.accuracy


def _group(plan: Plan) -> tuple[str, str]:
    return plan.corpus, plan.architecture.encoder
