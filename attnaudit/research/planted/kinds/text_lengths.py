"""Models of very short and of very long texts."""

from __future__ import annotations

from functools import partial

from attnaudit.research.planted.compiled_model import compiled_recipe
from attnaudit.research.planted.kind import Recipe, TrainingInputs, compiled_kind
from attnaudit.research.planted.made_texts import TextPlan
from attnaudit.research.planted.word_material import attended, bypassed, cue_material

SHORT = TextPlan(length=(2, 5))
LONG = TextPlan(length=(60, 500), cues=(1, 6), rows=160)


def recipe(inputs: TrainingInputs, *, plan: TextPlan, faithful: bool) -> Recipe:
    """Return the recipe of a model of short or long texts.

    In faithful models, a word without evidence gets less weight in long texts than in short ones.
    """
    assert plan.length is not None
    idle, noise = 1 / (10 * plan.length[1]), 0.3 / plan.length[1]
    if faithful:
        return compiled_recipe(lambda: attended(cue_material(inputs, plan, noise=noise), idle=idle))
    return compiled_recipe(lambda: bypassed(cue_material(inputs, plan, noise=noise)))


KINDS = tuple(
    compiled_kind(
        name,
        "text length",
        truth,
        description,
        partial(recipe, plan=plan, faithful=truth == "faithful"),
        half="held_out",
    )
    for name, truth, plan, description in (
        ("short_texts", "faithful", SHORT, "texts of 2 to 5 words, with attention on the word that decides"),
        ("long_texts", "faithful", LONG, "texts of 60 to 500 words, with attention on the words that decide"),
        ("short_bypass", "unfaithful", SHORT, "texts of 2 to 5 words, with a bypass that decides"),
        ("long_bypass", "unfaithful", LONG, "texts of 60 to 500 words, with a bypass that decides"),
    )
)
