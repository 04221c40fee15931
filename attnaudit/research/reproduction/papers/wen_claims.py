"""The claims of Wen, Subbalakshmi & Yang 2022."""

from __future__ import annotations

import statistics
from dataclasses import replace

from attnaudit.research.reproduction.claim_cases import (
    AT_END,
    TAU_ENDS,
    Case,
    difference,
    differences_between_rows,
    differences_within_rows,
    each_row,
    values_by_seed,
)
from attnaudit.research.reproduction.claims import Answer, Claim, holds_in_every_case, holds_in_most
from attnaudit.research.reproduction.paper_report import Reproduction

ENCODERS = {"bilstm": "BiLSTM", "cnn": "CNN", "mlp": "MLP"}
ALIGNMENTS = ("additive", "deep", "dot")
#: The first part of the name of a row that contains means over other rows.
MEAN = "mean"
#: τ counts as kept if it falls by at most this much, because the paper gives two decimals.
KEPT = 0.005
#: The fall of τ counts as small if it is below this value. The largest fall in table 4 of the paper is .09.
LITTLE = 0.1
TAU = "tau"


def _no_means(cases: list[Case]) -> list[Case]:
    return [case for case in cases if not case.name.startswith(f"{MEAN}/")]


def _over_dot(alignment: str) -> Claim:
    def read(report: Reproduction) -> Answer:
        cases = _no_means(differences_between_rows(report, "ranking", TAU, alignment, "dot", ends=TAU_ENDS))
        return holds_in_every_case(cases, what=f"weighted τ, {alignment} minus dot")

    return Claim(
        name=f"{alignment}-over-dot",
        sentence=f"{alignment.capitalize()} attention ranks hidden states by their information better than dot "
        "attention does.",
        paper="figure 2",
        read=read,
    )


def _best(report: Reproduction) -> Answer:
    """Compare the BiLSTM with additive attention with every other setting on the same corpus.

    The means of τ over seeds are compared. A tie supports the claim. Pairs of settings whose means are both at the
    upper end of the scale are left out.
    """
    cases = _no_means(each_row(report, "ranking", TAU))
    taus = {case.name: statistics.fmean(case.values) for case in cases if case.values and not case.excluded}
    gains, saturated = {}, 0
    for corpus in dict.fromkeys(case.name.partition("/")[0] for case in cases):
        ours = taus.get(f"{corpus}/bilstm/additive")
        for rival in (f"{encoder}/{alignment}" for encoder in ENCODERS for alignment in ALIGNMENTS):
            theirs = taus.get(f"{corpus}/{rival}")
            if ours is None or theirs is None or rival == "bilstm/additive":
                continue
            if min(ours, theirs) >= TAU_ENDS[1] - AT_END:
                saturated += 1
            else:
                gains[corpus, rival] = ours - theirs
    beaten = "; ".join(f"{corpus}: {rival} +{-gain:.2f}" for (corpus, rival), gain in gains.items() if gain < 0)
    answer = holds_in_most(
        sum(gain >= 0 for gain in gains.values()),
        len(gains),
        what="the other setting's τ is not higher",
        settings="pairs",
        saturated=saturated,
        excluded=_excluded(cases),
    )
    return replace(answer, evidence=f"{answer.evidence}; it is higher in {beaten}") if beaten else answer


def _excluded(cases: list[Case]) -> list[Case]:
    return [case for case in cases if case.values and case.excluded]


def _falls(report: Reproduction, table: str, change: str) -> list[Case]:
    """Return one case per row: the fall of τ. A row is saturated if τ is at the same end of its scale before and after.

    Args:
        report: The report.
        table: The name of the table.
        change: The name of the quantity: τ of the normal model minus τ of the other model.
    """
    cases = []
    for case in each_row(report, table, change):
        before = values_by_seed(report, table, case.name, TAU)
        falls = values_by_seed(report, table, case.name, change)
        after = {seed: before[seed] - fall for seed, fall in falls.items() if seed in before}
        fall = difference(case.name, before, after, ends=TAU_ENDS, excluded=case.excluded, unfinished=case.unfinished)
        cases.append(fall)
    return cases


def _fixed_attention(report: Reproduction) -> Answer:
    cases = _falls(report, "fixed", f"change {TAU} imposed_attention")
    return holds_in_every_case(cases, what="Δτ, normal minus fixed attention")


def _little(name: str, table: str, quantity: str, sentence: str, paper: str) -> Claim:
    def read(report: Reproduction) -> Answer:
        cases = [case.reversed().shifted(LITTLE) for case in _falls(report, table, quantity)]
        return holds_in_every_case(cases, what=f"{LITTLE:g} minus Δτ")

    return Claim(name=name, sentence=sentence, paper=paper, read=read)


def _gumbel(report: Reproduction) -> Answer:
    """Answer whether Gumbel-softmax raises or keeps τ in most settings.

    A setting counts if the mean over seeds does not fall. The answer depends on Wilson's interval.
    """
    cases = [
        case for case in differences_within_rows(report, "gumbel", f"{TAU} gumbel", TAU, ends=TAU_ENDS) if case.values
    ]
    rises = [case.values for case in cases if not case.excluded and not case.saturated]
    answer = holds_in_most(
        sum(statistics.fmean(values) >= -KEPT for values in rises),
        len(rises),
        what="τ is raised or kept",
        saturated=sum(case.saturated and not case.excluded for case in cases),
        excluded=_excluded(cases),
    )
    return replace(answer, evidence=f"{answer.evidence}; in the paper in 85 of 99") if rises else answer


CLAIMS: tuple[Claim, ...] = (
    _over_dot("additive"),
    _over_dot("deep"),
    Claim(
        name="bilstm-additive-best",
        sentence="Of all encoders and kinds of attention, a BiLSTM with additive attention has the highest τ most of "
        "the time (here: in most comparisons with another setting on the same corpus, its τ is at least as high).",
        paper="§5",
        read=_best,
    ),
    Claim(
        name="attention-learns",
        sentence="With fixed attention, τ is lower than in the normal model.",
        paper="table 2",
        read=_fixed_attention,
    ),
    _little(
        "representations-do-not-matter",
        "fixed",
        f"change {TAU} fixed_representation",
        "With fixed representations, retrained attention ranks hidden states about as well as in the normal model: τ "
        f"falls by less than {LITTLE:g}.",
        "table 2",
    ),
    _little(
        "adversary-keeps-ranking",
        "adversarial",
        f"change {TAU} twin",
        "A model that is trained to attend elsewhere still ranks hidden states by information: τ falls by less than "
        f"{LITTLE:g}.",
        "table 4",
    ),
    Claim(
        name="gumbel-keeps",
        sentence="Gumbel-softmax raises or keeps τ in most settings.",
        paper="table 5",
        read=_gumbel,
    ),
)
