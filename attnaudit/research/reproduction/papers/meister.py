"""Meister et al. 2021, "Is Sparse Attention more Interpretable?".

The paper asks whether sparse attention points at important inputs, and which inputs influence the attended hidden
states. The models are a BiLSTM with additive attention and a Transformer (2 layers, 1 head) with scaled dot attention.
Each has the projections softmax, sparsemax and sparsegen. The numbers of the paper come from its tables. Its figures
have no numbers.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping
from functools import partial

from attnaudit.checks.base import Check
from attnaudit.checks.builtin.agreement import Agreement
from attnaudit.checks.builtin.influence_entropy import InfluenceEntropy
from attnaudit.research.reproduction.compare_models import jsd_between
from attnaudit.research.reproduction.figures import quantity_axes as axes
from attnaudit.research.reproduction.figures.figure_records import Figure
from attnaudit.research.reproduction.figures.quantity_figures import CurvePlan, PointPlan
from attnaudit.research.reproduction.grids import (
    overlaid_histograms,
    trend_of_means,
    trend_of_texts,
)
from attnaudit.research.reproduction.paper_tables import (
    MODEL,
    ROW_NAMES,
    Audit,
    Models,
    Paper,
    Quantity,
    Reading,
    RowPlan,
    TablePlan,
    accuracy,
    column_of,
    defined,
    detail_of,
    reference_of,
    value_of,
)
from attnaudit.research.reproduction.papers.meister_claims import CLAIMS
from attnaudit.research.reproduction.papers.meister_models import (
    BASE,
    FROZEN,
    GRID,
    LAMBDAS,
    UNFROZEN,
    adversaries,
    single,
    spectrum,
)
from attnaudit.research.reproduction.papers.meister_numbers import (
    AGREED,
    CORPORA,
    INFLUENCES,
    MEASURES,
    SOFTMAX,
    TRENDS,
)
from attnaudit.research.reproduction.papers.shared_deviations import SHORT
from attnaudit.research.reproduction.verdicts_on_claims.goals import Goal, within

INFLUENCE = InfluenceEntropy(of="hidden", severity="report")
GRADIENT_ENTROPY = InfluenceEntropy(of="gradient", severity="report")
LEFT_OUT_ENTROPY = InfluenceEntropy(of="leave_one_out", severity="report")
AGREEMENTS = dict(
    zip(
        MEASURES,
        (
            Agreement(importance="gradient", preset="meister", severity="report"),
            Agreement(importance="leave_one_out", severity="report"),
            Agreement(importance="gradient", preset="meister", at="hidden", severity="report"),
            Agreement(importance="leave_one_out", at="hidden", severity="report"),
        ),
        strict=True,
    )
)
OF_GRADIENT, OF_LEFT_OUT = "entropy.gradient.meister.inputs", "entropy.leave_one_out.inputs"
TAU_GRADIENT, TAU_LEFT_OUT = "agreement.gradient.meister.inputs.tau", "agreement.leave_one_out.inputs.tau"


def _with_std(check: Check, name: str, words: str, axis: axes.Axis) -> list[Quantity]:
    return [
        Quantity(name=name, words=f"{words}, mean over texts", read=value_of(check.id), axis=axis),
        Quantity(
            name=f"{name} std",
            words="… standard deviation over texts",
            label=f"{words}, standard deviation over texts",
            read=detail_of(check.id, "standard deviation"),
        ),
    ]


def _agreed(measure: str) -> list[Quantity]:
    kind, _, place = measure.rpartition(" ")
    words = f"τ-b with {kind} at {'the inputs' if place == 'inputs' else 'hidden states'}"
    return _with_std(AGREEMENTS[measure], measure, words, axes.TAU_B)


def _accuracy(role: str) -> Callable[[Models], Reading]:
    def read(models: Models) -> Reading:
        return accuracy(models, of=role)

    return read


def _mean_of(column: str, name: str, words: str) -> Quantity:
    return Quantity(name=name, words=words, read=column_of(f"influence.hidden.{column}", statistics.fmean))


def _over_spectrum(column: str, name: str, words: str) -> list[Quantity]:
    """Return quantities for the mean of a column over texts: one for softmax, and one for every λ of sparsegen."""
    return [
        Quantity(name=f"{name} {role}", words=f"{words}, {role}", read=column_of(column, statistics.fmean, of=role))
        for role in (SOFTMAX, *GRID)
    ]


def _trend(column: str, name: str, words: str) -> list[Quantity]:
    return [
        Quantity(
            name=f"{name}means",
            words=f"τ-b between λ and {words}, over models",
            read=trend_of_means(GRID, column),
            axis=axes.TAU_B,
        ),
        Quantity(
            name=f"{name}texts",
            words="… over all pairs of a λ and a text",
            label=f"τ-b between λ and {words}, over all pairs of a λ and a text",
            read=trend_of_texts(GRID, column),
            axis=axes.TAU_B,
        ),
    ]


def _by_lambda(y_label: str, lines: Mapping[str, str]) -> tuple[CurvePlan, ...]:
    """Return a figure over λ. The horizontal axis is log₂ of the factor by which sparsegen multiplies scores.

    Args:
        y_label: The label of the vertical axis.
        lines: Name of a curve -> first part of the names of its quantities (see `_over_spectrum`).
    """
    return (
        CurvePlan(
            name="lambda",
            title=f"{y_label}, by λ",
            x_label="log₂ 1/(1 − λ); attention is sparser to the right",
            y_label=y_label,
            caption="Means over the texts. λ = 0 is sparsemax.",
            lines={
                label: [
                    PointPlan(label=role, x=math.log2(1 / (1 - value)), y=f"{quantity} {role}")
                    for role, value in GRID.items()
                ]
                for label, quantity in lines.items()
            },
        ),
    )


def _entropies(row: RowPlan, models: Models) -> list[Figure]:
    """Return figure 2 of the paper."""
    values = {
        label: [x for role in (SOFTMAX, *GRID) for x in defined(models[role], column)]
        for label, column in (("gradient", OF_GRADIENT), ("leave-one-out", OF_LEFT_OUT))
    }
    return [
        overlaid_histograms(
            row,
            "entropies",
            "entropy of feature importance",
            "normalised entropy",
            values,
            low=0.0,
            high=1.0,
            bins=20,
            caption="All texts under all projections, with the models of all seeds.",
        )
    ]


def _agreement_figures(row: RowPlan, models: Models) -> list[Figure]:
    """Return figures 1 (gradient) and 4 (leave-one-out) of the paper."""
    return [
        overlaid_histograms(
            row,
            kind,
            f"τ-b of attention with {kind}",
            "Kendall τ-b",
            {
                words: defined(models[MODEL], f"{AGREEMENTS[f'{kind} {place}'].subject}.tau")
                for place, words in (("inputs", "at the inputs"), ("hidden", "at hidden states"))
            },
            low=-1.0,
            high=1.0,
            bins=20,
            caption="All texts, with the models of all seeds.",
        )
        for kind in ("gradient", "leave-one-out")
    ]


PAPER = Paper(
    name="meister",
    title="Is Sparse Attention more Interpretable?",
    citation="Clara Meister, Stefan Lazov, Isabelle Augenstein and Ryan Cotterell. ACL 2021.",
    corpora=CORPORA,
    claims=CLAIMS,
    row_names=f"{ROW_NAMES} A fourth part is the projection of attention, or the weight λ of the adversary (table 5).",
    deviations=(
        "The learning rate is 1e-3 (BiLSTM) and 1e-4 (Transformer), ten times the paper's. Models are trained for 8 "
        "epochs, and the best epoch is chosen on dev only; the paper does not say how many epochs it uses. In "
        "the Transformer, the learning rate of attention is ten times that of the other parameters. In the BiLSTM, all "
        "parameters have the same learning rate. The paper uses factors of 1 and 10, and does not say for which model.",
    ),
    goals=(
        Goal(
            sentence="the entropies of table 1 are within .03 of the paper's",
            read=within("influence", ("entropy",), 0.03),
            cause="The cause of differences beyond the margin, if there are any, is unknown. The paper does not say "
            "how many models it trained, or over which texts and hidden states it averages.",
        ),
    ),
    tables=(
        TablePlan(
            name="influence",
            title="Influence of the inputs on hidden states",
            source="table 1",
            rows=partial(single, numbers=INFLUENCES),
            quantities=(
                *_with_std(INFLUENCE, "entropy", "H̃ of the influence of the inputs on h_p, over all p", axes.ENTROPY),
                _mean_of(
                    "co_indexed_entropy", "co-indexed", "co-indexed: H̃ of the influence of x_i on h_i, over all i"
                ),
                _mean_of("own_share", "own share", "share of the influence on a state that comes from its own token"),
                _mean_of("rival_share", "rival share", "largest share that comes from another token"),
            ),
            audits=(Audit(checks=(INFLUENCE,)),),
            deviations=(
                "The paper's number is compared with the mean, over all hidden states h_p, of the entropy of "
                "g_{h_p}(x). A separate line gives the co-indexed version: one distribution per text, which "
                "contains the influence of each token on its own state.",
                "In the Transformer, hidden states are taken before the last layer normalisation. After it, the norm "
                "of a state would be nearly constant, and the measure is the gradient of this norm. The paper does not "
                "say where it takes the states.",
            ),
        ),
        TablePlan(
            name="sparsity",
            title="Sparsity of attention and entropy of importance",
            source="table 2",
            rows=partial(spectrum, numbers=TRENDS),
            quantities=(
                *_trend(OF_GRADIENT, "", "H̃ of the gradient at the inputs"),
                Quantity(
                    name="peaks",
                    words="τ-b between λ and the mean largest weight (is attention sparser at a larger λ?)",
                    read=trend_of_means(GRID, "attention.max"),
                ),
            ),
            audits=(Audit(checks=(GRADIENT_ENTROPY,)),),
            deviations=(
                "The paper states neither its values of λ nor what its τ-b is computed over, so its number is compared "
                "with two of ours: over models, and over all pairs of a λ and a text. Here, λ is "
                f"{', '.join(f'{x:g}' for x in LAMBDAS)}.",
            ),
        ),
        TablePlan(
            name="importance-entropy",
            title="Entropy of feature importance",
            source="figure 2, without numbers",
            rows=partial(spectrum, numbers={}),
            quantities=(
                *_over_spectrum(OF_GRADIENT, "gradient", "H̃ of the gradient"),
                *_over_spectrum(OF_LEFT_OUT, "leave-one-out", "H̃ of leave-one-out"),
            ),
            audits=(Audit(checks=(GRADIENT_ENTROPY, LEFT_OUT_ENTROPY)),),
            figures=_entropies,
            curves=_by_lambda("mean normalised entropy", {"gradient": "gradient", "leave-one-out": "leave-one-out"}),
        ),
        TablePlan(
            name="agreement-by-sparsity",
            title="Attention and the importance of the inputs, by λ",
            source="figure 3, for IMDb and without numbers",
            rows=partial(spectrum, numbers={}),
            quantities=(
                *_trend(TAU_GRADIENT, "gradient ", "the τ-b of attention with the gradient"),
                *_trend(TAU_LEFT_OUT, "leave-one-out ", "the τ-b of attention with leave-one-out"),
                *_over_spectrum(TAU_GRADIENT, "gradient", "τ-b with the gradient"),
                *_over_spectrum(TAU_LEFT_OUT, "leave-one-out", "τ-b with leave-one-out"),
            ),
            audits=(Audit(checks=(AGREEMENTS["gradient inputs"], AGREEMENTS["leave-one-out inputs"])),),
            curves=_by_lambda("mean τ-b", {"gradient": "gradient", "leave-one-out": "leave-one-out"}),
        ),
        TablePlan(
            name="adversary",
            title="Trained adversaries",
            source="table 5; accuracy of the base model: table 3",
            rows=adversaries,
            quantities=(
                Quantity(
                    name="accuracy base",
                    words="accuracy, base model",
                    read=_accuracy(BASE),
                    score_of=BASE,
                    axis=axes.ACCURACY,
                ),
                *(
                    quantity
                    for role in (FROZEN, UNFROZEN)
                    for quantity in (
                        Quantity(
                            name=f"jsd {role}",
                            words=f"JSD between the attention of the {role} adversary and the base model's",
                            read=jsd_between(role, BASE),
                            axis=axes.JSD,
                        ),
                        Quantity(
                            name=f"accuracy {role}",
                            words="… its accuracy",
                            label=f"accuracy, {role} adversary",
                            read=_accuracy(role),
                            axis=axes.ACCURACY,
                        ),
                    )
                ),
            ),
            audits=(Audit(checks=(), tokens=("attention",)),),
            deviations=(
                "The paper uses the loss of Wiegreffe & Pinter 2019, TVD(outputs) − λ KL(attentions), and does not say "
                "with which λ. Here, three values of λ are used for each corpus: that of Wiegreffe & Pinter (doubled, "
                "because their code halves the TVD), and 10 and 100 times this value. The paper's numbers are compared "
                "with all three.",
                "frozen: the adversary keeps the base model's parameters, and only its attention is trained, starting "
                "from another seed. unfrozen: the whole adversary is trained.",
                SHORT,
            ),
        ),
        TablePlan(
            name="agreement",
            title="Attention and importance, at the inputs and at hidden states",
            source="table 6, figures 1 and 4; accuracy: table 3",
            rows=partial(single, numbers=AGREED),
            quantities=(
                Quantity(name="accuracy", words="accuracy", read=accuracy, score_of=MODEL, axis=axes.ACCURACY),
                *(quantity for measure in MEASURES for quantity in _agreed(measure)),
                Quantity(
                    name="importance",
                    words="for comparison: τ-b between gradient and leave-one-out at the inputs",
                    read=reference_of(AGREEMENTS["gradient inputs"].id, "gradient_loo"),
                ),
            ),
            audits=(Audit(checks=tuple(AGREEMENTS.values())),),
            figures=_agreement_figures,
            deviations=(
                "Leave-one-out at a hidden state removes its weight and rescales the other weights to sum to 1; the "
                "paper does not say how it leaves a hidden state out.",
            ),
        ),
    ),
)
