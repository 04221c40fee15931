"""Models with an attention sink: the first word or a separator gets weight in every text, but carries no evidence."""

from __future__ import annotations

import math
from functools import partial

from attnaudit.models.architecture import PlantedTables
from attnaudit.research.planted.compiled_model import WordTables, compiled_recipe
from attnaudit.research.planted.kind import Recipe, TrainingInputs, compiled_kind, indicator
from attnaudit.research.planted.made_texts import TextPlan
from attnaudit.research.planted.word_material import attended, cue_material

SEPARATOR = "xsep"
_IDLE, _NOISE = 0.002, 0.002
#: The weight of the sink, as a multiple of that of a cue word. The seed selects one.
HEAVY, LIGHT = (20.0, 30.0, 15.0), (0.1, 0.15, 0.05)


def recipe(inputs: TrainingInputs, *, places: tuple[str, ...], factors: tuple[float, ...]) -> Recipe:
    """Return the recipe of a model with a sink: a word without evidence that gets attention weight in every text.

    Args:
        inputs: The inputs of the recipe.
        places: The places to choose from: "first" makes the first word of the text the sink, and "separator" an
            inserted word. The seed selects one of them.
        factors: The weights of the sink to choose from, as multiples of the weight of a cue word. The seed selects one
            of them.
    """
    place = places[inputs.seed % len(places)]
    factor = factors[inputs.seed % len(factors)]
    plan = TextPlan(cues=(1, 2), inserted=((SEPARATOR, 1.0),) if place == "separator" else ())

    def write() -> WordTables:
        tables = attended(cue_material(inputs, plan, noise=_NOISE), idle=_IDLE)
        if place == "separator":
            tables.score[indicator(tables.vocabulary, frozenset((SEPARATOR,)))] = math.log(factor)
        else:
            tables.settings = PlantedTables(first_score=math.log(factor / _IDLE))
        return tables

    return compiled_recipe(write)


KINDS = (
    compiled_kind(
        "first_word_sink",
        "attention sinks",
        "unfaithful",
        "most of the weight is on the first word, which has no evidence, and the rest on the words that decide",
        partial(recipe, places=("first",), factors=HEAVY),
        fails=("points",),
    ),
    compiled_kind(
        "separator_sink",
        "attention sinks",
        "unfaithful",
        "most of the weight is on a separator, which has no evidence, and the rest on the words that decide",
        partial(recipe, places=("separator",), factors=HEAVY),
        fails=("points",),
    ),
    compiled_kind(
        "light_sink",
        "attention sinks",
        "faithful",
        "about a tenth of the weight is on a word without evidence, and the rest on the words that decide",
        partial(recipe, places=("separator", "first"), factors=LIGHT),
    ),
)
