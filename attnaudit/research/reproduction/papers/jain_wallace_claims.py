"""The claims of Jain & Wallace 2019, and the remedy that follows from their models with word vectors."""

from __future__ import annotations

import math
from statistics import fmean, median

from attnaudit.formatting import plural
from attnaudit.research.reproduction.corpora import corpus
from attnaudit.research.reproduction.paper_report import Reproduction
from attnaudit.research.reproduction.remedies_file import Remedy
from attnaudit.research.reproduction.verdicts_on_claims.claim_cases import (
    TAU_ENDS,
    Case,
    differences_between_rows,
    differences_within_rows,
    each_row,
    exclusion,
    row_names,
    values_by_seed,
)
from attnaudit.research.reproduction.verdicts_on_claims.claims import (
    Answer,
    Claim,
    holds_in_every_case,
    without_counted_rows,
)

#: Two attention distributions count as different if their JSD, in nats, is above this value.
DIFFERENT_ATTENTION = math.log(2) / 2
#: Two outputs count as the same if their TVD is below this value.
SAME_OUTPUT = 0.1
IMPORTANCE = ("gradient", "leave-one-out")
#: A smaller effect does not count as a remedy. `attnaudit.research.validation` uses the same number.
LEAST_EFFECT = 0.02


def _recurrent(cases: list[Case]) -> list[Case]:
    return [case for case in cases if "bilstm" in case.name.split("/")]


def _agrees_little(report: Reproduction) -> Answer:
    cases = [
        case.renamed(f"{case.name}, {quantity}")
        for quantity in IMPORTANCE
        for case in _recurrent(differences_within_rows(report, "agreement", "importance", quantity, ends=TAU_ENDS))
    ]
    return holds_in_every_case(
        cases, what="τ-b between gradient and leave-one-out, minus τ-b between attention and either of them"
    )


def _agrees_more_without_context(report: Reproduction) -> Answer:
    cases = [
        case.renamed(f"{case.name}, {quantity}")
        for quantity in IMPORTANCE
        for case in differences_between_rows(report, "agreement", quantity, "average", "bilstm", ends=TAU_ENDS)
    ]
    return holds_in_every_case(cases, what="τ-b between attention and importance, encoder 'average' minus BiLSTM")


def _permuting_changes_little(report: Reproduction) -> Answer:
    cases = [case.reversed().shifted(SAME_OUTPUT) for case in each_row(report, "permutation", "median")]
    return holds_in_every_case(
        _recurrent(cases), what=f"{SAME_OUTPUT:g} minus the median TVD under permuted attention"
    )  # fmt: skip


def _different_attention_exists(report: Reproduction) -> Answer:
    cases = each_row(report, "adversarial", "jsd .01", minus=DIFFERENT_ATTENTION)
    return holds_in_every_case(_recurrent(cases), what="mean JSD minus ½ ln 2")


def _search_falls_short(report: Reproduction) -> Answer:
    """Answer whether the exact adversary finds attention that differs more than that of the published search.

    Means over texts are compared without an interval, because the exact adversary finds the true optimum. Models that
    also read a query are left out, because their optimum is not exact.
    """
    names = [name for name in row_names(report, "adversarial") if corpus(name.partition("/")[0]).form == "text"]
    cases = [case for case in each_row(report, "adversarial", "excess .01") if case.name in names]
    excluded = [case for case in cases if case.excluded]
    least_by_row = {
        f"{name}, ε = {epsilon}": value
        for name in names
        if not exclusion(report, "adversarial", name)
        for epsilon in (".01", ".05")
        for value in [min(values_by_seed(report, "adversarial", name, f"excess {epsilon}").values(), default=None)]
        if value is not None
    }
    if not least_by_row:
        return without_counted_rows(saturated=0, excluded=excluded)
    least = min(least_by_row, key=lambda name: least_by_row[name])
    above = sum(value > 0 for value in least_by_row.values())
    return Answer(
        verdict="holds" if least_by_row[least] > 0 else "does not hold",
        reason=f"The difference is above 0 with every seed in {above} of {plural(len(least_by_row), 'comparison')}.",
        evidence="exact mean JSD minus that of the published search, for the seed with the smallest difference: lowest "
        f"{least} {least_by_row[least]:+.3f}",
        left_out=tuple(case.name for case in excluded),
    )


CLAIMS = (
    Claim(
        name="attention agrees little",
        sentence="In recurrent models, attention agrees less with gradient and leave-one-out than these two agree with "
        "each other.",
        paper="§4.1",
        read=_agrees_little,
    ),
    Claim(
        name="without context it agrees more",
        sentence="Attention agrees more with gradient and leave-one-out when words are encoded one by one than when a "
        "BiLSTM encodes them.",
        paper="§4.1",
        read=_agrees_more_without_context,
    ),
    Claim(
        name="permuting changes little",
        sentence=f"In recurrent models, permuting attention hardly changes the output (here: a median TVD below "
        f"{SAME_OUTPUT:g}).",
        paper="§4.2.1",
        read=_permuting_changes_little,
        explanations={
            "20news/*/additive": "On 20News, the BiLSTM with additive attention that starts from word vectors depends "
            "on its attention: its median TVD is .236, against .014 from random embeddings (with other epochs and word "
            "dropout) and .003 with dot attention. Tutek & Šnajder 2020, table 1, also report a drop in F1 of .141 "
            "under permuted additive attention.",
            "babi-1/*": "On bAbI-1, the BiLSTM with dot attention depends on its attention: its median TVD is .853 "
            "(random embeddings), against at most .014 in the other rows that count.",
        },
    ),
    Claim(
        name="other attention gives the same output",
        sentence="In recurrent models, very different attention (here: a JSD above ½ ln 2) gives the same output.",
        paper="§4.2.2",
        read=_different_attention_exists,
    ),
    Claim(
        name="the search falls short",
        sentence="The exact adversary finds attention that differs more from the model's attention than what the "
        "published search finds. (The paper does not claim this; it only searches. This claim is not counted.)",
        paper="§4.2.2",
        read=_search_falls_short,
        ours=True,
    ),
)


def remedies(report: Reproduction, random: Reproduction | None) -> tuple[Remedy, ...]:
    """Return the remedy "start from word vectors" if word vectors raise the TVD under permuted attention.

    `PermutationFragility` measures this TVD. The text of the remedy gives medians over the recurrent models that were
    measured with at least two seeds, both with word vectors and without. Models that start from word vectors count only
    if they are trained as well as those of the paper. Corpora on which models with random embeddings are trained with
    other settings are left out.

    Args:
        report: The report from word vectors.
        random: The report from random embeddings. None if there is none.

    Returns:
        The remedy. It is absent if `random` is None or `report` has no word vectors, because there is nothing to
        compare.
    """
    if report.vectors is None or random is None:
        return ()
    both = (random, report)
    compared = (("permutation", "mean"), ("agreement", "accuracy"))
    counts = {
        name: [len(values_by_seed(one, table, name, quantity)) for one in both for table, quantity in compared]
        for name in row_names(report, "permutation")
        if "bilstm" in name.split("/")
        and not exclusion(report, "permutation", name)
        and corpus(name.partition("/")[0]).random_epochs is None
    }
    shared = [name for name, seeds in counts.items() if min(seeds) > 1]
    if not shared:
        return ()
    (tvd_before, tvd_after), (accuracy_before, accuracy_after) = (
        [median(fmean(values_by_seed(one, table, name, quantity).values()) for name in shared) for one in both]
        for table, quantity in compared
    )
    if tvd_after - tvd_before < LEAST_EFFECT:
        return ()
    seeds = sorted({count for name in shared for count in counts[name]})
    each = plural(seeds[0], "seed") if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]} seeds"
    pairs = f"{'medians of ' if len(shared) > 1 else ''}{plural(len(shared), 'pair')} of models"
    words = (
        "start the embedding from word vectors, `attnaudit train --vectors FILE`: permutation_fragility.tvd "
        f"{tvd_before:.2f} → {tvd_after:.2f}, accuracy {accuracy_before:.2f} → {accuracy_after:.2f} ({pairs}, random "
        f"embeddings → {report.vectors.name}, {each} each; reproduction of Jain & Wallace 2019)"
    )
    return (Remedy(question="used", option="vectors", words=words),)
