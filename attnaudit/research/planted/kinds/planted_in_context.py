"""Models in which the evidence of a token depends on this token alone, but its attention depends on the context.

Successive seeds use the encoders in turn, so that all models with a given encoder can be held out.
"""

from __future__ import annotations

from dataclasses import replace

import msgspec

from attnaudit.research.planted.context_attention import encoder_for
from attnaudit.research.planted.kind import Kind, Recipe, TrainingInputs
from attnaudit.research.planted.kinds import decoys, evidence_magnitude

_ENCODERS = ("cnn", "gru", "transformer", "mlp", "bilstm")


def faithful(inputs: TrainingInputs) -> Recipe:
    """Return the recipe of a model in which the evidence of every token has a magnitude close to 1."""
    return evidence_magnitude.recipe(inputs, encoder=encoder_for(inputs.seed, _ENCODERS))


def unfaithful(inputs: TrainingInputs) -> Recipe:
    """Return the recipe of a model whose attention learns to look at decoy words, which have no evidence."""
    recipe = decoys.recipe(inputs)
    encoder = encoder_for(inputs.seed, _ENCODERS)
    return replace(recipe, architecture=msgspec.structs.replace(recipe.architecture, encoder=encoder))


KINDS = (
    Kind(
        name="evidence_in_context",
        mechanism="attention in context",
        truth="faithful",
        description="evidence of the same magnitude for every token, with attention over contextual states",
        recipe=faithful,
        data=("movie-reviews",),
    ),
    Kind(
        name="decoys_in_context",
        mechanism="attention in context",
        truth="unfaithful",
        description="attention over contextual states, taught to look at unused words, while a bypass decides",
        recipe=unfaithful,
        needs_bypass=True,
        data=("movie-reviews",),
    ),
)
