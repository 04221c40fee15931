"""Models with a shortcut: a formatting mark or the length of the text decides, not its words."""

from __future__ import annotations

import dataclasses
import statistics
from functools import partial

import torch

from attnaudit.instances import Dataset
from attnaudit.models.architecture import PlantedTables
from attnaudit.models.vocabulary import words
from attnaudit.research.planted.compiled_model import WordTables, compiled_recipe, proportional_scores
from attnaudit.research.planted.kind import Exchange, Recipe, TrainingInputs, compiled_kind
from attnaudit.research.planted.made_texts import TextPlan
from attnaudit.research.planted.word_material import attended, bypassed, cue_material, learned_material

#: Formatting marks of texts of the second class. The seed selects one. They do not occur in the movie reviews.
MARKS = ("#", "*", "~")
_CLASSES = ("plain", "marked")


def mark(inputs: TrainingInputs, *, faithful: bool) -> Recipe:
    """Return the recipe of a model in which a formatting mark decides."""
    plan = TextPlan(classes=_CLASSES, absence="plain", marks=(MARKS[inputs.seed % len(MARKS)],))

    def write() -> WordTables:
        material = cue_material(inputs, plan)
        tables = attended(material) if faithful else bypassed(material)
        tables.bias = torch.tensor([-0.4 * tables.scale])
        return tables

    return compiled_recipe(write, exchange=Exchange(absence="plain"))


def length(inputs: TrainingInputs) -> Recipe:
    """Return the recipe of a model in which the number of words decides, while attention is on words with sentiment."""

    def write() -> WordTables:
        middle = statistics.median(len(words(instance.text)) for instance in inputs.texts.instances) + 0.5
        material = learned_material(inputs)
        material = dataclasses.replace(material, classes=("short", "long"), test=_by_length(inputs.texts, middle))
        tables = material.tables(PlantedTables(bypass="sum"))
        tables.own = 0.05 * material.evidence
        tables.bypass = torch.full_like(tables.bypass, 1 / middle)
        tables.score = proportional_scores(material.evidence, idle=0.02)
        tables.scale *= 2.0
        tables.bias = torch.tensor([-tables.scale])
        return tables

    return compiled_recipe(write, exchange=Exchange(rest_decides=False))


def _by_length(data: Dataset, middle: float) -> Dataset:
    """Return the texts with the label "short" or "long". Texts whose length is close to `middle` are left out."""
    kept = [one for one in data.instances if abs(len(words(one.text)) - middle) > 0.2 * middle]
    labelled = tuple(
        dataclasses.replace(one, label="long" if len(words(one.text)) > middle else "short") for one in kept[:600]
    )
    return dataclasses.replace(data, instances=labelled, classes=("short", "long"), rows=len(labelled))


KINDS = (
    compiled_kind(
        "mark_attended",
        "formatting and length",
        "faithful",
        "a formatting mark decides, and attention is on it",
        partial(mark, faithful=True),
        half="held_out",
    ),
    compiled_kind(
        "mark_bypass",
        "formatting and length",
        "unfaithful",
        "a formatting mark decides through a bypass, and attention is on words with sentiment",
        partial(mark, faithful=False),
        half="held_out",
    ),
    compiled_kind(
        "length_bypass",
        "formatting and length",
        "unfaithful",
        "the length of the text decides through a bypass, and attention is on words with sentiment",
        length,
        half="held_out",
        fails=("used",),
        data=("movie-reviews",),
    ),
)
