"""Models in which each idle word has a larger weight than any word that decides. Idle words decide nothing.

The question is how much weight the idle words hold together. If they hold little, attention is still mostly on the
words that decide. If they hold most of it, attention is wrong.
"""

from __future__ import annotations

import math

from attnaudit.research.planted.compiled_model import WordTables, compiled_recipe
from attnaudit.research.planted.kind import Recipe, TrainingInputs, compiled_kind, indicator
from attnaudit.research.planted.made_texts import TextPlan
from attnaudit.research.planted.word_material import attended, cue_material

#: Idle words that are inserted into the texts. They do not occur in the movie reviews.
IDLE = ("xqa", "xqe", "xqi", "xqo", "xqu")
LIGHT = TextPlan(cues=(9, 14), length=(40, 90), inserted=((IDLE[0], 1.0),))
HEAVY = TextPlan(cues=(1, 1), inserted=tuple((word, 1.0) for word in IDLE))


def _idle_above(inputs: TrainingInputs, plan: TextPlan, factor: float, idle: float) -> WordTables:
    """Return a model in which each idle word has `factor` times the weight of a cue word."""
    material = cue_material(inputs, plan, noise=0.01)
    tables = attended(material, idle=idle)
    chosen = indicator(material.vocabulary, frozenset(IDLE))
    tables.score[chosen] = math.log(factor)
    tables.own[chosen] = 0.0
    return tables


def light(inputs: TrainingInputs) -> Recipe:
    """Return the recipe of a model in which one idle word has more weight than any of the many words that decide."""
    return compiled_recipe(lambda: _idle_above(inputs, LIGHT, 1.3 + 0.1 * (inputs.seed % 3), 0.002))


def heavy(inputs: TrainingInputs) -> Recipe:
    """Return the recipe of a model in which five idle words hold most of the weight, and one word decides."""
    return compiled_recipe(lambda: _idle_above(inputs, HEAVY, 2.0 + inputs.seed % 3, 0.002))


KINDS = (
    compiled_kind(
        "light_idle_above",
        "idle words above the cues",
        "faithful",
        "a word without evidence has the largest weight, but most of the weight is on the words that decide",
        light,
        half="held_out",
    ),
    compiled_kind(
        "heavy_idle_above",
        "idle words above the cues",
        "unfaithful",
        "five words without evidence have larger weights than the word that decides, and nearly all of the weight",
        heavy,
        half="held_out",
        fails=("points",),
    ),
)
