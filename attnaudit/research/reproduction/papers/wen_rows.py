"""The rows of Wen, Subbalakshmi & Yang 2022, with their models and the paper's numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from attnaudit.research.reproduction.corpora import EMBEDDED, corpus
from attnaudit.research.reproduction.model_plans import Plan, jain_wallace
from attnaudit.research.reproduction.paper_tables import MODEL, RowPlan
from attnaudit.research.reproduction.papers.jain_wallace_numbers import NUMBERS
from attnaudit.research.reproduction.papers.wen_claims import ALIGNMENTS, ENCODERS

CORPORA = ("sst", "imdb", "agnews", "20news", "babi-1", "babi-2", "babi-3", "snli")
CENTRAL = ("bilstm", "additive")
#: The corpora on which the paper's rule gives 50 clusters.
FIFTY = ("sst",)

#: Table 1.
ACCURACY = dict(zip(CORPORA, (0.82, 0.90, 0.96, 0.92, 0.98, 0.74, 0.57, 0.78), strict=True))
#: (corpus, encoder) -> accuracy of a comparable encoder with additive attention in Jain & Wallace 2019. Wen et al. give
#: accuracies of BiLSTMs only. The encoder "average" of Jain & Wallace reads words one by one, as an MLP does.
ELSEWHERE = {
    (name, encoder): NUMBERS[name, same, "additive"]["accuracy"]
    for name in CORPORA
    for encoder, same in (("mlp", "average"), ("cnn", "cnn"))
}
#: Table 2: corpus -> Δτ with fixed attention, and Δτ with fixed representations.
FIXED = dict(
    zip(
        CORPORA,
        [(0.71, -0.02), (0.16, -0.01), (0.75, -0.07), (1.32, -0.07), (1.70, -0.02), (1.22, -0.06), (0.66, 0.00),
         (0.07, -0.05)],
        strict=True,
    )
)  # fmt: skip
#: λ of table 3, as the published code defines it.
LAMBDA = {"sst": 5.25e-4, "imdb": 8e-4, "agnews": 5e-4, "20news": 5e-4}
LAMBDA_ELSEWHERE = 5e-4
#: Tables 3 and 4: corpus -> accuracy, TVD, JSD and Δτ of the adversary.
ADVERSARIES = {
    "sst": (0.82, 0.036, 0.316, 0.04),
    "imdb": (0.90, 0.021, 0.482, 0.08),
    "agnews": (0.96, 0.009, 0.664, 0.05),
    "20news": (0.90, 0.037, 0.391, 0.09),
}
#: Variant of the model in table 2 -> description.
FIXES = {
    "imposed_attention": "attention of each text fixed to the learnt weights, the rest retrained",
    "frozen_attention": "parameters of attention frozen, the rest retrained",
    "uniform": "uniform attention, the rest retrained",
    "fixed_representation": "representations frozen, attention and decoder retrained",
}
#: The variants in table 2 that must be trained well. Uniform attention may cost accuracy.
TRAINED = ("imposed_attention", "fixed_representation")
#: A function of (corpus, encoder, alignment). It returns role -> plan.
PlansOf = Callable[[str, str, str], Mapping[str, Plan]]


def _row(
    name: str,
    encoder: str,
    alignment: str,
    models: PlansOf,
    paper: Mapping[str, float],
    must_be_trained: Sequence[str] = (),
    *,
    build: int | None = None,
) -> RowPlan:
    return RowPlan(
        name=f"{name}/{encoder}/{alignment}",
        title=f"{corpus(name).title}, {ENCODERS[encoder]}, {alignment}",
        corpus=name,
        models=models(name, encoder, alignment),
        paper=paper,
        must_be_trained=must_be_trained,
        build=(1 if name in FIFTY else 0) if build is None else build,
    )


def _plain(name: str, encoder: str, alignment: str) -> dict[str, Plan]:
    return {MODEL: jain_wallace(name, encoder=encoder, alignment=alignment)}


def _variants(name: str, encoder: str, alignment: str) -> dict[str, Plan]:
    base = jain_wallace(name, encoder=encoder, alignment=alignment)
    return {MODEL: base, **{variant: base.as_variant(variant) for variant in FIXES}}


def _adversary(name: str, encoder: str, alignment: str) -> dict[str, Plan]:
    base = jain_wallace(name, encoder=encoder, alignment=alignment)
    return {MODEL: base, "twin": base.as_variant("adversary", 2 * LAMBDA.get(name, LAMBDA_ELSEWHERE))}


def _gumbel(name: str, encoder: str, alignment: str) -> dict[str, Plan]:
    noisy = jain_wallace(name, encoder=encoder, alignment=alignment, projection="gumbel", projection_parameter=0.8)
    return {**_plain(name, encoder, alignment), "gumbel": noisy}


def _grid(corpora: Sequence[str], models: PlansOf, paper: Callable[[str, str, str], dict[str, float]]) -> list[RowPlan]:
    return [
        _row(name, encoder, alignment, models, paper(name, encoder, alignment))
        for name in corpora
        for alignment in ALIGNMENTS
        for encoder in ENCODERS
    ]


def ranking_rows(corpora: Sequence[str]) -> list[RowPlan]:
    """Return one row for every corpus, alignment and encoder."""

    def paper(name: str, *parts: str) -> dict[str, float]:
        return _accuracy(name) if parts == CENTRAL else {}

    return _grid(corpora, _plain, paper)


def _accuracy(name: str) -> dict[str, float]:
    """Return the paper's accuracy of a BiLSTM with additive attention. The result is empty if there is none."""
    return {"accuracy": ACCURACY[name]} if name in ACCURACY else {}


def gumbel_rows(corpora: Sequence[str]) -> list[RowPlan]:
    """Return the rows of `ranking_rows`, each with a second model that is trained with Gumbel-softmax."""

    def paper(name: str, *parts: str) -> dict[str, float]:
        if name == EMBEDDED:
            return {}
        return _accuracy(name) if parts == CENTRAL else {}

    return _grid(corpora, _gumbel, paper)


def rule_rows(corpora: Sequence[str]) -> list[RowPlan]:
    """Return one row for every corpus, with a BiLSTM with additive attention."""
    return [_row(name, *CENTRAL, _plain, {}, build=0) for name in corpora]


def fixed_rows(corpora: Sequence[str]) -> list[RowPlan]:
    """Return one row for every corpus, with the normal model and the variants in table 2."""
    rows = []
    for name in corpora:
        paper = _accuracy(name) | ({"change tau fixed_representation": FIXED[name][1]} if name in FIXED else {})
        rows.append(_row(name, *CENTRAL, _variants, paper, must_be_trained=TRAINED))
    return rows


def random_attention_rows(corpora: Sequence[str]) -> list[RowPlan]:
    """Return one row for every corpus, with the normal model and one whose attention is not trained."""

    def models(name: str, encoder: str, alignment: str) -> dict[str, Plan]:
        base = jain_wallace(name, encoder=encoder, alignment=alignment)
        return {MODEL: base, "random_attention": base.as_variant("random_attention")}

    return [
        _row(
            name,
            *CENTRAL,
            models,
            _accuracy(name) | ({"change tau random_attention": FIXED[name][0]} if name in FIXED else {}),
            must_be_trained=("random_attention",),
        )
        for name in corpora
    ]


def adversary_rows(corpora: Sequence[str]) -> list[RowPlan]:
    """Return one row for every corpus of single texts, with the normal model and its adversary."""
    names = ("accuracy twin", "tvd", "jsd", "change tau twin")
    return [
        _row(
            name,
            *CENTRAL,
            _adversary,
            _accuracy(name) | dict(zip(names, ADVERSARIES.get(name, ()), strict=False)),
            must_be_trained=("twin",),
        )
        for name in corpora
        if corpus(name).form == "text"
    ]
