"""What Wen, Subbalakshmi & Yang 2022 say of their numbers."""

from __future__ import annotations

import statistics

from attnaudit.research.reproduction.claims import Answer, Case, Claim, against, by_seed, everywhere, levels, mostly
from attnaudit.research.reproduction.paper_report import Reproduction

ENCODERS = {"bilstm": "BiLSTM", "cnn": "CNN", "mlp": "MLP"}
ALIGNMENTS = ("additive", "deep", "dot")
#: Rows that are means of others have names that begin so.
MEAN = "mean"
#: A τ that falls by less is kept: two decimals.
KEPT = 0.005
#: A τ that falls by less has not fallen much: .09 is the most that it falls in table 4.
LITTLE = 0.1
TAU = "tau"


def _no_means(cases: list[Case]) -> list[Case]:
    return [case for case in cases if not case.name.startswith(f"{MEAN}/")]


def _over_dot(alignment: str) -> Claim:
    def read(one: Reproduction) -> Answer:
        cases = _no_means(against(one, "ranking", TAU, alignment, "dot"))
        return everywhere(cases, what=f"weighted τ, {alignment} less dot")

    return Claim(
        name=f"{alignment}-over-dot",
        sentence=f"{alignment.capitalize()} attention ranks hidden states by their information better than dot does.",
        paper="figure 2",
        read=read,
    )


def _best(one: Reproduction) -> Answer:
    """Against every other setting of a corpus, by the means over seeds; a place may be shared."""
    corpora = dict.fromkeys(case.name.partition("/")[0] for case in _no_means(levels(one, "ranking", TAU)))
    gains = {}
    for corpus in corpora:
        settings = {
            f"{encoder}/{alignment}": by_seed(one, "ranking", f"{corpus}/{encoder}/{alignment}", TAU)
            for encoder in ENCODERS
            for alignment in ALIGNMENTS
        }
        ours = settings.pop("bilstm/additive")
        for rival, values in settings.items():
            if ours and values:
                gains[corpus, rival] = statistics.fmean(ours.values()) - statistics.fmean(values.values())
    beaten = "; ".join(f"{corpus}: {rival} +{-gain:.2f}" for (corpus, rival), gain in gains.items() if gain < 0)
    holds, evidence = mostly(
        sum(gain >= 0 for gain in gains.values()), len(gains), what="no other is better", over="pairs"
    )
    return holds, evidence + (f"; better: {beaten}" if beaten else "")


def _fixed_attention(one: Reproduction) -> Answer:
    return everywhere(levels(one, "fixed", f"change {TAU} imposed_attention"), what="Δτ, normal less fixed attention")


def _little(name: str, table: str, quantity: str, sentence: str, paper: str) -> Claim:
    def read(one: Reproduction) -> Answer:
        cases = [
            Case(name=case.name, values=tuple(LITTLE - value for value in case.values))
            for case in levels(one, table, quantity)
        ]
        return everywhere(cases, what=f"{LITTLE:g} less Δτ")

    return Claim(name=name, sentence=sentence, paper=paper, read=read)


def _gumbel(one: Reproduction) -> Answer:
    """Wilson's interval over settings, each with its mean over seeds."""
    rises = [case.values for case in levels(one, "gumbel", f"change {TAU} gumbel") if case.values]
    hits = sum(statistics.fmean(values) >= -KEPT for values in rises)
    holds, evidence = mostly(hits, len(rises), what="raised or kept")
    return holds, f"{evidence}; in the paper in 85 of 99"


CLAIMS: tuple[Claim, ...] = (
    _over_dot("additive"),
    _over_dot("deep"),
    Claim(
        name="bilstm-additive-best",
        sentence="Of all encoders and attentions, BiLSTM with additive attention has the highest τ most of the time "
        "(here: in most pairs with another on the same corpus, alone or shared).",
        paper="§5",
        read=_best,
    ),
    Claim(
        name="attention-learns",
        sentence="With fixed attention, τ falls.",
        paper="table 2",
        read=_fixed_attention,
    ),
    _little(
        "representations-do-not-matter",
        "fixed",
        f"change {TAU} fixed_representation",
        f"With fixed representations, attention that is trained anew ranks as well: τ falls by less than {LITTLE:g}.",
        "table 2",
    ),
    _little(
        "adversary-keeps-ranking",
        "adversarial",
        f"change {TAU} twin",
        f"A model that is trained to attend elsewhere still ranks by information: τ falls by less than {LITTLE:g}.",
        "table 4",
    ),
    Claim(
        name="gumbel-keeps",
        sentence="Gumbel-softmax raises or keeps τ in most settings.",
        paper="table 5",
        read=_gumbel,
    ),
)
