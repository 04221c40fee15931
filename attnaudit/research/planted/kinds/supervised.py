"""Faithful models whose attention is trained to be proportional to the evidence that the model uses."""

from __future__ import annotations

import torch
from torch import Tensor

from attnaudit.models.planted_states import OWN, SCORE
from attnaudit.models.pooled_classifier import ForwardPass, PooledClassifier
from attnaudit.models.training_job import Objective
from attnaudit.models.vocabulary import END, Vocabulary
from attnaudit.research.planted.construction import (
    encoder_of,
    fix_decoder,
    planted,
    planted_contributions,
    silence_evidence,
)
from attnaudit.research.planted.kind import Kind, Recipe, TrainingInputs, quick_settings

#: The weight of the supervision in the loss.
_WEIGHT = 3.0
#: Added to the evidence, so that its logarithm is finite.
_FLOOR = 0.01
#: The number of optimizer steps of the second training, which trains only the attention scores.
_STEPS = 150


def _prepare(model: PooledClassifier, vocabulary: Vocabulary) -> None:
    fix_decoder(model, reads=(OWN,))
    silence_evidence(model)


def _supervise(_vocabulary: Vocabulary) -> Objective:
    """Return an objective that trains attention to be proportional to the magnitude of the evidence.

    Each attention score is trained towards the logarithm of the magnitude. A shift that is the same for all scores of
    a text costs nothing, because it does not change the weights.
    """

    def objective(_model: PooledClassifier, traced: ForwardPass, _targets: Tensor, loss: Tensor) -> Tensor:
        magnitude = traced.hidden[..., OWN].abs().detach()
        target_score = torch.log(magnitude + _FLOOR)
        gap = (traced.hidden[..., SCORE] - target_score) * traced.real
        count = traced.real.sum(dim=1, keepdim=True)
        gap = (gap - gap.sum(dim=1, keepdim=True) / count) * traced.real
        return loss + _WEIGHT * gap.square().sum() / count.sum()

    return objective


def _supervise_trained_model(model: PooledClassifier) -> None:
    """Train the attention scores of all words again, while the evidence is fixed.

    During the first training, the evidence keeps changing, so the scores do not match it exactly.
    """
    encoder = encoder_of(model)
    with torch.no_grad():
        target_score = torch.log(encoder.evidence(model.embedding.weight[None]).abs()[0] + _FLOOR)[END + 1 :]
        target_score = target_score - target_score.mean()
    read_by_attention = encoder.parts(model.embedding.weight)[0].detach().clone().requires_grad_(True)
    parameters = [*encoder.features.parameters(), *encoder.alignment.parameters(), read_by_attention]
    optimizer = torch.optim.Adam(parameters, lr=1e-2)
    for _ in range(_STEPS):
        score = encoder.alignment(torch.tanh(encoder.features(read_by_attention[END + 1 :])))
        optimizer.zero_grad()
        (score - score.mean() - target_score).square().mean().backward()
        optimizer.step()
    with torch.no_grad():
        encoder.parts(model.embedding.weight)[0].copy_(read_by_attention)


def recipe(inputs: TrainingInputs) -> Recipe:
    """Return the recipe of a model whose attention is trained to be proportional to the evidence that it uses."""
    return Recipe(
        architecture=planted(alignment=inputs.alignment),
        settings=quick_settings(inputs.seed, epochs=4),
        prepare=_prepare,
        objective=_supervise,
        finish=_supervise_trained_model,
        contribution=planted_contributions,
    )


KINDS = (
    Kind(
        name="taught_evidence",
        mechanism="taught evidence",
        truth="faithful",
        description="attention taught to be proportional to the evidence that the model uses",
        recipe=recipe,
        half="held_out",
    ),
)
