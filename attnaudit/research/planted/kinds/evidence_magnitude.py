"""Faithful models in which attention determines how much the evidence of a token counts.

In `unit_evidence`, the evidence of all tokens has the same magnitude, and the attention score of a token is computed
from its embedding. In `unit_evidence_in_context`, the score is computed from a BiLSTM state. In
`attention_times_evidence`, the evidence of a token grows with its attention score, so that the product of both ranks
the tokens in the same order as attention.
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
from attnaudit.research.planted.kind import Kind, Recipe, TrainingInputs, quick_settings


def _prepare(model: PooledClassifier, vocabulary: Vocabulary) -> None:
    fix_decoder(model, reads=(OWN,))
    silence_evidence(model)
    amplify_evidence(model, 5.0)


def recipe(inputs: TrainingInputs, *, evidence: str = "unit", encoder: str = "average") -> Recipe:
    """Return the recipe of a model in which the magnitude of a token's evidence is 1, or grows with its score.

    Args:
        inputs: The inputs of training.
        evidence: "unit" for a magnitude close to 1, "scored" for one close to the sigmoid of the attention score.
        encoder: What attention scores are computed from: "average" (each token alone) or "bilstm".
    """
    return Recipe(
        architecture=planted(alignment=inputs.alignment, evidence=evidence, encoder=encoder),
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
        recipe=recipe,
    ),
    Kind(
        name="unit_evidence_in_context",
        mechanism="one magnitude of evidence",
        truth="faithful",
        description="evidence of the same magnitude for every token, with attention over the states of a BiLSTM",
        recipe=partial(recipe, encoder="bilstm"),
    ),
    Kind(
        name="attention_times_evidence",
        mechanism="one magnitude of evidence",
        truth="faithful",
        description="evidence grows with the attention score, so attention and evidence rank the tokens alike",
        recipe=partial(recipe, evidence="scored"),
    ),
)
