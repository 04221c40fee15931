"""What Jain & Wallace 2019 say of their numbers."""

from __future__ import annotations

import math
from dataclasses import replace
from statistics import fmean, median

from attnaudit.report.wording import plural
from attnaudit.research.reproduction.claims import (
    Answer,
    Case,
    Claim,
    against,
    by_seed,
    everywhere,
    levels,
    names,
    within,
)
from attnaudit.research.reproduction.corpora import corpus
from attnaudit.research.reproduction.paper_report import Reproduction
from attnaudit.research.reproduction.remedies_file import Remedy

#: JSD from which on attention is called other, in nats; change of output below which it is called the same.
FAR, SAME = math.log(2) / 2, 0.1
IMPORTANCE = ("gradient", "leave-one-out")
#: What moves less than this is no remedy; as in `attnaudit.research.validation`.
LEAST_EFFECT = 0.02


def _recurrent(cases: list[Case]) -> list[Case]:
    return [case for case in cases if "bilstm" in case.name.split("/")]


def _weak(one: Reproduction) -> Answer:
    cases = [
        replace(case, name=f"{case.name}, {quantity}")
        for quantity in IMPORTANCE
        for case in _recurrent(within(one, "agreement", "ceiling", quantity))
    ]
    return everywhere(cases, what="τ-b of gradient with leave-one-out less that of attention with either")


def _average(one: Reproduction) -> Answer:
    cases = [
        replace(case, name=f"{case.name}, {quantity}")
        for quantity in IMPORTANCE
        for case in against(one, "agreement", quantity, "average", "bilstm")
    ]
    return everywhere(cases, what="τ-b of attention with importance, average less BiLSTM")


def _unmoved(one: Reproduction) -> Answer:
    cases = [
        Case(name=name, values=tuple(SAME - value for value in by_seed(one, "permutation", name, "median").values()))
        for name in names(one, "permutation")
    ]
    return everywhere(_recurrent(cases), what=f"{SAME:g} less the median TVD under permuted attention")


def _far(one: Reproduction) -> Answer:
    return everywhere(_recurrent(levels(one, "adversarial", "jsd .01", above=FAR)), what="mean JSD less ½ ln 2")


def _exact(one: Reproduction) -> Answer:
    """By means over texts: one form is exact, so no interval is needed. For models that read a query there is none."""
    found = {
        f"{name}, ε = {epsilon}": value
        for name in names(one, "adversarial")
        if corpus(name.partition("/")[0]).form == "text"
        for epsilon in (".01", ".05")
        for value in [min(by_seed(one, "adversarial", name, f"excess {epsilon}").values(), default=None)]
        if value is not None
    }
    if not found:
        return "undecided", "none of the rows that this needs was run here"
    least = min(found, key=lambda name: found[name])
    return ("yes" if found[least] > 0 else "no"), (
        f"mean JSD, exact, less that of the published search: larger in {sum(x > 0 for x in found.values())} of "
        f"{plural(len(found), 'row')}, by its least seed; least {least} {found[least]:+.3f}"
    )


CLAIMS = (
    Claim(
        name="attention agrees little",
        sentence="In recurrent models attention agrees less with gradient and leave-one-out than they do with each "
        "other.",
        paper="§4.1",
        read=_weak,
    ),
    Claim(
        name="without context it agrees more",
        sentence="Attention agrees more with gradient and leave-one-out where words are encoded alone than under a "
        "BiLSTM.",
        paper="§4.1",
        read=_average,
    ),
    Claim(
        name="permuting changes little",
        sentence=f"In recurrent models the output hardly moves when attention is permuted (here: a median TVD below "
        f"{SAME:g}).",
        paper="§4.2.1",
        read=_unmoved,
    ),
    Claim(
        name="other attention gives the same output",
        sentence="In recurrent models there is far other attention (here: a JSD above ½ ln 2) with the same output.",
        paper="§4.2.2",
        read=_far,
    ),
    Claim(
        name="the search falls short",
        sentence="The exact adversary finds attention further away than the published search does. (Not in the paper, "
        "which has the search alone.)",
        paper="its search",
        read=_exact,
    ),
)


def remedies(one: Reproduction, random: Reproduction | None) -> tuple[Remedy, ...]:
    """Word vectors, where they move what a policy gates: medians over the recurrent models that both reports have, each
    with several seeds."""
    if one.vectors is None or random is None:
        return ()
    both = (random, one)
    shown = (("permutation", "mean"), ("agreement", "accuracy"))
    counts = {
        name: [len(by_seed(report, table, name, quantity)) for report in both for table, quantity in shown]
        for name in names(one, "permutation")
        if "bilstm" in name.split("/")
    }
    shared = [name for name, seeds in counts.items() if min(seeds) > 1]
    if not shared:
        return ()
    (before, after), (plain, started) = (
        [median(fmean(by_seed(report, table, name, quantity).values()) for name in shared) for report in both]
        for table, quantity in shown
    )
    if after - before < LEAST_EFFECT:
        return ()
    seeds = sorted({count for name in shared for count in counts[name]})
    each = plural(seeds[0], "seed") if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]} seeds"
    words = (
        "start the embedding from word vectors, `attnaudit train --vectors FILE`: permutation_fragility.tvd "
        f"{before:.2f} → {after:.2f}, accuracy {plain:.2f} → {started:.2f} (medians of "
        f"{plural(len(shared), 'pair')} of models, random → {one.vectors.name}, {each} each, "
        "Jain & Wallace 2019 done again)"
    )
    return (Remedy(question="used", option="vectors", words=words),)
