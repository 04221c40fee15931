"""Faithful models in which the evidence of all tokens has the same magnitude.

Attention alone therefore determines how much a token counts. In `unit_evidence`, the attention score of a token is
computed from its embedding. In `unit_evidence_in_context`, it is computed from a BiLSTM state.
"""

from __future__ import annotations

from functools import partial

from attnaudit.models.planted_states import OWN
from attnaudit.models.pooled_classifier import PooledClassifier
from attnaudit.models.vocabulary import Vocabulary
from attnaudit.research.planted.construction import (
    amplify_evidence,
    fix_decoder,
    planted,
    planted_contributions,
    silence_evidence,
)
from attnaudit.research.planted.kinds import Kind, Recipe, TrainingInputs, quick_settings


def _prepare(model: PooledClassifier, vocabulary: Vocabulary) -> None:
    fix_decoder(model, reads=(OWN,))
    silence_evidence(model)
    amplify_evidence(model, 5.0)


def recipe(inputs: TrainingInputs, *, encoder: str) -> Recipe:
    """Return the recipe of a model in which the evidence of every token has a magnitude close to 1.

    Args:
        inputs: The inputs of training.
        encoder: What attention scores are computed from: "average" (each token alone) or "bilstm".
    """
    return Recipe(
        architecture=planted(alignment=inputs.alignment, evidence="unit", encoder=encoder),
        settings=quick_settings(inputs.seed),
        prepare=_prepare,
        contribution=planted_contributions,
    )


KINDS = (
    Kind(
        name="unit_evidence",
        mechanism="one magnitude of evidence",
        truth="faithful",
        description="evidence of the same magnitude for every token: attention alone decides how much a token counts",
        recipe=partial(recipe, encoder="average"),
    ),
    Kind(
        name="unit_evidence_in_context",
        mechanism="one magnitude of evidence",
        truth="faithful",
        description="evidence of the same magnitude for every token, with attention over the states of a BiLSTM",
        recipe=partial(recipe, encoder="bilstm"),
    ),
)
