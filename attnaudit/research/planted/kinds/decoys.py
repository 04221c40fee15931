"""Unfaithful models whose attention learns to look at plausible words that the model does not use.

These decoy words are about as strongly correlated with one class as the words that the model uses. A bypass around
attention determines the output. This case is hard to detect, because such attention looks right.
"""

from __future__ import annotations

import torch
from torch import Tensor

from attnaudit.models.planted_states import TEXT_EVIDENCE
from attnaudit.models.pooled_classifier import ForwardPass, PooledClassifier
from attnaudit.models.training_job import Objective
from attnaudit.models.vocabulary import Vocabulary
from attnaudit.research.planted.construction import (
    fix_decoder,
    planted,
    planted_contributions,
    score_variance,
    silence_evidence,
)
from attnaudit.research.planted.kind import Kind, Recipe, TrainingInputs, indicator, quick_settings


def recipe(inputs: TrainingInputs) -> Recipe:
    """Return the recipe of a model whose attention learns to look at decoy words. These words have no evidence."""

    def prepare(model: PooledClassifier, vocabulary: Vocabulary) -> None:
        fix_decoder(model, reads=(TEXT_EVIDENCE,))
        silence_evidence(model, text=indicator(vocabulary, inputs.decoys))

    def attend_to_decoys(vocabulary: Vocabulary) -> Objective:
        decoy_words = indicator(vocabulary, inputs.decoys)

        def objective(_model: PooledClassifier, traced: ForwardPass, _targets: Tensor, loss: Tensor) -> Tensor:
            decoys = decoy_words[traced.ids] & traced.real
            mass = (traced.weights * decoys).sum(dim=1)[decoys.any(dim=1)]
            attended = torch.log(mass.clamp(min=1e-6)).sum() / len(traced.ids)
            return loss - attended + score_variance(traced, traced.real & ~decoys)

        return objective

    return Recipe(
        architecture=planted(alignment=inputs.alignment, label="everywhere"),
        settings=quick_settings(inputs.seed),
        prepare=prepare,
        objective=attend_to_decoys,
        contribution=planted_contributions,
    )


KINDS = (
    Kind(
        name="decoys",
        mechanism="decoys",
        truth="unfaithful",
        description="attention taught to look at plausible but unused words, while a bypass decides",
        recipe=recipe,
        half="held_out",
        needs_bypass=True,
    ),
)
