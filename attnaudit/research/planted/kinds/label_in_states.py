"""Unfaithful models whose hidden states carry the evidence of the whole text.

The evidence is either in every hidden state, or only in the state of the first or the last real token.
"""

from __future__ import annotations

from functools import partial

import torch

from attnaudit.models.planted_states import OWN, TEXT_EVIDENCE
from attnaudit.models.pooled_classifier import PooledClassifier
from attnaudit.models.vocabulary import Vocabulary
from attnaudit.research.planted.construction import (
    amplify_evidence,
    encoder_of,
    fix_decoder,
    freeze_random_attention,
    planted,
    planted_contributions,
    silence_evidence,
    uncorrelated_objective,
)
from attnaudit.research.planted.kind import Kind, Recipe, TrainingInputs, freeze, keep_fixed, quick_settings


def _prepare_everywhere(model: PooledClassifier, vocabulary: Vocabulary) -> None:
    fix_decoder(model, reads=(TEXT_EVIDENCE,))
    silence_evidence(model)
    freeze_random_attention(model)


def everywhere(inputs: TrainingInputs, *, encoder: str) -> Recipe:
    """Return the recipe of a model whose output does not depend on its attention weights.

    Every hidden state carries the evidence of the text. Attention keeps its random initial parameters.

    Args:
        inputs: The inputs of training.
        encoder: What attention scores are computed from: "average" (each token alone) or "bilstm".
    """
    return Recipe(
        architecture=planted(alignment=inputs.alignment, label="everywhere", encoder=encoder),
        settings=quick_settings(inputs.seed),
        prepare=_prepare_everywhere,
        contribution=planted_contributions,
    )


#: The initial evidence of each single word is multiplied by this factor.
_AMPLIFICATION = 20.0


def _prepare_one_place(model: PooledClassifier, vocabulary: Vocabulary) -> None:
    """Prepare a model in which one hidden state carries the evidence of the text.

    All tokens get strong random evidence of their own, so that attention weights on other states change the output.
    """
    fix_decoder(model, reads=(OWN, TEXT_EVIDENCE))
    silence_evidence(model)
    encoder = encoder_of(model)
    freeze(encoder.own)
    own_evidence = torch.zeros_like(model.embedding.weight, dtype=torch.bool)
    encoder.parts(own_evidence)[1].fill_(True)
    amplify_evidence(model, _AMPLIFICATION)
    keep_fixed(model.embedding.weight, own_evidence)
    keep_fixed(model.decoder.weight, torch.arange(model.decoder.weight.shape[1]) == OWN)


def one_place(inputs: TrainingInputs) -> Recipe:
    """Return the recipe of a model in which only one hidden state carries the evidence of the text.

    This is the state of the first or of the last real token, depending on the seed.
    """
    return Recipe(
        architecture=planted(alignment=inputs.alignment, label=("first", "last")[inputs.seed // 2 % 2]),
        settings=quick_settings(inputs.seed),
        prepare=_prepare_one_place,
        objective=lambda _vocabulary: uncorrelated_objective,
        contribution=planted_contributions,
    )


KINDS = (
    Kind(
        name="label_everywhere",
        mechanism="label in states",
        truth="unfaithful",
        description="every state carries the label, so any attention gives the same output",
        recipe=partial(everywhere, encoder="average"),
        needs_bypass=True,
    ),
    Kind(
        name="label_everywhere_in_context",
        mechanism="label in states",
        truth="unfaithful",
        description="every state carries the label, and attention weighs the states of a BiLSTM",
        recipe=partial(everywhere, encoder="bilstm"),
        needs_bypass=True,
    ),
    Kind(
        name="label_at_one_place",
        mechanism="label in states",
        truth="unfaithful",
        description="the state at one fixed position carries the label of the whole text",
        recipe=one_place,
        fails=("points",),
    ),
)
