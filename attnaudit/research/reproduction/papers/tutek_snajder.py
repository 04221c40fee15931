"""Tutek & Šnajder 2020, "Staying True to Your Word: (How) Can Attention Become Explanation?".

The paper studies training options that keep hidden states close to their words, and their effect on attention. The
numbers of the paper come from its tables 1, 2, 3 and 6. Figures 1 and 2 have no numbers. Here, a drop in F1 is a
positive number.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from attnaudit.checks.builtin.information_retained import InformationRetained
from attnaudit.checks.builtin.permutation_fragility import PermutationFragility
from attnaudit.checks.builtin.token_probability import TokenProbability
from attnaudit.checks.builtin.uniform_fragility import UniformFragility
from attnaudit.formatting import number
from attnaudit.research.reproduction.compare_models import jsd_between, tvd_between
from attnaudit.research.reproduction.figures import quantity_axes as axes
from attnaudit.research.reproduction.figures.figure_records import Figure
from attnaudit.research.reproduction.figures.quantity_figures import CurvePlan, PointPlan
from attnaudit.research.reproduction.grids import grid_chart
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
    detail_of,
    f1,
    reference_of,
    value_of,
)
from attnaudit.research.reproduction.papers.shared_deviations import SHORT, WORLD
from attnaudit.research.reproduction.papers.tutek_snajder_claims import CLAIMS, remedies
from attnaudit.research.reproduction.papers.tutek_snajder_models import (
    COMPARED,
    DELTA,
    DELTAS,
    ETA,
    ETAS,
    FORMS,
    IMITATED,
    OPTIONS,
    WEIGHTS,
    by_depth,
    compared,
    grid_rows,
    imitated,
    rows,
    twin,
)
from attnaudit.research.reproduction.papers.tutek_snajder_numbers import CORPORA, FRAGILITY, INFORMATION, PROBABILITY
from attnaudit.research.reproduction.verdicts_on_claims.goals import Goal, ranked

#: The shortest and the longest text that figures show, in tokens. Such a text can be read at a glance.
SHORTEST, LONGEST = 6, 24
PERMUTED = PermutationFragility(measure="f1_drop", severity="report")
UNIFORM = UniformFragility(measure="f1_drop", severity="report")
ALONE = TokenProbability(severity="report")
RETAINED = {
    "mf": InformationRetained(words="frequent", severity="report"),
    "rs": InformationRetained(words="sampled", severity="report"),
}
FRAGILE = (Audit(checks=(UNIFORM, PERMUTED)),)


def _fragility(of: str = MODEL, *, suffix: str = "", words: str = "") -> list[Quantity]:
    """Return the quantities of table 1: F1 and its drops. Add the TVD under permuted attention.

    Args:
        of: The role of the model in the row (see `RowPlan`).
        suffix: A text that is appended to the names of the quantities.
        words: A text that is appended to the description of F1.
    """
    return [
        Quantity(
            name=f"f1{suffix}", words=f"F1{words}", read=lambda models: f1(models, of=of), score_of=of, axis=axes.F1
        ),
        *(
            Quantity(
                name=f"{name}{suffix}",
                words=f"… drop under {name} attention",
                label=f"drop in F1 under {name} attention{words}",
                read=value_of(check.id, of=of),
                axis=axes.DROP,
            )
            for name, check in (("uniform", UNIFORM), ("permuted", PERMUTED))
        ),
        Quantity(
            name=f"tvd{suffix}",
            words="median TVD under permuted attention, mean over texts",
            read=detail_of(PERMUTED.id, "mean TVD", of=of),
        ),
    ]


def _on_dev(of: str) -> Quantity:
    def read(models: Models) -> Reading:
        score = models[of].trained.dev
        return score.f1, score.n

    return Quantity(name=f"dev f1 {of}", words="… F1 on dev", read=read)


def _over_grid(symbol: str, values: Sequence[float]) -> list[Quantity]:
    roles = ["0", *(f"{value:g}" for value in values)]
    return [
        quantity
        for role in roles
        for quantity in (
            *_fragility(role, suffix=f" {role}", words=f" at {symbol} = {role}"),
            _on_dev(role),
        )
    ]


def _grid_curves(symbol: str, values: Sequence[float]) -> tuple[CurvePlan, ...]:
    """Return a figure with F1 and its drops, over the values of δ or η."""
    roles = ["0", *(f"{value:g}" for value in values)]
    quantities = {"F1": "f1", "drop under uniform attention": "uniform", "drop under permuted attention": "permuted"}
    return (
        CurvePlan(
            name="grid",
            title=f"F1 and its drops, by {symbol}",
            x_label=symbol,
            y_label="F1",
            caption="On the test part.",
            lines={
                line: [PointPlan(label=f"{symbol}={role}", x=float(role), y=f"{name} {role}") for role in roles]
                for line, name in quantities.items()
            },
        ),
    )


def _information(words: str) -> list[Quantity]:
    check = RETAINED[words].id
    kind = {"mf": "most frequent words", "rs": "sampled words"}[words]
    return [
        Quantity(
            name=f"{words} mi",
            words=f"MI(e; h) of the {kind}, plug-in estimate, nats",
            axis=axes.INFORMATION,
            read=detail_of(check, "mutual information of embedding and state, plug-in estimate, nats"),
        ),
        Quantity(
            name=f"{words} null",
            words="… with shuffled states",
            read=detail_of(check, "the same with shuffled states, nats"),
        ),
        Quantity(
            name=f"{words} entropy",
            words="… largest possible value, the entropy of e",
            read=detail_of(check, "entropy of the embeddings, nats"),
        ),
        Quantity(name=f"{words} retained", words="… share retained, corrected for chance", read=value_of(check)),
    ]


def _path(form: str) -> list[Quantity]:
    quantities = []
    for weight in WEIGHTS:
        adversary = twin(form, weight)
        quantities += [
            Quantity(
                name=f"jsd {adversary}",
                words=f"{FORMS[form]}: JSD between its attention and its adversary's, λ = {weight:g}",
                read=jsd_between(adversary, form),
            ),
            Quantity(name=f"tvd {adversary}", words="… TVD between their outputs", read=tvd_between(adversary, form)),
        ]
    return [
        *quantities,
        Quantity(
            name=f"cost {form}",
            words=f"… TVD per nat of JSD, λ = {WEIGHTS[-1]:g}",
            label=f"{FORMS[form]}: TVD per nat of JSD, λ = {WEIGHTS[-1]:g}",
            read=_cost(form),
            axis=axes.TVD_PER_JSD,
        ),
    ]


def _cost(form: str) -> Callable[[Models], Reading]:
    adversary = twin(form, WEIGHTS[-1])

    def read(models: Models) -> Reading:
        (jsd, n), (tvd, _) = jsd_between(adversary, form)(models), tvd_between(adversary, form)(models)
        return (None if jsd is None or tvd is None or jsd <= 0 else tvd / jsd), n

    return read


PATH = CurvePlan(
    name="adversary",
    title="TVD of the adversaries against their JSD",
    x_label="mean JSD of attention, nats (at most ln 2 = 0.693)",
    y_label="mean TVD between outputs",
    caption="Each point is an adversary.",
    lines={
        FORMS[form]: [
            PointPlan(label=f"λ={weight:g}", x=f"jsd {twin(form, weight)}", y=f"tvd {twin(form, weight)}")
            for weight in WEIGHTS
        ]
        for form in IMITATED
    },
)


def _alone(of: str = MODEL, *, suffix: str = "", words: str = "") -> list[Quantity]:
    return [
        Quantity(
            name=f"probability{suffix}",
            words=f"probability of the predicted class from one state alone{words}",
            read=value_of(ALONE.id, of=of),
            axis=axes.PROBABILITY,
        ),
        Quantity(
            name=f"whole{suffix}", words="… from the whole text", read=reference_of(ALONE.id, "whole_text", of=of)
        ),
    ]


def _alone_figures(row: RowPlan, models: Models) -> list[Figure]:
    """Return a figure of one text, token by token, like figure 2 of the paper.

    The candidates are the texts of 6 to 24 tokens that all models classify correctly. For each candidate, the
    probabilities of the predicted class from single states are averaged, with the base model and with tying. The text
    with the median difference between the two models is chosen.

    Returns:
        The figure. The list is empty if there is no candidate.
    """
    column = f"{ALONE.subject}.alone"
    audits = {form: result.having(ALONE.subject) for form, result in models.items()}
    first = audits["base"]
    candidates = [
        (base - tied, i)
        for i, (base, tied) in enumerate(
            zip(*(audits[f].scalars[ALONE.subject] for f in ("base", "tying")), strict=True)
        )
        if base is not None
        and tied is not None
        and SHORTEST <= len(first.tokens[i]) <= LONGEST
        and all(one.predicted[i] == one.labels[i] for one in audits.values())
    ]
    if not candidates:
        return []
    i = sorted(candidates)[len(candidates) // 2][1]
    series = {
        FORMS[form]: {float(place): x for place, x in enumerate(one.per_token[column][i], 1) if x is not None}
        for form, one in audits.items()
    }
    whole = "; ".join(f"{FORMS[form]} {number(one.probabilities[i][one.predicted[i]])}" for form, one in audits.items())
    words = " · ".join(f"{place} {token}" for place, token in enumerate(first.tokens[i], 1))
    return [
        grid_chart(
            row,
            "alone",
            "prediction from each state alone",
            "token",
            "probability of the predicted class",
            series,
            caption=f"{words}. From the whole text: {whole}. The text was chosen by a rule: of the texts of {SHORTEST} "
            f"to {LONGEST} tokens that all models classify correctly, the difference in mean probability between "
            "the base model and tying is the median.",
        )
    ]


def _grid(name: str, form: str, symbol: str, values: Sequence[float]) -> TablePlan:
    return TablePlan(
        name=name,
        title=f"F1 and its drop, by {symbol} ({FORMS[form]})",
        source=f"table 4, which lists the values of {symbol} (results are reported for the best one only); "
        f"{symbol} = 0: table 1",
        rows=lambda corpora: grid_rows(corpora, form, values),
        quantities=_over_grid(symbol, values),
        audits=FRAGILE,
        curves=_grid_curves(symbol, values),
        deviations=(WORLD,),
    )


PAPER = Paper(
    name="tutek-snajder",
    title="Staying True to Your Word: (How) Can Attention Become Explanation?",
    citation="Martin Tutek and Jan Šnajder. RepL4NLP 2020.",
    corpora=CORPORA,
    claims=CLAIMS,
    row_names="Rows are named corpus/form/alignment: sst/tying/additive is the form “tying” with additive attention on "
    "SST. In some tables, the number of layers replaces the alignment. Rows that compare several forms of a model are "
    "named corpus/alignment. Since 1 December 2026, dot attention is not scaled, the distances of tying are not "
    "squared, and models of 20News are trained longer. These changes were made after earlier results, and the first "
    "one was chosen by the drop in F1 on the dev parts, so claims about drops in F1 say less than others about the "
    "paper.",
    score="f1",
    remedies=lambda one, _random: remedies(one, OPTIONS),
    embeddings="Embeddings are random (300 wide, standard deviation .1) and not pretrained, so δ and η may have a "
    "different effect than in the paper. Words that occur once in the training data are treated as unknown.",
    deviations=(
        f"The paper does not say for which δ and η it reports results. Here δ = {DELTA:g} and η = {ETA:g}, the weakest "
        "values that the paper names. It names δ = 1 in its text, but not in its table 4. Both had the best F1 on the "
        "dev part of SST: δ from GloVe with additive attention (.78, .77, .76 and .75 for δ = 1, 10, 20 and 30, means "
        "of two seeds), and η in a smaller trial (random embeddings, 3,000 sentences, 5 epochs, one seed). The last "
        "two tables show the other values, where they have been run.",
        "In the tying loss, the paper squares the distance of a hidden state from its embedding (eq. 4). Later code of "
        "its first author (mttk/unity-in-xai-court on GitHub) does not, and neither do we. With the square and δ = 1, "
        "F1 on the dev part of 20News is .871 and .857 with additive attention, and .857 and .865 with dot attention. "
        "Without the square, it is .936 and .907, and .947 and .899 (GloVe, two seeds each).",
        "The paper adjusts η to the average length of the texts of a corpus (section 3.1). Here, η is the same on all "
        "corpora. The last table shows the other values, where they have been run.",
        "Dot attention has the score hᵀq. The paper divides it by the square root of the width of h (eq. 11). Base "
        "models that do so hardly use attention here, unlike the paper's: on the dev parts, permuting it lowers F1 by "
        "at most .004. Without the scale, it lowers F1 by .034 and .056 on SST, by .114 and .121 on 20News (GloVe, two "
        "seeds each), and by .263 on 20News (random embeddings, one seed). In the paper, it is .065 and .368.",
        "The paper does not give the number of epochs. Models are trained for 8 epochs, as in the published code of "
        "Jain & Wallace, but for 16 on 20News. With MLM (GloVe, one seed), F1 on the dev part of 20News had not "
        "settled in epochs 6 to 8: .806, .879 and .909 with additive attention, and .523, .782 and .779 with dot "
        "attention, which reached .912 in epoch 15.",
        "Gradients are not clipped (the paper clips them at 5). The best epoch is chosen on dev only.",
        "The paper's clinical data sets (Diabetes, Anemia) are not publicly available and are left out.",
    ),
    goals=(
        Goal(
            sentence="the drops in F1 under permuted attention have a rank correlation of at least .9 with the paper's",
            read=ranked("fragility", "permuted", 0.9),
            cause="The cause is unknown.",
        ),
    ),
    tables=(
        TablePlan(
            name="fragility",
            title="F1 and its drop under other attention",
            source="table 1",
            rows=lambda corpora: rows(corpora, FRAGILITY),
            quantities=_fragility(),
            audits=FRAGILE,
            deviations=(
                "A drop is a positive number. The drop under permuted attention is the mean over 100 permutations.",
                WORLD,
            ),
        ),
        TablePlan(
            name="information",
            title="What hidden states retain of their words",
            source="table 2 (the base of the logarithm is not stated; ours is e)",
            rows=lambda corpora: rows(corpora, INFORMATION),
            quantities=(*_information("mf"), *_information("rs")),
            audits=(Audit(checks=tuple(RETAINED.values())),),
            deviations=(
                "Mutual information depends on the number of clusters. The paper uses 1000 for up to a million "
                "occurrences; we use the square root of the number of occurrences in the test set (at most 50,000). "
                "The paper's numbers are therefore not comparable with ours; compare the forms of the model with each "
                "other. The share retained is corrected for chance.",
            ),
        ),
        TablePlan(
            name="probability",
            title="Prediction from one hidden state alone",
            source="table 3",
            rows=lambda corpora: rows(corpora, PROBABILITY),
            quantities=(Quantity(name="accuracy", words="accuracy", read=accuracy, axis=axes.ACCURACY), *_alone()),
            audits=(Audit(checks=(ALONE,)),),
            deviations=("Only texts that the model classifies correctly count, as in the paper.",),
        ),
        TablePlan(
            name="tokens",
            title="Prediction from each hidden state of one text",
            source="figure 2, one text; means over all texts: table 3",
            rows=compared,
            quantities=[
                quantity for form in COMPARED for quantity in _alone(form, suffix=f" {form}", words=f", {FORMS[form]}")
            ],
            audits=(Audit(checks=(ALONE,), tokens=(f"{ALONE.subject}.alone",)),),
            figures=_alone_figures,
        ),
        TablePlan(
            name="adversary",
            title="A trained adversary",
            source="figure 1, without numbers",
            rows=imitated,
            quantities=(*_path("base"), *_path("mlm")),
            audits=(Audit(checks=(UNIFORM,), tokens=("attention",)),),
            curves=(PATH,),
            drawn=("cost base", "cost mlm"),
            deviations=("The paper does not say which values of λ it tries; we try three.", SHORT),
        ),
        TablePlan(
            name="layers",
            title="F1 and its drop with more layers",
            source="table 6, additive attention",
            rows=by_depth,
            quantities=_fragility(),
            audits=FRAGILE,
            deviations=(WORLD,),
        ),
        _grid("tying-grid", "tying", "δ", DELTAS),
        _grid("mlm-grid", "mlm", "η", ETAS),
    ),
)
