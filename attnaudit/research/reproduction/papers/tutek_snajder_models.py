"""The models and rows of Tutek & Šnajder 2020.

A form of a model is a training option, or a change of the architecture, that keeps hidden states close to their words.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product

import msgspec

from attnaudit.formatting import plural
from attnaudit.models.training_job import Settings
from attnaudit.research.reproduction.corpora import corpus
from attnaudit.research.reproduction.model_plans import Plan, architecture
from attnaudit.research.reproduction.paper_tables import MODEL, RowPlan
from attnaudit.research.reproduction.papers.tutek_snajder_claims import EQUAL_SIZES
from attnaudit.research.reproduction.papers.tutek_snajder_numbers import FRAGILITY, LAYERS, PROBABILITY, Numbers

ALIGNMENTS = ("additive", "dot")
#: The paper divides the score of dot attention by √m. Models that do so hardly use attention, unlike the paper's.
UNSCALED = {"dot": "unscaled_dot"}
DEPTHS = (1, 2, 3)
DELTAS = (1.0, 10.0, 20.0, 30.0)
ETAS = (0.1, 0.3, 1.0, 3.0, 5.0)
#: The paper does not say for which δ and η it reports results. It lowers η for long texts, in which more words are
#: masked. These two values had the best F1 on the dev part of SST in trials with additive attention: δ from GloVe with
#: two seeds, and η from random embeddings with 3,000 training sentences, 5 epochs and one seed.
DELTA, ETA = 1.0, 0.1
#: Corpus -> number of epochs, if it is not that of the other papers. With fewer, models with MLM are not trained well.
EPOCHS = {"20news": 16}
#: Form -> advice for the remedies of a policy.
OPTIONS = {
    "tying": f"tie each state to its embedding, `attnaudit train {EQUAL_SIZES} --tying-norm {DELTA:g}`",
    "mlm": f"predict masked words as well, `attnaudit train {EQUAL_SIZES} --mlm {ETA:g}`",
    "residual": f"add the embedding to each state, `attnaudit train {EQUAL_SIZES} --residual`",
    "concat": "join the embedding to each state, `attnaudit train --concat`",
}
#: Form -> title. "tying" is trained with DELTA, and "mlm" with ETA.
FORMS = {"base": "base", "concat": "concat", "residual": "residual", "tying": "tying", "mlm": "MLM"}
#: λ for figure 1. The paper does not state its λ. TVD is at most 1, and JSD at most 0.693 nats.
WEIGHTS = (0.01, 0.1, 1.0)
IMITATED = ("base", "mlm")
COMPARED = ("base", "tying", "mlm")


def plan(of: str, form: str, alignment: str, *, layers: int | None = None, weight: float | None = None) -> Plan:
    """Return the plan of a model that is trained as in Tutek & Šnajder 2020.

    The embeddings have width 300, and the BiLSTM has 150 hidden units per direction. A hidden state is therefore as
    wide as an embedding.

    Args:
        of: The name of the corpus.
        form: A form in FORMS.
        alignment: The alignment in the name of the row.
        layers: The number of layers of the BiLSTM. None for one layer.
        weight: δ of the form "tying" or η of the form "mlm". None for DELTA or ETA. Other forms ignore it.
    """
    defaults = {"tying": DELTA, "mlm": ETA}
    weights = {name: (defaults[name] if weight is None else weight) if form == name else 0.0 for name in defaults}
    built = architecture(
        corpus(of),
        alignment=UNSCALED.get(alignment, alignment),
        states=form if form in ("concat", "residual") else "plain",
        embedding_size=300,
        hidden_size=150,
        attention_size=150,
        layers=layers if layers != 1 else None,
    )
    settings = Settings(tying_norm=weights["tying"], mlm=weights["mlm"])
    return Plan(
        corpus=of,
        architecture=built,
        settings=msgspec.structs.replace(settings, epochs=EPOCHS.get(of, settings.epochs)),
    )


def rows(corpora: Sequence[str], numbers: Mapping[tuple[str, str, str], Numbers]) -> list[RowPlan]:
    """Return one row for every corpus, form and alignment.

    Args:
        corpora: The names of the corpora.
        numbers: (corpus, form, alignment) -> name of a quantity -> number in the paper.
    """
    return [
        RowPlan(
            name=f"{of}/{form}/{alignment}",
            title=f"{corpus(of).title}, {form_title}, {alignment}",
            corpus=of,
            models={MODEL: plan(of, form, alignment)},
            paper=numbers.get((of, form, alignment), {}),
        )
        for of, alignment, (form, form_title) in product(corpora, ALIGNMENTS, FORMS.items())
    ]


def by_depth(corpora: Sequence[str]) -> list[RowPlan]:
    """Return one row for every corpus, form and number of layers. The form "residual" is left out."""
    return [
        RowPlan(
            name=f"{of}/{form}/{layers}-layers",
            title=f"{corpus(of).title}, {form_title}, BiLSTM of {plural(layers, 'layer')}",
            corpus=of,
            models={MODEL: plan(of, form, "additive", layers=layers)},
            paper=LAYERS.get((of, form, layers), {}),
        )
        for of, (form, form_title), layers in product(corpora, FORMS.items(), DEPTHS)
        if form != "residual"
    ]


def grid_rows(corpora: Sequence[str], form: str, values: Sequence[float]) -> list[RowPlan]:
    """Return one row for every corpus and alignment. Its roles are the base model and one model for each value.

    Args:
        corpora: The names of the corpora.
        form: The form of the models: "tying" or "mlm".
        values: The values of δ or η.
    """
    return [
        RowPlan(
            name=f"{of}/{form}/{alignment}",
            title=f"{corpus(of).title}, {FORMS[form]}, {alignment}",
            corpus=of,
            models={
                "0": plan(of, "base", alignment),
                **{f"{value:g}": plan(of, form, alignment, weight=value) for value in values},
            },
            paper={f"{name} 0": number for name, number in FRAGILITY.get((of, "base", alignment), {}).items()},
        )
        for of, alignment in product(corpora, ALIGNMENTS)
    ]


def compared(corpora: Sequence[str]) -> list[RowPlan]:
    """Return one row for every corpus and alignment. It compares three forms of the model on the same texts."""
    return [
        RowPlan(
            name=f"{of}/{alignment}",
            title=f"{corpus(of).title}, {alignment}",
            corpus=of,
            models={form: plan(of, form, alignment) for form in COMPARED},
            paper={
                f"{name} {form}": number
                for form in COMPARED
                for name, number in PROBABILITY.get((of, form, alignment), {}).items()
            },
        )
        for of, alignment in product(corpora, ALIGNMENTS)
    ]


def imitated(corpora: Sequence[str]) -> list[RowPlan]:
    """Return one row for every corpus and alignment, with a base model, a model of the form "mlm" and adversaries."""
    rows = []
    for of, alignment in product(corpora, ALIGNMENTS):
        models = {form: plan(of, form, alignment) for form in IMITATED}
        twins = {
            twin(form, weight): models[form].as_variant("twin", weight, "jsd")
            for form, weight in product(models, WEIGHTS)
        }
        rows.append(
            RowPlan(
                name=f"{of}/{alignment}",
                title=f"{corpus(of).title}, {alignment}",
                corpus=of,
                models={**models, **twins},
            )
        )
    return rows


def twin(form: str, weight: float) -> str:
    """Return the role of the adversary of a form, with λ = `weight`."""
    return f"{form} {weight:g}"
