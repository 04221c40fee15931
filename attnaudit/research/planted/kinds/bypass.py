"""Unfaithful models in which a bypass around attention determines the output.

Attention and the bypass use the evidence of different words. Attention accounts for at most 5% of the logit's variance.
The bypass is a feature that has the same value in every hidden state. Because attention weights sum to one, the feature
reaches the decoder whatever the weights are. It therefore has the same effect as a skip connection to the decoder.
"""

from __future__ import annotations

import zlib

import torch

from attnaudit.models.planted_states import OWN, TEXT_EVIDENCE
from attnaudit.models.pooled_classifier import PooledClassifier
from attnaudit.models.vocabulary import Vocabulary
from attnaudit.research.planted.compiled_model import compiled_recipe
from attnaudit.research.planted.construction import (
    fix_decoder,
    planted,
    planted_contributions,
    silence_evidence,
    uncorrelated_objective,
)
from attnaudit.research.planted.kind import Kind, Recipe, TrainingInputs, compiled_kind, quick_settings
from attnaudit.research.planted.word_material import bypassed, learned_material


def recipe(inputs: TrainingInputs) -> Recipe:
    """Return the recipe of a model in which attention uses a random quarter of the words, and a bypass the rest."""

    def attended_words(vocabulary: Vocabulary) -> torch.Tensor:
        """Choose a random quarter of the words.

        Returns:
            (V,) True at the chosen words.
        """
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
        mechanism="bypass",
        half="held_out",
        truth="unfaithful",
        description="a bypass around attention accounts for at least 95% of the logit's variance",
        recipe=recipe,
        needs_bypass=True,
    ),
    compiled_kind(
        "evidence_over_bypass",
        "bypass",
        "unfaithful",
        "attention in proportion to the evidence of half of the words, while the other half takes a bypass",
        lambda inputs: compiled_recipe(lambda: bypassed(learned_material(inputs, halves=True))),
        half="held_out",
        data=("movie-reviews", "synthetic"),
    ),
)
