"""Models of texts with several cue words, any of which suffices."""

from __future__ import annotations

from functools import partial

from attnaudit.research.planted.compiled_model import compiled_recipe
from attnaudit.research.planted.kind import Recipe, TrainingInputs, compiled_kind
from attnaudit.research.planted.made_texts import TextPlan
from attnaudit.research.planted.word_material import attended, bypassed, cue_material

PLAN = TextPlan(cues=(2, 5))


def recipe(inputs: TrainingInputs, *, faithful: bool) -> Recipe:
    """Return the recipe of a model of texts with two to five cue words of one class.

    The unfaithful model has a bypass around attention. The bypass saturates: a second cue word adds almost nothing to
    its output.
    """
    if faithful:
        return compiled_recipe(lambda: attended(cue_material(inputs, PLAN)))
    return compiled_recipe(lambda: bypassed(cue_material(inputs, PLAN), bypass="saturating"))


KINDS = (
    compiled_kind(
        "redundant_cues",
        "redundant cues",
        "faithful",
        "several words of one class in each text, all of which attract attention",
        partial(recipe, faithful=True),
        half="held_out",
    ),
    compiled_kind(
        "redundant_bypass",
        "redundant cues",
        "unfaithful",
        "each text has several words of one class; a bypass decides, and any one of these words would suffice",
        partial(recipe, faithful=False),
        half="held_out",
    ),
)
