"""Wiegreffe & Pinter 2019, "Attention is not not Explanation": four tests of attention that retrain models.

The models are BiLSTMs with additive attention. The tests use uniform weights, other seeds, an MLP that is guided by the
attention of the model, and a trained adversary.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence

from attnaudit.checks.builtin.adversarial_divergence import AdversarialDivergence
from attnaudit.checks.builtin.trained_adversary import SWEEP
from attnaudit.checks.builtin.uniform_fragility import UniformFragility
from attnaudit.research.reproduction.compare_models import (
    difference_of,
    jsd_between,
    jsd_by_text,
    over_roles,
    over_roles_by_text,
    statistic_by_text,
    tvd_between,
    tvd_by_text,
)
from attnaudit.research.reproduction.corpora import EMBEDDED, corpus
from attnaudit.research.reproduction.figures import quantity_axes as axes
from attnaudit.research.reproduction.figures.figure_records import Curve, CurvePoint, Figure
from attnaudit.research.reproduction.figures.paper_figures import violins_by_attention
from attnaudit.research.reproduction.figures.quantity_figures import CurvePlan, PointPlan
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
    f1,
    value_of,
)
from attnaudit.research.reproduction.papers.jain_wallace_numbers import NUMBERS
from attnaudit.research.reproduction.papers.shared_deviations import HALVED, LONG, SHORT
from attnaudit.research.reproduction.papers.wiegreffe_pinter_claims import CLAIMS, LEFT_OUT

#: Corpus -> λ of the adversary, as the published code defines it (Wen, Subbalakshmi & Yang 2022, table 3). No λ is
#: published for the packaged sentences.
LAMBDA = {"sst": 5.25e-4, "imdb": 8e-4, "agnews": 5e-4, "20news": 5e-4, EMBEDDED: 5e-4}
#: Corpus -> accuracy of the model, and accuracy, TVD and JSD of the adversary (Wen, Subbalakshmi & Yang 2022, tables 1
#: and 3).
REPEATED = {
    "sst": (0.82, 0.82, 0.036, 0.316),
    "imdb": (0.90, 0.90, 0.021, 0.482),
    "agnews": (0.96, 0.96, 0.009, 0.664),
    "20news": (0.92, 0.90, 0.037, 0.391),
}
#: Corpus -> F1 of the model, for the class that our F1 is about (Jain & Wallace 2019, graph_outputs/evaluate).
F1 = {"sst": 0.784, "imdb": 0.896, "agnews": 0.958, "20news": 0.917}
WORLD_OF_BOTH = (
    "AG News: our F1, and that of Jain & Wallace next to it (test 1), are for the class World. In the published code, "
    "F1 is for Business."
)
#: The number of models with other seeds with which one model is compared.
SEEDS = 8
OTHERS = tuple(f"seed {seed}" for seed in range(1, SEEDS + 1))
NEXT, UNIFORM, TWIN = "next seed", "uniform", "adversary"
GUIDES = {
    "uniform": ("imposed_mlp_uniform", "uniform weights"),
    "learnt": ("mlp", "weights that the MLP learns"),
    "base": ("imposed_mlp", "the BiLSTM's weights"),
    "adversary": ("imposed_mlp_adversary", "the adversary's weights"),
}
SWEPT = {f"λ × {times:g}": times for times in SWEEP}
EXACT = {epsilon: AdversarialDivergence(tvd=epsilon, severity="report") for epsilon in (0.01, 0.05)}
#: This check reads attention. Attention is therefore stored and can be compared between models.
ATTENTION = UniformFragility(severity="report")
#: First part of the name of a quantity -> its axis.
AXES = {"accuracy": axes.ACCURACY, "f1": axes.F1, "jsd": axes.JSD, "tvd": axes.TVD}
JSD_LABEL = "JSD, nats (at most ln 2 = 0.693)"


def base(of: str) -> Plan:
    """Return the plan of the model that the tests are about.

    Args:
        of: The name of the corpus.
    """
    return jain_wallace(of, encoder="bilstm", alignment="additive")


def twin(of: str, times: float = 1.0, *, name: str = "adversary") -> Plan:
    """Return the plan of the adversary of the base model.

    λ is twice the published λ, because the published code has a single sigmoid output, which halves the TVD.

    Args:
        of: The name of the corpus.
        times: A factor by which λ is multiplied.
        name: The name of the variant in VARIANTS.
    """
    return base(of).as_variant(name, float(f"{2 * LAMBDA[of] * times:.6g}"))


def _rows(
    models: Callable[[str], Mapping[str, Plan]],
    *,
    numbers: Mapping[str, Mapping[str, float]] | None = None,
    once: bool = False,
) -> Callable[[Sequence[str]], list[RowPlan]]:
    def rows(corpora: Sequence[str]) -> list[RowPlan]:
        return [
            RowPlan(
                name=f"{name}/bilstm/additive",
                title=f"{corpus(name).title}, BiLSTM, additive",
                corpus=name,
                models={MODEL: base(name), **models(name)},
                paper=(numbers or {}).get(name, {}),
                once=once,
            )
            for name in corpora
        ]

    return rows


def _guided(of: str) -> dict[str, Plan]:
    return {
        role: twin(of, name=variant) if role == "adversary" else base(of).as_variant(variant)
        for role, (variant, _) in GUIDES.items()
    }


def _swept(of: str) -> dict[str, Plan]:
    swept = {role: twin(of, times, name="twin") for role, times in SWEPT.items()}
    return {**swept, NEXT: base(of).with_seed(1), UNIFORM: base(of).as_variant("uniform")}


def _f1_of(role: str) -> Callable[[Models], Reading]:
    return lambda models: f1(models, of=role)


def _accuracy_of(role: str) -> Callable[[Models], Reading]:
    return lambda models: accuracy(models, of=role)


def _number(name: str, words: str, read: Callable[[Models], Reading], *, score_of: str = "") -> Quantity:
    """Return a quantity. The first part of its name, such as "jsd", determines its axis."""
    return Quantity(name=name, words=words, read=read, score_of=score_of, axis=AXES.get(name.split()[0], axes.NUMBER))


def _further(models: Models) -> Reading:
    """Compute how often the adversary's attention differs more from the base model's than the next seed's does.

    Returns:
        The share of the texts on which it differs more, and the number of texts on which both differences are defined.
    """
    pairs = zip(jsd_by_text(models, TWIN), jsd_by_text(models, NEXT), strict=True)
    known = [a > b for a, b in pairs if a is not None and b is not None]
    return (statistics.fmean(known) if known else None), len(known)


def _violins(row: RowPlan, models: Models) -> list[Figure]:
    exact = f"{EXACT[0.01].column}.jsd"
    audit = models[MODEL].having(exact)
    return [
        violins_by_attention(
            row,
            audit,
            statistic_by_text(jsd_by_text, OTHERS, statistics.median)(models),
            name="seeds",
            title="attention of other seeds",
            caption=f"Median JSD to {SEEDS} models from other seeds",
            x_label=JSD_LABEL,
        ),
        violins_by_attention(
            row,
            audit,
            audit.scalars[exact],
            name="per-text-adversary",
            title="other attention with the same output, found text by text",
            caption="Largest JSD at TVD ≤ .01 (the adversary of Jain & Wallace 2019)",
            x_label=JSD_LABEL,
        ),
    ]


CURVE = CurvePlan(
    name="curve",
    title="change of attention by change of output",
    x_label="mean TVD between outputs",
    y_label=f"mean {JSD_LABEL}",
    caption="Means over the test texts; each model is compared with the plain one. Points in the upper left have "
    "different attention and the same output. λ is given as a multiple of the λ in the table above.",
    lines={
        "trained adversary, over λ": [PointPlan(label=role, x=f"tvd {role}", y=f"jsd {role}") for role in SWEPT],
        "next seed": [PointPlan(label=NEXT, x=f"tvd {NEXT}", y=f"jsd {NEXT}")],
        "trained with uniform weights": [PointPlan(label=UNIFORM, x=f"tvd {UNIFORM}", y=f"jsd {UNIFORM}")],
        "per-text adversary, TVD ≤ .01 and .05": [
            PointPlan(label=f"TVD ≤ {epsilon:g}", x=f"tvd per text {epsilon:g}", y=f"jsd per text {epsilon:g}")
            for epsilon in EXACT
        ],
    },
    published={
        name: Curve(
            name="trained adversary of Wen et al. 2022, λ × 1",
            seeds=[[CurvePoint(label="Wen et al. 2022", x=tvd, y=jsd)]],
        )
        for name, (_, _, tvd, jsd) in REPEATED.items()
    },
    about_published="The square is the adversary of Wen, Subbalakshmi & Yang 2022 (table 3) with the same λ as λ × 1. "
    "If its TVD is halved, as in the published code, the TVD as we compute it would be twice as large.",
)


PAPER = Paper(
    name="wiegreffe-pinter",
    title="Attention is not not Explanation",
    citation="Sarah Wiegreffe and Yuval Pinter. EMNLP-IJCNLP 2019.",
    corpora=("sst", "imdb", "agnews", "20news"),
    deviations=(
        "The best epoch is chosen on dev only: by F1 or, for adversaries, by their loss.",
        "The paper's clinical data sets (Diabetes, Anemia) are not publicly available and are left out.",
        "This paper's own numbers are not filled in: we had only its published code "
        "(https://github.com/sarahwie/attention), which stores no results, and not the tables of the paper. If our "
        "numbers are compared with those of another paper, the source of the table names that paper.",
        "The paper leaves AG News and 20News out of tests 2 to 4, because models with uniform weights do as well on "
        "them (test 1). Our rows of these corpora are shown, but do not count for the claims about tests 2 to 4.",
    ),
    claims=CLAIMS,
    tables=(
        TablePlan(
            name="uniform",
            title="Models trained with attention and with uniform weights",
            source="test 1, table 2; the numbers are those of the same model in Jain & Wallace 2019, from the outputs "
            "that their published code stores",
            compared_with="other paper",
            rows=_rows(
                lambda of: {UNIFORM: base(of).as_variant("uniform")},
                numbers={
                    name: {"accuracy": NUMBERS[name, "bilstm", "additive"]["accuracy"], "f1": F1[name]}
                    for name in REPEATED
                },
            ),
            quantities=(
                _number("f1", "F1, attention", _f1_of(MODEL)),
                _number("f1 uniform", "F1, uniform weights", _f1_of(UNIFORM)),
                _number("gain", "… gain in F1 from attention", difference_of(_f1_of(MODEL), _f1_of(UNIFORM))),
                _number("accuracy", "accuracy, attention", _accuracy_of(MODEL), score_of=MODEL),
                _number("accuracy uniform", "accuracy, uniform weights", _accuracy_of(UNIFORM)),
            ),
            audits=(),
            drawn=("f1", "f1 uniform"),
            deviations=(WORLD_OF_BOTH,),
        ),
        TablePlan(
            name="seeds",
            title="Attention of models that differ only in their seed",
            source="test 2, figure 3, without numbers",
            left_out=LEFT_OUT,
            rows=_rows(lambda of: {role: base(of).with_seed(seed) for seed, role in enumerate(OTHERS, 1)}, once=True),
            quantities=(
                _number(
                    "jsd",
                    f"JSD between the attention of one model and of {SEEDS} other seeds, median over the seeds",
                    over_roles_by_text(jsd_by_text, OTHERS, statistics.median),
                ),
                _number(
                    "jsd largest",
                    "… largest JSD of each text, mean over texts",
                    over_roles_by_text(jsd_by_text, OTHERS, max),
                ),
                _number("jsd least seed", "… of the most similar seed", over_roles(jsd_between, OTHERS, min)),
                _number("jsd most seed", "… of the most different seed", over_roles(jsd_between, OTHERS, max)),
                _number(
                    "tvd",
                    "TVD between outputs, mean over seeds",
                    over_roles_by_text(tvd_by_text, OTHERS, statistics.fmean),
                ),
                _number(
                    "f1",
                    f"F1, mean over {SEEDS + 1} seeds",
                    over_roles(_f1_of, (MODEL, *OTHERS), statistics.fmean),
                ),
                _number(
                    "f1 std",
                    "… standard deviation",
                    over_roles(_f1_of, (MODEL, *OTHERS), statistics.stdev),
                ),
                _number(
                    "jsd per text",
                    "for comparison: largest JSD at TVD ≤ .01, found text by text",
                    value_of(EXACT[0.01].id),
                ),
            ),
            audits=(
                Audit(checks=(ATTENTION,), tokens=("attention",)),
                Audit(checks=(EXACT[0.01],), tokens=("attention",), roles=(MODEL,)),
            ),
            figures=_violins,
            drawn=("jsd", "jsd per text"),
            deviations=(
                f"One model is compared with those of {SEEDS} other seeds, by the median JSD of each text, as in the "
                "published code (https://github.com/sarahwie/attention, seeds.txt and seed_graphs.py).",
                WORLD_OF_BOTH,
            ),
        ),
        TablePlan(
            name="guided-mlp",
            title="An MLP without context that is guided by attention",
            source="test 3, table 3",
            left_out=LEFT_OUT,
            rows=_rows(_guided),
            quantities=(
                *(_number(f"f1 {role}", f"F1, {words}", _f1_of(role)) for role, (_, words) in GUIDES.items()),
                *(
                    _number(
                        f"gain {role}",
                        f"F1 with the BiLSTM's weights minus F1 with {words}",
                        difference_of(_f1_of("base"), _f1_of(role)),
                    )
                    for role, words in (
                        ("uniform", "uniform ones"),
                        ("learnt", "weights that the MLP learns"),
                        ("adversary", "the adversary's"),
                    )
                ),
                _number("f1", "F1 of the BiLSTM itself", _f1_of(MODEL)),
            ),
            audits=(),
            drawn=tuple(f"f1 {role}" for role in GUIDES),
            deviations=(WORLD_OF_BOTH,),
        ),
        TablePlan(
            name="adversary",
            title="An adversary that is trained to give the same outputs with different attention",
            source="test 4, table 4; the numbers are from Wen, Subbalakshmi & Yang 2022, tables 1 and 3, who repeat "
            "the test with the same λ",
            compared_with="other paper",
            left_out=LEFT_OUT,
            rows=_rows(
                lambda of: {TWIN: twin(of), NEXT: base(of).with_seed(1)},
                numbers={
                    name: dict(zip(("accuracy", "accuracy adversary", "tvd", "jsd"), row, strict=True))
                    for name, row in REPEATED.items()
                },
            ),
            quantities=(
                _number("f1", "F1, model", _f1_of(MODEL)),
                _number("f1 adversary", "F1, adversary", _f1_of(TWIN)),
                _number("accuracy", "accuracy, model", _accuracy_of(MODEL), score_of=MODEL),
                _number("accuracy adversary", "accuracy, adversary", _accuracy_of(TWIN)),
                _number("tvd", "TVD between outputs, mean", tvd_between(TWIN)),
                _number("jsd", "JSD between their attention, mean", jsd_between(TWIN)),
                _number(
                    "tvd seed",
                    "TVD between the outputs of the model and of one trained with the next seed, mean",
                    tvd_between(NEXT),
                ),
                _number(
                    "jsd seed",
                    "JSD between the attention of the model and of one trained with the next seed, mean",
                    jsd_between(NEXT),
                ),
                _number(
                    "further", "share of texts on which the adversary's JSD is larger than the next seed's", _further
                ),
                _number(
                    "jsd per text",
                    "for comparison: largest JSD at TVD ≤ .01, found text by text",
                    value_of(EXACT[0.01].id),
                ),
            ),
            audits=(
                Audit(checks=(ATTENTION,), tokens=("attention",)),
                Audit(checks=(EXACT[0.01],), tokens=("attention",), roles=(MODEL,)),
            ),
            deviations=(
                "λ is twice the value in table 3 of Wen et al. 2022, because the published code has a single sigmoid "
                "output, which halves the TVD: "
                + "; ".join(f"{corpus(name).title} 2 × {LAMBDA[name]:g}" for name in REPEATED)
                + ". The published code reads λ from the command line and names no value.",
                HALVED,
                LONG,
                WORLD_OF_BOTH,
            ),
        ),
        TablePlan(
            name="curve",
            title="JSD by TVD, over λ",
            source="test 4, figure 5, without numbers",
            left_out=LEFT_OUT,
            rows=_rows(_swept),
            quantities=tuple(
                quantity
                for role in (*SWEPT, NEXT, UNIFORM)
                for quantity in (
                    _number(f"tvd {role}", f"TVD, {role}", tvd_between(role)),
                    _number(f"jsd {role}", f"JSD, {role}", jsd_between(role)),
                )
            )
            + tuple(
                _number(
                    f"{what} per text {epsilon:g}",
                    f"{what.upper()}, per-text adversary, TVD ≤ {epsilon:g}",
                    column_of(f"{check.column}.{what}", statistics.fmean),
                )
                for epsilon, check in EXACT.items()
                for what in ("tvd", "jsd")
            ),
            audits=(
                Audit(checks=(ATTENTION,), tokens=("attention",)),
                Audit(checks=tuple(EXACT.values()), tokens=("attention",), roles=(MODEL,)),
            ),
            curves=(CURVE,),
            deviations=("λ is given as a multiple of the λ in the table above.", SHORT),
        ),
    ),
)
