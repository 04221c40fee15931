"""The claims of Wen, Subbalakshmi & Yang 2022."""

from __future__ import annotations

import statistics
from dataclasses import replace

from attnaudit.formatting import number, plural
from attnaudit.research.reproduction.paper_report import Reproduction
from attnaudit.research.reproduction.verdicts_on_claims.claim_cases import (
    AT_END,
    TAU_ENDS,
    Case,
    difference,
    differences_between_rows,
    differences_within_rows,
    each_row,
    values_by_seed,
)
from attnaudit.research.reproduction.verdicts_on_claims.claims import (
    Answer,
    Claim,
    holds_in_every_case,
    holds_in_most,
    without_counted_rows,
)

ENCODERS = {"bilstm": "BiLSTM", "cnn": "CNN", "mlp": "MLP"}
ALIGNMENTS = ("additive", "deep", "dot")
#: The first part of the name of a row that contains means over other rows.
MEAN = "mean"
#: τ counts as kept if it falls by at most this much, because the paper gives two decimals.
KEPT = 0.005
#: The fall of τ counts as small if it is below this value. The largest fall in table 4 of the paper is .09.
LITTLE = 0.1
#: The other ways to fix attention: variant -> description.
OTHER_WAYS = {
    "imposed_attention": "at the normal model's weights",
    "frozen_attention": "at the normal model's parameters",
    "uniform": "at uniform weights",
}
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

    The means of τ over seeds are compared, for settings with at least two seeds. A corpus supports the claim if no
    other setting is better by more than KEPT. Corpora are counted, and not pairs of settings, because all pairs of a
    corpus share the BiLSTM. Pairs of settings whose means are both at the upper end of the scale are left out.
    """
    cases = _no_means(each_row(report, "ranking", TAU))
    taus = {case.name: statistics.fmean(case.values) for case in cases if len(case.values) > 1 and not case.excluded}
    gains: dict[str, dict[str, float]] = {}
    saturated = 0
    for name in dict.fromkeys(case.name.partition("/")[0] for case in cases):
        ours = taus.get(f"{name}/bilstm/additive")
        for rival in (f"{encoder}/{alignment}" for encoder in ENCODERS for alignment in ALIGNMENTS):
            theirs = taus.get(f"{name}/{rival}")
            if ours is None or theirs is None or rival == "bilstm/additive":
                continue
            if min(ours, theirs) >= TAU_ENDS[1] - AT_END:
                saturated += 1
            else:
                gains.setdefault(name, {})[rival] = ours - theirs
    if not gains and not saturated and any(case.values and not case.excluded for case in cases):
        return Answer(
            verdict="undecided",
            reason="On no corpus are there several seeds of both a BiLSTM with additive attention and another setting "
            "that counts.",
            left_out=tuple(case.name for case in _excluded(cases)),
            cause="unpaired",
        )
    if not gains:
        return without_counted_rows(saturated=saturated, excluded=_excluded(cases))
    compared = "; ".join(
        f"{name}: τ minus that of {rival} {number(gain, exponent=False)}"
        for name, by in gains.items()
        for rival, gain in by.items()
    )
    answer = holds_in_most(
        sum(min(by.values()) >= -KEPT for by in gains.values()),
        len(gains),
        what=f"no other setting has a τ that is higher by more than {KEPT:g}",
        settings="corpora",
        excluded=_excluded(cases),
    )
    return replace(answer, evidence=f"{answer.evidence}; {compared}")


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
        cases.append(replace(fall, again=case.again))
    return cases


def _fixed_attention(report: Reproduction) -> Answer:
    """Compare the normal model with one whose attention is frozen at its random initialisation.

    The paper fixes "the attention scores" and trains everything else from scratch, but does not say at which values.
    Its numbers are compared with those of a random attention. The evidence also has the means of three other ways.
    """
    cases = _falls(report, "random-attention", f"change {TAU} random_attention")
    answer = holds_in_every_case(cases, what="Δτ, normal minus randomly fixed attention")
    others = []
    for variant, words in OTHER_WAYS.items():
        found = [case for case in each_row(report, "fixed", f"change {TAU} {variant}") if case.values]
        means = [
            f"{case.name} {number(statistics.fmean(case.values), exponent=False)}"
            for case in found
            if not case.excluded
        ]
        others += [f"{words}: {', '.join(means)}"] if means else []
    if not others:
        return answer
    means_of_others = f"mean Δτ if attention is fixed {'; '.join(others)}"
    return replace(answer, evidence="; ".join(filter(None, [answer.evidence, means_of_others])))


def _little(name: str, table: str, quantity: str, sentence: str, paper: str) -> Claim:
    def read(report: Reproduction) -> Answer:
        cases = [case.reversed().shifted(LITTLE) for case in _falls(report, table, quantity)]
        answer = holds_in_every_case(cases, what=f"{LITTLE:g} minus Δτ")
        distances = [
            f"{case.name} {number(statistics.fmean(case.values), exponent=False)}"
            for case in each_row(report, table, "jsd")
            if case.values and not case.excluded
        ]
        if not distances:
            return answer
        how_far = f"mean JSD between the attention of the two models, at most ln 2 = 0.693: {', '.join(distances)}"
        return replace(answer, evidence="; ".join(filter(None, [answer.evidence, how_far])))

    return Claim(name=name, sentence=sentence, paper=paper, read=read)


def _gumbel(report: Reproduction) -> Answer:
    """Answer whether Gumbel-softmax raises or keeps τ in most settings.

    A setting counts if τ is defined with at least two seeds. It supports the claim if the mean over seeds does not
    fall. As in the paper, this includes a τ that is at the end of the scale with and without Gumbel-softmax. If this is
    the case in all settings that count, the claim is saturated.
    """
    cases = [
        case for case in differences_within_rows(report, "gumbel", f"{TAU} gumbel", TAU, ends=TAU_ENDS) if case.values
    ]
    counted = [case for case in cases if len(case.values) > 1 and not case.excluded]
    saturated = sum(case.saturated for case in counted)
    single = sum(len(case.values) == 1 and not case.excluded for case in cases)
    if single and not counted:
        left_out = tuple(case.name for case in _excluded(cases))
        where = "the only setting" if single == 1 else f"each of the {single} settings"
        reason = f"In {where}, τ is defined with a single seed."
        return Answer(verdict="undecided", reason=reason, left_out=left_out, cause="one seed")
    if saturated == len(counted):
        answer = without_counted_rows(saturated=saturated, excluded=_excluded(cases))
        falls = [case.name for case in cases if case not in counted and not case.excluded and case.values[0] < -KEPT]
        if not falls:
            return answer
        reason = f"{answer.reason.rstrip('.')}. With a single seed, τ falls: {', '.join(falls)}."
        return replace(answer, verdict="undecided", reason=reason, cause="one seed")
    notes = [f"{saturated} of them at the end of the scale before and after"] if saturated else []
    if single:
        notes.append(f"not counted: {plural(single, 'setting')} in which τ is defined with a single seed")
    answer = holds_in_most(
        sum(case.saturated or statistics.fmean(case.values) >= -KEPT for case in counted),
        len(counted),
        what="τ is raised or kept",
        notes=notes,
        excluded=_excluded(cases),
    )
    return replace(answer, evidence=f"{answer.evidence}; in the paper in 85 of 99")


CLAIMS: tuple[Claim, ...] = (
    _over_dot("additive"),
    _over_dot("deep"),
    Claim(
        name="bilstm-additive-best",
        sentence="Of all encoders and kinds of attention, a BiLSTM with additive attention has the highest τ most of "
        "the time (here: on most corpora, no other setting that counts has a higher τ, to two decimals).",
        paper="§5",
        read=_best,
    ),
    Claim(
        name="attention-learns",
        sentence="With fixed attention, τ is lower than in the normal model (here: fixed at its random initialisation; "
        "the paper does not say how it fixes attention).",
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
