"""Faithful models in which the evidence of a token grows with its attention score.

The product of attention and evidence therefore ranks the tokens in the same order as attention.
"""

from __future__ import annotations

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


def recipe(inputs: TrainingInputs) -> Recipe:
    """Return the recipe of a model in which the magnitude of a token's evidence grows with its attention score.

    The magnitude is close to the sigmoid of the score.
    """
    return Recipe(
        architecture=planted(alignment=inputs.alignment, evidence="scored"),
        settings=quick_settings(inputs.seed),
        prepare=_prepare,
        contribution=planted_contributions,
    )


KINDS = (
    Kind(
        name="attention_times_evidence",
        mechanism="one magnitude of evidence",
        truth="faithful",
        description="evidence grows with the attention score, so attention and evidence rank the tokens alike",
        recipe=recipe,
    ),
)
