"""The models and rows of Meister et al. 2021."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from attnaudit.research.reproduction.corpora import corpus
from attnaudit.research.reproduction.model_plans import Plan, jain_wallace
from attnaudit.research.reproduction.paper_tables import MODEL, RowPlan
from attnaudit.research.reproduction.papers.meister_numbers import (
    ADVERSARIES,
    ADVERSARY,
    BILSTM,
    FACTORS,
    SOFTMAX,
    SPARSEMAX,
    TRANSFORMER,
    Numbers,
)

#: (encoder, alignment) -> title of the model.
MODELS = {BILSTM: "BiLSTM, additive", TRANSFORMER: "Transformer, dot"}
RATES = {BILSTM: 1e-3, TRANSFORMER: 1e-4}
#: Factor of the learning rate of the attention's parameters. The paper uses 1 or 10, and does not say where.
ATTENTION_RATES = {BILSTM: 1.0, TRANSFORMER: 10.0}
#: λ of sparsegen, which is sparsemax(scores / (1 - λ)). From each value to the next, the scale of the scores doubles.
LAMBDAS = (-3.0, -1.0, 0.0, 0.5, 0.75, 0.875)
#: Role -> λ.
GRID = {f"λ={value:g}": value for value in LAMBDAS}
BASE, FROZEN, UNFROZEN = "base", "frozen", "unfrozen"


def plan(of: str, model: tuple[str, str], projection: str, parameter: float | None = None) -> Plan:
    """Return the plan of a model of the paper.

    The model is trained as in Jain & Wallace 2019, because the paper follows their setting. The learning rates are ten
    times those of the paper. sparsegen with λ = 0 is the same as sparsemax, so both share one checkpoint.

    Args:
        of: The name of the corpus.
        model: (encoder, alignment).
        projection: The projection: "softmax", "sparsemax" or "sparsegen".
        parameter: λ of sparsegen. None for the other projections.
    """
    encoder, alignment = model
    if projection == "sparsegen" and parameter == 0:
        projection, parameter = SPARSEMAX, None
    made = jain_wallace(of, encoder=encoder, alignment=alignment, projection=projection, projection_parameter=parameter)
    return made.with_settings(learning_rate=RATES[model], attention_rate=ATTENTION_RATES[model])


def _row(of: str, key: tuple[str, ...], models: Mapping[str, Plan], numbers: Numbers) -> RowPlan:
    paper = {name: by_corpus[of] for name, by_corpus in numbers.get(key, {}).items() if of in by_corpus}
    return RowPlan(
        name="/".join((of, *key)),
        title=", ".join((corpus(of).title, MODELS[key[0], key[1]], *key[2:])),
        corpus=of,
        models=models,
        paper=paper,
    )


def single(corpora: Sequence[str], numbers: Numbers) -> list[RowPlan]:
    """Return one row for every corpus, model and projection. Each row has a single model."""
    return [
        _row(of, (*model, projection), {MODEL: plan(of, model, projection)}, numbers)
        for of in corpora
        for model in MODELS
        for projection in (SOFTMAX, SPARSEMAX)
    ]


def spectrum(corpora: Sequence[str], numbers: Numbers) -> list[RowPlan]:
    """Return one row for every corpus and model. The roles of a row are softmax and every λ of sparsegen."""
    return [
        _row(
            of,
            model,
            {SOFTMAX: plan(of, model, SOFTMAX)}
            | {role: plan(of, model, "sparsegen", value) for role, value in GRID.items()},
            numbers,
        )
        for of in corpora
        for model in MODELS
    ]


def adversaries(corpora: Sequence[str]) -> list[RowPlan]:
    """Return one row for every corpus, model and weight λ of the divergence.

    The roles of a row are a softmax model and its two trained adversaries.
    """
    rows = []
    for of in corpora:
        for model in MODELS:
            base = plan(of, model, SOFTMAX)
            for title, factor in FACTORS.items():
                value = float(f"{2 * factor * ADVERSARY[of]:.6g}")
                twins = {
                    role: msgspec.structs.replace(base, variant=variant, value=value)
                    for role, variant in ((FROZEN, "twin_frozen"), (UNFROZEN, "twin"))
                }
                row = _row(of, (*model, title), {BASE: base, **twins}, {(*model, title): ADVERSARIES[model]})
                rows.append(row)
    return rows
