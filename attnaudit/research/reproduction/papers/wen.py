"""Wen, Subbalakshmi & Yang 2022: do attention weights show how much information hidden states carry?

The title is "Revisiting Attention Weights as Explanations from an Information Theoretic Perspective". The paper asks
whether attention ranks hidden states by their information about the output. The only numbers in figure 2 are its means.
They are compared in separate rows.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

import msgspec

from attnaudit.checks.information_ranking import InformationRanking
from attnaudit.research.reproduction.compare_models import ATTENTION, jsd_between, tvd_between
from attnaudit.research.reproduction.corpora import EMBEDDED, corpus
from attnaudit.research.reproduction.figure_records import Box, Boxes, Figure
from attnaudit.research.reproduction.goals import Goal, same_order
from attnaudit.research.reproduction.paper_report import Line, Provenance, Row
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
#: Name of a quantity -> (name of the check's detail, description). The name is None for the value of the check.
STATISTICS: dict[str, tuple[str | None, str]] = {
    "tau": (None, "weighted τ between attention and information"),
    "tau uncorrected": ("weighted τ of uncorrected information", "… with uncorrected information"),
    "tau-b": ("unweighted τ-b", "… unweighted (τ-b)"),
}
#: Means over all data sets and 10 runs (§5).
MEANS = {
    "additive": 0.80,
    "deep": 0.74,
    "dot": 0.45,
    "bilstm/additive": 0.92,
    "cnn/additive": 0.88,
    "cnn/deep": 0.83,
    "bilstm/deep": 0.80,
}


def _read(name: str, *, of: str = MODEL, check: InformationRanking | None = None) -> Callable[[Models], Reading]:
    detail = STATISTICS[name][0]
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
    return [Quantity(name=name, words=words, read=_read(name, check=check)) for name, (_, words) in STATISTICS.items()]


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
    labels = (words, "… with uncorrected information", "… unweighted (τ-b)")
    return [
        Quantity(name=f"change {name} {of}", words=label, read=_change(name, of, rise=rise))
        for name, label in zip(STATISTICS, labels, strict=True)
    ]


def _accuracy(of: str, words: str) -> Quantity:
    return Quantity(name=f"accuracy {of}", words=words, read=lambda models: accuracy(models, of=of), score_of=of)


def _kept(models: Models) -> Reading:
    change, n = _change("tau", "gumbel", rise=True)(models)
    return (None, 0) if change is None else (float(change >= -KEPT), n)


def _first(of: str = MODEL) -> Callable[[Models], Reading]:
    return _detail("weight of the first rank", of=of)


def _across(rows: Sequence[Row]) -> tuple[list[Row], list[Figure]]:
    """Return rows with the means that the paper reports, and figure 2 with one picture per corpus.

    All means are over the same corpora. A corpus is left out if it lacks a setting that another corpus has. A mean is
    computed from at least two rows. The paper's mean over encoders is compared only with a mean over all encoders.
    """
    names = list(dict.fromkeys(row.corpus for row in rows))
    boxes = [_boxes([row for row in rows if row.corpus == name]) for name in names]
    by_name = {row.name: row for row in rows}
    settings = [f"{encoder}/{alignment}" for alignment in ALIGNMENTS for encoder in ENCODERS]
    measured = [setting for setting in settings if any(f"{name}/{setting}" in by_name for name in names)]
    complete = [name for name in names if all(f"{name}/{setting}" in by_name for setting in measured)]
    groups = [
        *((alignment, [one for one in measured if one.endswith(f"/{alignment}")]) for alignment in ALIGNMENTS),
        *((setting, [setting]) for setting in measured),
    ]
    means = [
        _mean(name, [by_name[f"{of}/{setting}"] for of in complete for setting in group])
        for name, group in groups
        if group
    ]
    return [row for row in means if row is not None], boxes


def _mean(name: str, rows: Sequence[Row]) -> Row | None:
    """Return a row with the means over the rows in which τ is defined.

    The result is None if there are fewer than two such rows, or if they have no seed in common.
    """
    ranked = [row for row in rows if any(value is not None for value in _line_of(row, "tau").values)]
    made = [row.provenance for row in ranked if row.provenance is not None]
    seeds = sorted(set.intersection(*(set(one.seeds) for one in made))) if made else []
    if not seeds or len(ranked) < 2:
        return None
    alignment = name.rpartition("/")[2]
    encoders = [one for one in ENCODERS if any(row.name.split("/")[1] == one for row in ranked)]
    as_in_paper = "/" in name or len(encoders) == len(ENCODERS)
    which = f"{' and '.join(ENCODERS[encoder] for encoder in encoders)}, {alignment}"
    over = list(dict.fromkeys(row.corpus for row in ranked))
    compared = name if as_in_paper and over != [EMBEDDED] else None
    return Row(
        name=f"{MEAN}/{name}",
        title=f"Mean over {', '.join(corpus(one).title for one in over)}: {which}",
        corpus=over[0],
        lines=[_mean_line(quantity, ranked, seeds, compared) for quantity in STATISTICS],
        provenance=msgspec.structs.replace(made[0], seeds=seeds, **_seconds(made)),
    )


def _line_of(row: Row, quantity: str) -> Line:
    return next(one for one in row.lines if one.quantity == quantity)


def _mean_line(quantity: str, rows: Sequence[Row], seeds: Sequence[int], name: str | None) -> Line:
    """Return a line with one value per seed: the mean over the rows in which the quantity is defined for the seed."""
    lines = [(_line_of(row, quantity), row.provenance) for row in rows]
    values: list[float | None] = []
    for seed in seeds:
        found = [line.values[made.seeds.index(seed)] for line, made in lines if made is not None]
        known = [value for value in found if value is not None]
        values.append(statistics.fmean(known) if known else None)
    defined = [value for value in values if value is not None]
    return Line(
        quantity=quantity,
        words=STATISTICS[quantity][1],
        paper=MEANS.get(name or "") if quantity == "tau" else None,
        ours=statistics.fmean(defined) if defined else None,
        std=statistics.stdev(defined) if len(defined) > 1 else None,
        values=values,
        n=sum(line.n or 0 for line, _ in lines),
    )


def _seconds(made: Sequence[Provenance]) -> dict[str, float]:
    fields = [name for name in Provenance.__struct_fields__ if name.endswith("seconds")]
    return {name: sum(getattr(one, name) for one in made) for name in fields}


def _boxes(rows: Sequence[Row]) -> Figure:
    title = corpus(rows[0].corpus).title
    found = []
    for row in rows:
        _, encoder, alignment = row.name.split("/")
        line = _line_of(row, "tau")
        values = [value for value in line.values if value is not None]
        found.append(Box(label=alignment, side=list(ENCODERS).index(encoder), values=values))
    return Figure(
        name="boxes",
        row=rows[0].corpus,
        title=f"{title}: weighted τ between attention and information",
        caption="One dot per seed. The box reaches from the first to the third quartile, and the whiskers reach to "
        "the smallest and the largest value. The line is the median.",
        boxes=Boxes(sides=list(ENCODERS.values()), x_label="weighted τ", boxes=found),
    )


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
            read=same_order("ranking", "tau", [[f"{MEAN}/{of}/{one}" for one in ALIGNMENTS] for of in ENCODERS]),
        ),
    ),
    tables=(
        TablePlan(
            name="ranking",
            title="Attention and information",
            source="figure 2 (10 runs each) and its means in §5; accuracy: table 1",
            rows=ranking_rows,
            quantities=(
                Quantity(name="accuracy", words="accuracy", read=accuracy, score_of=MODEL),
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
            across=_across,
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
                Quantity(name="accuracy", words="accuracy of the normal model", read=accuracy),
                *(_accuracy(name, f"accuracy, {words}") for name, words in FIXES.items()),
            ),
            audits=(Audit(checks=RANKINGS),),
            deviations=(
                CLUSTERED,
                "The paper does not say how it fixes attention. Its number is compared with a model that gets the "
                "normal model's weights for each text. The lines with frozen parameters of attention and with uniform "
                "attention show two other ways to fix it.",
                "Uniform attention ranks nothing: all pairs are tied, so its τ counts as 0.",
                "Retrained parts start from a different seed than those of the normal model. The next table fixes "
                "attention at its random initialisation.",
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
                Quantity(name="accuracy", words="accuracy of the normal model", read=accuracy),
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
                Quantity(name="accuracy", words="accuracy of the normal model", read=accuracy),
                Quantity(name="tvd", words="mean TVD between the outputs of the two models", read=tvd_between("twin")),
                Quantity(
                    name="jsd", words="mean JSD between the attention of the two models, nats", read=jsd_between("twin")
                ),
                Quantity(name="tau", words="weighted τ of the normal model", read=_read("tau")),
                Quantity(name="tau twin", words="weighted τ of the adversary", read=_read("tau", of="twin")),
                *_changes("twin", "Δτ"),
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
            source="table 5, the share of settings, per task and kind of attention, in which τ is raised or kept; "
            "accuracy: table 1",
            rows=gumbel_rows,
            quantities=(
                Quantity(
                    name="kept",
                    words=f"share of seeds (paper: of settings) in which τ does not fall by more than {KEPT:g}",
                    read=_kept,
                ),
                Quantity(name="tau", words="weighted τ with softmax", read=_read("tau")),
                Quantity(name="tau gumbel", words="weighted τ with Gumbel-softmax", read=_read("tau", of="gumbel")),
                *_changes("gumbel", "increase in τ", rise=True),
                Quantity(name="first", words="share of attention on the first rank, softmax", read=_first()),
                Quantity(name="first gumbel", words="… Gumbel-softmax", read=_first("gumbel")),
                Quantity(name="accuracy", words="accuracy with softmax", read=accuracy),
                _accuracy("gumbel", "accuracy with Gumbel-softmax"),
            ),
            audits=(Audit(checks=RANKINGS),),
            deviations=(
                CLUSTERED,
                "Gumbel noise is used in training only; an audit reads softmax(a / .8) without noise.",
            ),
        ),
    ),
)
