"""Wen, Subbalakshmi & Yang 2022: do attention weights show how much information hidden states carry?

The title is "Revisiting Attention Weights as Explanations from an Information Theoretic Perspective". The paper asks
whether attention ranks hidden states by their information about the output. The only numbers in figure 2 are its means.
They are compared in separate rows.
"""

from __future__ import annotations

from collections.abc import Callable

from attnaudit.checks.builtin.information_ranking import InformationRanking
from attnaudit.research.reproduction.compare_models import ATTENTION, jsd_between, tvd_between
from attnaudit.research.reproduction.figures import quantity_axes as axes
from attnaudit.research.reproduction.paper_tables import (
    MODEL,
    Audit,
    Models,
    Paper,
    Quantity,
    Reading,
    TablePlan,
    accuracy,
    detail_of,
    reference_of,
    value_of,
)
from attnaudit.research.reproduction.papers.shared_deviations import HALVED, LONG
from attnaudit.research.reproduction.papers.wen_claims import ALIGNMENTS, CLAIMS, ENCODERS, KEPT, MEAN
from attnaudit.research.reproduction.papers.wen_means import STATISTICS, means_and_boxes
from attnaudit.research.reproduction.papers.wen_rows import (
    CORPORA,
    ELSEWHERE,
    FIFTY,
    FIXES,
    adversary_rows,
    fixed_rows,
    gumbel_rows,
    random_attention_rows,
    ranking_rows,
    rule_rows,
)
from attnaudit.research.reproduction.verdicts_on_claims.goals import Goal, same_order

RANKING = InformationRanking(severity="report")
#: This check replaces RANKING for the corpora in FIFTY.
AT_FIFTY = InformationRanking(preset="wen_50", severity="report")
RANKINGS = (RANKING, AT_FIFTY)
AS_PUBLISHED = InformationRanking(preset="wen", severity="report")
#: The published rule runs on at most this many texts, because it takes long: it runs k-means with every number of
#: clusters from 50 to 200.
TRIED = 2000
CORRECTED = (
    "Information is corrected for chance: the mean information about shuffled labels is subtracted. The paper does not "
    "correct it."
)
CLUSTERED = (
    f"{CORRECTED} The paper uses the smallest number of clusters from 50 to 200 for which no cluster has a single "
    "member (see the table of the published rule). On SST, this is 50 for most models, and we use 50 as well; clusters "
    "with a single member are merged into the nearest one. On the other corpora, the rule finds 50 to 55 or no number, "
    "depending on the corpus and the seed. There we use a twentieth of the number of texts (5 to 200)."
)


def _read(name: str, *, of: str = MODEL, check: InformationRanking | None = None) -> Callable[[Models], Reading]:
    detail = STATISTICS[name].detail
    if detail is not None:
        return _detail(detail, of=of, check=check)
    return lambda models: value_of((check or _ranking(models)).id, of=of)(models)


def _ranking(models: Models) -> InformationRanking:
    """Return the check that gives the number of clusters for the corpus of the models."""
    plans = [result.trained.plan for result in models.values()]
    return AT_FIFTY if plans[0].corpus in FIFTY else RANKING


def _detail(name: str, *, of: str = MODEL, check: InformationRanking | None = None) -> Callable[[Models], Reading]:
    """Return a function that reads a detail of the check.

    The detail is None if it is undefined. It is also None if the check had nothing to rank and therefore has no such
    detail.
    """

    def read(models: Models) -> Reading:
        chosen = (check or _ranking(models)).id
        record = models[of].check(chosen)
        unranked = record is not None and record.value is None and name not in record.details
        return (None, 0) if unranked else detail_of(chosen, name, of=of)(models)

    return read


def _ranked(*, check: InformationRanking | None = None) -> list[Quantity]:
    return [
        Quantity(name=name, words=one.words, label=one.label, read=_read(name, check=check), axis=one.axis)
        for name, one in STATISTICS.items()
    ]


def _change(name: str, of: str, *, rise: bool = False) -> Callable[[Models], Reading]:
    """Return a function that computes Δτ as in the paper: τ of the plain model minus τ of another model.

    Args:
        name: The name of a quantity in STATISTICS.
        of: The role of the other model in the row (see `RowPlan`).
        rise: Whether to reverse the sign, so that a larger τ of the other model gives a positive number.
    """

    def read(models: Models) -> Reading:
        plain, n = _read(name)(models)
        other = 0.0 if _all_tied(models, of) else _read(name, of=of)(models)[0]
        if plain is None or other is None:
            return None, 0
        return (other - plain if rise else plain - other), n

    return read


def _all_tied(models: Models, of: str) -> bool:
    """Return whether all ranks have the same attention. Attention then orders no pair of ranks, and τ counts as 0."""
    record = models[of].check(_ranking(models).id)
    first = None if record is None else record.details.get("weight of the first rank")
    ranks = None if record is None else record.details.get("ranks (k)")
    return isinstance(first, float) and isinstance(ranks, int) and abs(first * ranks - 1) < 1e-9


def _changes(of: str, words: str, *, rise: bool = False) -> list[Quantity]:
    return [
        Quantity(
            name=f"change {name} {of}",
            words=words if one.detail is None else one.words,
            read=_change(name, of, rise=rise),
            axis=axes.TAU_CHANGE,
        )
        for name, one in STATISTICS.items()
    ]


def _accuracy(of: str, words: str) -> Quantity:
    return Quantity(
        name=f"accuracy {of}",
        words=words,
        read=lambda models: accuracy(models, of=of),
        score_of=of,
        axis=axes.ACCURACY,
    )


def _kept(models: Models) -> Reading:
    change, n = _change("tau", "gumbel", rise=True)(models)
    return (None, 0) if change is None else (float(change >= -KEPT), n)


def _first(of: str = MODEL) -> Callable[[Models], Reading]:
    return _detail("weight of the first rank", of=of)


PAPER = Paper(
    name="wen",
    title="Revisiting Attention Weights as Explanations from an Information Theoretic Perspective",
    citation="Bingyang Wen, K.P. Subbalakshmi and Fan Yang. 2022.",
    corpora=CORPORA,
    claims=CLAIMS,
    comparable_scores=ELSEWHERE,
    deviations=(
        "Dot attention is hᵀq/√m. Where there is no query, q is learnt, starting from N(0, 1); the paper uses wᵀh. "
        "Deep attention has two layers here; the paper does not give their number.",
        "ADR Tweets, Anemia and Diabetes are left out, because they are not freely available.",
        "The paper gives accuracies of BiLSTMs only. MLPs and CNNs count as trained if they come close to the accuracy "
        "of a comparable encoder in Jain & Wallace 2019 (“average” for an MLP).",
    ),
    goals=(
        Goal(
            sentence="τ has the paper's order: highest with additive attention, lowest with dot attention",
            read=same_order(
                "ranking",
                "tau",
                # The paper's means are over all encoders. Those of one encoder are compared if another one is missing.
                [[f"{MEAN}{of}/{one}" for one in ALIGNMENTS] for of in ("", *(f"/{name}" for name in ENCODERS))],
            ),
            cause="All of these means are near 1, the end of the scale.",
        ),
    ),
    tables=(
        TablePlan(
            name="ranking",
            title="Attention and information",
            source="figure 2 (10 runs each) and its means in §5; accuracy: table 1",
            rows=ranking_rows,
            quantities=(
                Quantity(name="accuracy", words="accuracy", read=accuracy, score_of=MODEL, axis=axes.ACCURACY),
                *_ranked(),
                Quantity(
                    name="floor",
                    words="… with attention shuffled",
                    read=lambda models: reference_of(_ranking(models).id, "floor")(models),
                ),
                Quantity(name="first", words="share of attention on the first rank", read=_first()),
                Quantity(name="ranks", words="ranks (k)", read=_detail("ranks (k)"), digits=1),
                Quantity(name="clusters", words="clusters", read=_detail("clusters (N)"), digits=1),
            ),
            audits=(Audit(checks=RANKINGS),),
            across=means_and_boxes,
            drawn=("tau", "tau-b"),
            deviations=(
                CLUSTERED,
                "The paper's means are over eleven data sets and 10 runs. Our means are over the data sets and seeds "
                "that the row names.",
            ),
        ),
        TablePlan(
            name="published-rule",
            title="The number of clusters that the paper's rule gives",
            source="§3.2.1, without numbers",
            rows=rule_rows,
            quantities=(
                Quantity(
                    name="clusters",
                    words="smallest number of clusters, 50 to 200, without a cluster of one member",
                    read=_detail("clusters (N)", check=AS_PUBLISHED),
                    digits=1,
                ),
                *_ranked(check=AS_PUBLISHED),
            ),
            audits=(Audit(checks=(AS_PUBLISHED,), instances=TRIED),),
            deviations=(
                CORRECTED,
                f"At most {TRIED:,} texts are used. The result is undefined where no number of clusters satisfies the "
                "rule.",
            ),
        ),
        TablePlan(
            name="fixed",
            title="Fixed attention, fixed representations",
            source="table 2; Δτ is τ of the normal model minus τ of the other one; accuracy: table 1",
            rows=fixed_rows,
            quantities=(
                Quantity(name="tau", words="weighted τ of the normal model", read=_read("tau")),
                *(one for name, words in FIXES.items() for one in _changes(name, f"Δτ, {words}")),
                Quantity(name="accuracy", words="accuracy of the normal model", read=accuracy, axis=axes.ACCURACY),
                *(_accuracy(name, f"accuracy, {words}") for name, words in FIXES.items()),
            ),
            audits=(Audit(checks=RANKINGS),),
            deviations=(
                CLUSTERED,
                "The paper does not say how it fixes attention. This table has three ways to fix it: at the normal "
                "model's weights for each text, at the normal model's parameters of attention, and at uniform weights. "
                "The next table fixes attention at its random initialisation. The paper's numbers are there.",
                "Uniform attention ranks nothing: all pairs are tied, so its τ counts as 0.",
                "Retrained parts start from a different seed than those of the normal model.",
            ),
        ),
        TablePlan(
            name="random-attention",
            title="Attention fixed at its random initialisation",
            source="table 2 (the paper does not say how it fixes attention); Δτ is τ of the normal model minus τ of "
            "the other one; accuracy: table 1",
            rows=random_attention_rows,
            quantities=(
                Quantity(name="tau", words="weighted τ of the normal model", read=_read("tau")),
                *_changes("random_attention", "Δτ, parameters of attention frozen at random, the rest trained"),
                Quantity(name="accuracy", words="accuracy of the normal model", read=accuracy, axis=axes.ACCURACY),
                _accuracy("random_attention", "accuracy with random attention"),
            ),
            audits=(Audit(checks=RANKINGS),),
            deviations=(CLUSTERED,),
        ),
        TablePlan(
            name="adversarial",
            title="A model that is trained to attend elsewhere",
            source="tables 3 and 4; Δτ is τ of the normal model minus τ of the adversary; accuracy of the normal "
            "model: table 1",
            rows=adversary_rows,
            quantities=(
                _accuracy("twin", "accuracy of the adversary"),
                Quantity(name="accuracy", words="accuracy of the normal model", read=accuracy, axis=axes.ACCURACY),
                Quantity(
                    name="tvd",
                    words="mean TVD between the outputs of the two models",
                    read=tvd_between("twin"),
                    axis=axes.TVD,
                ),
                Quantity(
                    name="jsd",
                    words="mean JSD between the attention of the two models, nats",
                    read=jsd_between("twin"),
                    axis=axes.JSD,
                ),
                Quantity(name="tau", words="weighted τ of the normal model", read=_read("tau")),
                Quantity(name="tau twin", words="weighted τ of the adversary", read=_read("tau", of="twin")),
                *_changes("twin", "Δτ of the adversary"),
            ),
            audits=(Audit(checks=RANKINGS, tokens=(ATTENTION,)),),
            deviations=(
                CLUSTERED,
                "λ is twice the paper's, since the published code of this adversary has a single sigmoid output, which "
                "halves the TVD.",
                HALVED,
                LONG,
            ),
        ),
        TablePlan(
            name="gumbel",
            title="Gumbel-softmax",
            source="table 5, which has one number per task and kind of attention (see the list); accuracy: table 1",
            rows=gumbel_rows,
            quantities=(
                Quantity(
                    name="kept",
                    words=f"share of seeds in which τ does not fall by more than {KEPT:g}",
                    read=_kept,
                    axis=axes.SHARE,
                ),
                Quantity(name="tau", words="weighted τ with softmax", read=_read("tau")),
                Quantity(name="tau gumbel", words="weighted τ with Gumbel-softmax", read=_read("tau", of="gumbel")),
                *_changes("gumbel", "increase in τ", rise=True),
                Quantity(name="first", words="share of attention on the first rank, softmax", read=_first()),
                Quantity(name="first gumbel", words="… Gumbel-softmax", read=_first("gumbel")),
                Quantity(name="accuracy", words="accuracy with softmax", read=accuracy, axis=axes.ACCURACY),
                _accuracy("gumbel", "accuracy with Gumbel-softmax"),
            ),
            audits=(Audit(checks=RANKINGS),),
            deviations=(
                CLUSTERED,
                "The paper counts the settings in which τ is raised or kept, over data sets and encoders. Of 21 "
                "settings of single texts, these are 20 with deep, 19 with dot and 20 with additive attention; of 9 "
                "settings of questions, 6, 6 and 8; of 3 settings of SNLI, 2, 1 and 3. A single row has no number in "
                "the paper.",
                "Gumbel noise is used in training only; an audit reads softmax(a / .8) without noise.",
            ),
        ),
    ),
)
