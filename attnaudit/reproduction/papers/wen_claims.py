"""What Wen, Subbalakshmi & Yang 2022 say of their numbers."""

from __future__ import annotations

import statistics

from attnaudit.reproduction.claims import Answer, Case, Claim, against, by_seed, everywhere, levels
from attnaudit.reproduction.records import Holds, Reproduction
from attnaudit.validation.statistics import wilson

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
    corpora = dict.fromkeys(case.name.partition("/")[0] for case in _no_means(levels(one, "ranking", TAU)))
    cases = []
    for corpus in corpora:
        settings = {
            (encoder, alignment): by_seed(one, "ranking", f"{corpus}/{encoder}/{alignment}", TAU)
            for encoder in ENCODERS
            for alignment in ALIGNMENTS
        }
        ours = settings.pop(("bilstm", "additive"))
        rivals = {"/".join(key): values for key, values in settings.items() if values}
        if ours and rivals:
            best = max(rivals, key=lambda name: statistics.fmean(rivals[name].values()))
            values = tuple(ours[seed] - rivals[best][seed] for seed in ours if seed in rivals[best])
            cases.append(Case(name=f"{corpus}, against {best}", values=values))
    what = "weighted τ, BiLSTM with additive attention less the other setting with the best mean"
    return everywhere(cases, what=what, shared="yes")


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
    if not rises:
        return "undecided", "none of the rows that this needs was run here"
    rate = wilson(sum(statistics.fmean(values) >= -KEPT for values in rises), len(rises))
    holds: Holds = "yes" if rate.low > 0.5 else "no" if rate.high <= 0.5 else "undecided"
    return holds, (
        f"raised or kept in {rate.hits} of {rate.n} settings (share {rate.value:.2f}, 95% interval over settings "
        f"[{rate.low:.2f}, {rate.high:.2f}]); in the paper in 85 of 99"
    )


CLAIMS: tuple[Claim, ...] = (
    _over_dot("additive"),
    _over_dot("deep"),
    Claim(
        name="bilstm-additive-best",
        sentence="Of all encoders and attentions, BiLSTM with additive attention has the highest τ (here: alone or "
        "shared).",
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
