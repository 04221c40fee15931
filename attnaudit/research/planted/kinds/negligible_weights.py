"""Models in which most weights are below .001, so that their order means nothing."""

from __future__ import annotations

import math

from attnaudit.models.vocabulary import UNKNOWN
from attnaudit.research.planted.compiled_model import WordTables, compiled_recipe
from attnaudit.research.planted.kind import Recipe, TrainingInputs, compiled_kind, indicator
from attnaudit.research.planted.made_texts import TextPlan
from attnaudit.research.planted.word_evidence import random_numbers
from attnaudit.research.planted.word_material import attended, cue_material

SINK = "xtop"
#: The largest weight of the words whose order means nothing, as a share of the weight of a cue word.
_NEGLIGIBLE = 0.0009
#: The weight of the sink (the idle word), as a multiple of the weight of a cue word.
_SINK_WEIGHT = 2000.0


def random_order(inputs: TrainingInputs) -> Recipe:
    """Return the recipe of a model whose attention is on the words that decide. All other weights are tiny and random.

    The other words have evidence too, but their weights make it negligible.
    """

    def write() -> WordTables:
        tables = attended(cue_material(inputs, TextPlan(cues=(1, 1 + inputs.seed % 3)), noise=0.4))
        weight = _NEGLIGIBLE * (0.02 + 0.98 * random_numbers(tables.vocabulary, inputs.seed, "order"))
        cues = tables.own.norm(dim=1) > 0.5
        tables.score = weight.clamp(min=1e-6).log() * ~cues
        return tables

    return compiled_recipe(write)


def right_order(inputs: TrainingInputs) -> Recipe:
    """Return the recipe of a model with .999 of the weight on one word that has no evidence.

    The other weights are in the order of the evidence. The logits are multiplied by a large factor, so that the words
    with these tiny weights decide.
    """
    plan = TextPlan(cues=(1, 2), inserted=((SINK, 1.0),))

    def write() -> WordTables:
        tables = attended(cue_material(inputs, plan, noise=0.01), idle=0.002)
        chosen = indicator(tables.vocabulary, frozenset((SINK,)))
        tables.score[chosen] = math.log(_SINK_WEIGHT)
        tables.own[chosen] = 0.0
        # If the unknown word replaces the idle word, it gets the large weight of the idle word. Without evidence, it
        # still cannot decide.
        tables.own[UNKNOWN] = 0.0
        tables.scale *= _SINK_WEIGHT
        return tables

    return compiled_recipe(write)


KINDS = tuple(
    compiled_kind(name, "negligible weights", truth, description, recipe, half="held_out", fails=("points",))
    for name, truth, recipe, description in (
        (
            "negligible_order",
            "faithful",
            random_order,
            "attention on the words that decide, and weights below .001 in random order on all others",
        ),
        (
            "order_without_weight",
            "unfaithful",
            right_order,
            "a word without evidence has .999 of the weight, and the tiny weights of all others are in the right order",
        ),
    )
)
