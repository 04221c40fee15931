"""Jain & Wallace 2019, "Attention is not Explanation": agreement, permuted attention and adversarial attention.

The numbers of the paper come from the outputs that its published code stores. For permuted and adversarial attention,
the paper and its code have only figures, without numbers.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence

from attnaudit.checks.builtin.adversarial_divergence import AdversarialDivergence
from attnaudit.checks.builtin.agreement import Agreement
from attnaudit.checks.builtin.permutation_fragility import PermutationFragility
from attnaudit.errors import ModelError
from attnaudit.research.reproduction.corpora import corpus
from attnaudit.research.reproduction.figures import quantity_axes as axes
from attnaudit.research.reproduction.figures.figure_records import Figure
from attnaudit.research.reproduction.figures.paper_figures import (
    class_histogram,
    counterfactual_text,
    permutation_violins,
)
from attnaudit.research.reproduction.model_plans import Plan, jain_wallace
from attnaudit.research.reproduction.paper_tables import (
    MODEL,
    Audit,
    Models,
    Paper,
    Quantity,
    Reading,
    RowPlan,
    TablePlan,
    accuracy,
    column_of,
    detail_of,
    reference_of,
    value_of,
)
from attnaudit.research.reproduction.papers.jain_wallace_claims import CLAIMS, remedies
from attnaudit.research.reproduction.papers.jain_wallace_numbers import NUMBERS
from attnaudit.research.reproduction.verdicts_on_claims.goals import Goal, within

#: Index of a class -> its place in the alphabetical order of the classes.
ORDINALS = ("first", "second", "third")
#: Encoder in the name of a row -> its title.
ENCODERS = {"bilstm": "BiLSTM", "average": "average", "cnn": "CNN"}
ALIGNMENTS = ("additive", "dot")
#: Parts of a row's name -> the encoder and the alignment of the published code, where they have another name here.
AS_PUBLISHED_PARTS = {"cnn": "narrow_cnn", "dot": "small_dot"}
#: The published search runs on at most this many texts, because it takes 500 steps from each of 5 starts.
SEARCHED = 100

GRADIENT = Agreement(importance="gradient", preset="jain_wallace", severity="report")
LEAVE_ONE_OUT = Agreement(importance="leave_one_out", severity="report")
PERMUTED = PermutationFragility(severity="report")
EXACT = {epsilon: AdversarialDivergence(tvd=epsilon, severity="report") for epsilon in (0.01, 0.05)}
AS_PUBLISHED = {
    epsilon: AdversarialDivergence(tvd=epsilon, preset="jain_wallace", severity="report") for epsilon in EXACT
}


def published(of: str, encoder: str, alignment: str) -> Plan:
    """Return the plan of a model as the published code builds it.

    Args:
        of: The name of the corpus.
        encoder: The encoder in the name of the row.
        alignment: The alignment in the name of the row.

    Raises:
        ModelError: The model cannot be built.
    """
    parts = AS_PUBLISHED_PARTS
    return jain_wallace(of, encoder=parts.get(encoder, encoder), alignment=parts.get(alignment, alignment))


def rows(corpora: Sequence[str], numbers: Mapping[tuple[str, str, str], Mapping[str, float]]) -> list[RowPlan]:
    """Return one row for every corpus, encoder and alignment.

    Args:
        corpora: The names of the corpora.
        numbers: (corpus, encoder, alignment) -> name of a quantity -> number in the paper.
    """
    plans = []
    for name in corpora:
        for encoder, encoder_title in ENCODERS.items():
            for alignment in ALIGNMENTS:
                models, unavailable = {}, ""
                try:
                    models = {MODEL: published(name, encoder, alignment)}
                except ModelError as error:
                    unavailable = str(error)
                plans.append(
                    RowPlan(
                        name=f"{name}/{encoder}/{alignment}",
                        title=f"{corpus(name).title}, {encoder_title}, {alignment}",
                        corpus=name,
                        models=models,
                        paper=numbers.get((name, encoder, alignment), {}),
                        unavailable=unavailable,
                    )
                )
    return plans


def _with_numbers(corpora: Sequence[str]) -> list[RowPlan]:
    return rows(corpora, NUMBERS)


def _without_numbers(corpora: Sequence[str]) -> list[RowPlan]:
    return rows(corpora, {})


def _agreement(check: Agreement, name: str, words: str) -> list[Quantity]:
    return [
        Quantity(name=name, words=f"τ-b with {words}, mean over texts", read=value_of(check.id), axis=axes.TAU_B),
        Quantity(
            name=f"{name} std",
            words="… standard deviation over texts",
            label=f"τ-b with {name}, standard deviation over texts",
            read=detail_of(check.id, "standard deviation"),
        ),
        Quantity(
            name=f"{name} significant",
            words="… share with p ≤ .05",
            label=f"τ-b with {name}, share of texts with p ≤ .05",
            read=detail_of(check.id, "share of texts with p ≤ .05 (depends mostly on their length)"),
            axis=axes.SHARE,
        ),
        *(one for index in range(len(ORDINALS)) for one in _of_class(index, check, name)),
    ]


def _of_class(index: int, check: Agreement, name: str) -> list[Quantity]:
    """Return the quantities of the texts that are predicted as one class, as in table 2 of the paper."""
    tau, p_value = f"agreement.{check.column}.tau", f"agreement.{check.column}.p_value"
    of = f"texts predicted as the {ORDINALS[index]} class"
    return [
        Quantity(
            name=f"{name} class {index}",
            words="… mean where {} is predicted",
            label=f"τ-b with {name}, mean over {of}",
            read=column_of(tau, statistics.fmean, of_class=index),
            of_class=index,
            axis=axes.TAU_B,
        ),
        Quantity(
            name=f"{name} class {index} std",
            words="… standard deviation where {} is predicted",
            label=f"τ-b with {name}, standard deviation over {of}",
            read=column_of(tau, _std, of_class=index),
            of_class=index,
        ),
        Quantity(
            name=f"{name} class {index} significant",
            words="… share with p ≤ .05 where {} is predicted",
            label=f"τ-b with {name}, share of {of} with p ≤ .05",
            read=column_of(p_value, _share_significant, of_class=index),
            of_class=index,
            axis=axes.SHARE,
        ),
    ]


def _std(values: Sequence[float]) -> float | None:
    return statistics.stdev(values) if len(values) > 1 else None


def _share_significant(p_values: Sequence[float]) -> float:
    return statistics.fmean(p <= 0.05 for p in p_values)


def _agreement_figures(row: RowPlan, models: Models) -> list[Figure]:
    return [
        class_histogram(
            row,
            models,
            f"agreement.{check.column}.tau",
            name=name,
            title=f"τ-b of attention with {words}",
            x_label="Kendall τ-b",
            low=-1.0,
            high=1.0,
            bins=20,
        )
        for check, name, words in ((GRADIENT, "gradient", "the gradient"), (LEAVE_ONE_OUT, "loo", "leave-one-out"))
    ]


def _permutation_figures(row: RowPlan, models: Models) -> list[Figure]:
    return [permutation_violins(row, models, f"{PERMUTED.column}.tvd")]


def _adversarial_figures(row: RowPlan, models: Models) -> list[Figure]:
    histogram = class_histogram(
        row,
        models,
        f"{EXACT[0.01].column}.jsd",
        name="jsd",
        title="largest JSD at TVD ≤ 0.01",
        x_label="JSD, nats (at most ln 2 = 0.693)",
        low=0.0,
        high=0.7,
        bins=14,
    )
    text = counterfactual_text(row, models, "0.01")
    return [histogram] if text is None else [text, histogram]


def _share_above(limit: float) -> Quantity:
    return Quantity(
        name=f"share above {limit:g}",
        axis=axes.SHARE,
        words=f"share of texts above {limit:g} nats, TVD ≤ .01",
        read=column_of(f"{EXACT[0.01].column}.jsd", lambda values: statistics.fmean(x > limit for x in values)),
    )


def _searched(epsilon: float, words: str) -> list[Quantity]:
    exact, published = EXACT[epsilon], AS_PUBLISHED[epsilon]
    return [
        Quantity(
            name=f"jsd {words}", words=f"largest JSD, TVD ≤ {words}, mean", read=value_of(exact.id), axis=axes.JSD
        ),
        Quantity(
            name=f"share {words}",
            words="… as a share of the unconstrained maximum",
            read=detail_of(exact.id, "mean share of the largest possible JSD"),
        ),
        Quantity(
            name=f"searched {words}", words=f"… found by the published search, on at most {SEARCHED} texts",
            label=f"largest JSD found by the published search, TVD ≤ {words}, on at most {SEARCHED} texts, mean",
            read=value_of(published.id), axis=axes.JSD,
        ),
        Quantity(
            name=f"excess {words}", words="… largest JSD minus that of the search, same texts", read=_excess(epsilon)
        ),
    ]  # fmt: skip


def _excess(epsilon: float) -> Callable[[Models], Reading]:
    """Return a function that compares the exact adversary with the published search.

    For each text, the JSD that the search finds is subtracted from the JSD that the exact adversary finds. The function
    returns the mean over the texts for which both are defined.
    """
    exact, published = f"{EXACT[epsilon].column}.jsd", f"{AS_PUBLISHED[epsilon].column}.jsd"

    def read(models: Models) -> Reading:
        columns = models[MODEL].having(published).scalars
        gaps = [
            a - b for a, b in zip(columns[exact], columns[published], strict=True) if a is not None and b is not None
        ]
        return (statistics.fmean(gaps) if gaps else None), len(gaps)

    return read


PAPER = Paper(
    name="jain-wallace",
    title="Attention is not Explanation",
    citation="Sarthak Jain and Byron C. Wallace. NAACL 2019.",
    corpora=("sst", "imdb", "agnews", "20news", "snli", "babi-1", "babi-2", "babi-3"),
    claims=CLAIMS,
    remedies=remedies,
    deviations=(
        "The best epoch is chosen by F1 on dev. The published code chooses it by ROC AUC on dev (SNLI and bAbI: by "
        "accuracy), and never chooses the first epoch.",
        "The published models start from fastText vectors of the Simple English Wikipedia (SNLI: GloVe, 840B), 300 "
        "wide. Words without a vector start at zero there. The models of bAbI start from random embeddings.",
        "The published code treats words as unknown that occur in fewer than a given number of texts: 10 on IMDb, 5 on "
        "AG News, 3 on SNLI and 2 on 20News; on SST and bAbI, it keeps all words.",
        "The encoder 'average' has a tanh after its linear layer, as in the published code; the paper's text says "
        "ReLU. The CNN and dot attention are those of the published code. The CNN has filters of widths 1, 3, 5 and 7. "
        "Dot attention is hᵀq/√m. Unless the model reads a question or hypothesis, q is learnt and starts uniformly "
        "from [−1/√m, 1/√m].",
        "The loss of a batch is the mean over its texts; the published code uses the sum. With Adam, the mean "
        "only makes weight decay stronger. On 20News, a model trained with the sum was no better (accuracy .885 "
        "against .891, one seed).",
        "ADR Tweets, the MIMIC corpora (Anemia, Diabetes) and CNN News Articles are left out, because they are not "
        "freely available.",
    ),
    goals=(
        Goal(
            sentence="τ-b of BiLSTMs with additive attention is within .05 of the paper's",
            read=within("agreement", ("gradient", "leave-one-out"), 0.05, part="/bilstm/additive"),
            cause="On 20News, the cause is unknown. Models with random embeddings that were trained for 8 epochs and "
            "without word dropout had τ-b near the paper's there, but a lower accuracy; models from GloVe, also "
            "trained for 8 epochs, do not (see docs/reproduction.md).",
        ),
    ),
    tables=(
        TablePlan(
            name="agreement",
            title="Attention and feature importance",
            source="table 2 and section 4.1 (numbers: the outputs that the published code stores in graph_outputs)",
            rows=_with_numbers,
            quantities=(
                Quantity(name="accuracy", words="accuracy", read=accuracy, score_of=MODEL, axis=axes.ACCURACY),
                *_agreement(GRADIENT, "gradient", "gradient × input (attention held constant)"),
                *_agreement(LEAVE_ONE_OUT, "leave-one-out", "leave-one-out"),
                Quantity(
                    name="importance",
                    words="for comparison: τ-b between gradient and leave-one-out",
                    label="τ-b between gradient and leave-one-out (for comparison)",
                    read=reference_of(GRADIENT.id, "gradient_loo"),
                    axis=axes.TAU_B,
                ),
            ),
            audits=(Audit(checks=(GRADIENT, LEAVE_ONE_OUT)),),
            figures=_agreement_figures,
        ),
        TablePlan(
            name="permutation",
            title="Permuted attention",
            source="section 4.2.1, violin plots without numbers",
            rows=_without_numbers,
            quantities=(
                Quantity(
                    name="mean",
                    words="median TVD over 100 permutations, mean over texts",
                    read=value_of(PERMUTED.id),
                    axis=axes.TVD,
                ),
                Quantity(
                    name="median",
                    words="… median over texts",
                    label="median TVD over 100 permutations, median over texts",
                    read=column_of("permutation.tvd", statistics.median),
                    axis=axes.TVD,
                ),
                *(
                    Quantity(
                        name=f"class {index}",
                        words="… mean where {} is predicted",
                        read=column_of("permutation.tvd", statistics.fmean, of_class=index),
                        of_class=index,
                    )
                    for index in range(len(ORDINALS))
                ),
                Quantity(
                    name="drop",
                    words="drop in F1, mean over permutations",
                    axis=axes.DROP,
                    read=detail_of(PERMUTED.id, "drop in F1"),
                ),
            ),
            audits=(Audit(checks=(PERMUTED,)),),
            figures=_permutation_figures,
            drawn=("mean", "median", "drop"),
        ),
        TablePlan(
            name="adversarial",
            title="Adversarial attention",
            source="figure 1 and section 4.2.2, histograms without numbers",
            rows=_without_numbers,
            quantities=(*_searched(0.01, ".01"), *_searched(0.05, ".05"), _share_above(0.6)),
            audits=(
                Audit(checks=tuple(EXACT.values()), tokens=("attention", f"{EXACT[0.01].column}.attention")),
                Audit(checks=(*EXACT.values(), *AS_PUBLISHED.values()), instances=SEARCHED),
            ),
            figures=_adversarial_figures,
            drawn=("jsd .01", "searched .01", "jsd .05", "searched .05"),
            deviations=(
                "If the decoder is linear and there are two classes, the largest JSD is the exact optimum; otherwise, "
                "it is the largest one that was found. The paper uses a gradient-based search.",
                f"The search with the published settings (5 starts, 500 steps) runs on at most {SEARCHED} texts.",
            ),
        ),
    ),
)
