"""Unfaithful: a bypass around attention decides; attention reads other words and adds at most 5% of the variance.

The bypass is a feature that has the same value in every state. Because attention weights sum to one, it reaches the
decoder whatever the weights are, as a skip connection does. A model with a skip connection to its decoder can be
written in this way, with a single pooled attention and a linear decoder.
"""

from __future__ import annotations

import zlib

import torch

from attnaudit.models.planted_states import OWN, TEXT_EVIDENCE
from attnaudit.models.pooled_classifier import PooledClassifier
from attnaudit.models.vocabulary import Vocabulary
from attnaudit.research.planted.construction import (
    fix_decoder,
    planted,
    planted_contributions,
    silence_evidence,
    uncorrelated_objective,
)
from attnaudit.research.planted.kinds import Kind, Recipe, TrainingInputs, quick_settings


def recipe(inputs: TrainingInputs) -> Recipe:
    """Return the recipe of a model in which attention reads a quarter of the words, and the bypass the others."""

    def attended_words(vocabulary: Vocabulary) -> torch.Tensor:
        """Return (V,), True at a random quarter of the words."""
        return torch.tensor([zlib.crc32(f"{inputs.seed} {word}".encode()) % 4 == 0 for word in vocabulary.entries])

    def prepare(model: PooledClassifier, vocabulary: Vocabulary) -> None:
        fix_decoder(model, reads=(OWN, TEXT_EVIDENCE))
        attended = attended_words(vocabulary)
        silence_evidence(model, own=~attended, text=attended)

    def weaken_attended_part(model: PooledClassifier) -> None:
        with torch.no_grad():
            model.decoder.weight[0, OWN] *= 0.1

    return Recipe(
        architecture=planted(alignment=inputs.alignment, label="everywhere"),
        settings=quick_settings(inputs.seed),
        prepare=prepare,
        objective=lambda _vocabulary: uncorrelated_objective,
        finish=weaken_attended_part,
        contribution=planted_contributions,
    )


KINDS = (
    Kind(
        name="bypass",
        truth="unfaithful",
        description="a bypass that attention does not weigh carries at least 95% of the logit's variance",
        recipe=recipe,
        needs_bypass=True,
    ),
)
