"""The claims of Wen, Subbalakshmi & Yang 2022."""

from __future__ import annotations

import statistics

from attnaudit.research.reproduction.claims import (
    Answer,
    Case,
    Claim,
    differences_between_rows,
    each_row,
    holds_in_every_case,
    holds_in_most,
    values_by_seed,
)
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
        cases = _no_means(differences_between_rows(report, "ranking", TAU, alignment, "dot"))
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

    The means of τ over seeds are compared. A tie supports the claim.
    """
    corpora = dict.fromkeys(case.name.partition("/")[0] for case in _no_means(each_row(report, "ranking", TAU)))
    gains = {}
    for corpus in corpora:
        settings = {
            f"{encoder}/{alignment}": values_by_seed(report, "ranking", f"{corpus}/{encoder}/{alignment}", TAU)
            for encoder in ENCODERS
            for alignment in ALIGNMENTS
        }
        ours = settings.pop("bilstm/additive")
        for rival, values in settings.items():
            if ours and values:
                gains[corpus, rival] = statistics.fmean(ours.values()) - statistics.fmean(values.values())
    beaten = "; ".join(f"{corpus}: {rival} +{-gain:.2f}" for (corpus, rival), gain in gains.items() if gain < 0)
    holds, evidence = holds_in_most(
        sum(gain >= 0 for gain in gains.values()),
        len(gains),
        what="the other setting's τ is not higher",
        settings="pairs",
    )
    return holds, evidence + (f"; it is higher in {beaten}" if beaten else "")


def _fixed_attention(report: Reproduction) -> Answer:
    return holds_in_every_case(
        each_row(report, "fixed", f"change {TAU} imposed_attention"), what="Δτ, normal minus fixed attention"
    )


def _little(name: str, table: str, quantity: str, sentence: str, paper: str) -> Claim:
    def read(report: Reproduction) -> Answer:
        cases = [
            Case(name=case.name, values=tuple(LITTLE - value for value in case.values))
            for case in each_row(report, table, quantity)
        ]
        return holds_in_every_case(cases, what=f"{LITTLE:g} minus Δτ")

    return Claim(name=name, sentence=sentence, paper=paper, read=read)


def _gumbel(report: Reproduction) -> Answer:
    """Answer whether Gumbel-softmax raises or keeps τ in most settings.

    A setting counts if the mean over seeds does not fall. The answer depends on Wilson's interval.
    """
    rises = [case.values for case in each_row(report, "gumbel", f"change {TAU} gumbel") if case.values]
    hits = sum(statistics.fmean(values) >= -KEPT for values in rises)
    holds, evidence = holds_in_most(hits, len(rises), what="τ is raised or kept")
    return holds, f"{evidence}; in the paper in 85 of 99" if rises else evidence


CLAIMS: tuple[Claim, ...] = (
    _over_dot("additive"),
    _over_dot("deep"),
    Claim(
        name="bilstm-additive-best",
        sentence="Of all encoders and kinds of attention, a BiLSTM with additive attention has the highest τ most of "
        "the time (here: in most pairs with another setting on the same corpus, its τ is at least as high).",
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
