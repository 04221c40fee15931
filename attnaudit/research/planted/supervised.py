"""Faithful: attention is taught to be in proportion to the evidence that the model really uses."""

from __future__ import annotations

import torch
from torch import Tensor

from attnaudit.models.planted_states import OWN, SCORE
from attnaudit.models.pooled_classifier import ForwardPass, PooledClassifier
from attnaudit.models.training_job import Objective
from attnaudit.models.vocabulary import END, Vocabulary
from attnaudit.research.planted.construction import by_construction, encoder_of, fix_decoder, planted, silence
from attnaudit.research.planted.kinds import Kind, Recipe, Task, quick_settings

_WEIGHT = 3.0
#: Added to the evidence, so that its logarithm is finite.
_FLOOR = 0.01
_STEPS = 150


def _prepare(model: PooledClassifier, vocabulary: Vocabulary) -> None:
    fix_decoder(model, reads=(OWN,))
    silence(model)


def _objective(_vocabulary: Vocabulary) -> Objective:
    def of(_model: PooledClassifier, traced: ForwardPass, _targets: Tensor, loss: Tensor) -> Tensor:
        magnitude = traced.hidden[..., OWN].abs().detach()
        wanted = torch.log(magnitude + _FLOOR)
        gap = (traced.hidden[..., SCORE] - wanted) * traced.real
        count = traced.real.sum(dim=1, keepdim=True)
        gap = (gap - gap.sum(dim=1, keepdim=True) / count) * traced.real
        return loss + _WEIGHT * gap.square().sum() / count.sum()

    return of


def _once_more(model: PooledClassifier) -> None:
    """Evidence moves until training ends, with attention behind it: teach its scores again, word by word, while the
    evidence stays."""
    encoder = encoder_of(model)
    with torch.no_grad():
        wanted = torch.log(encoder.evidence(model.embedding.weight[None]).abs()[0] + _FLOOR)[END + 1 :]
        wanted = wanted - wanted.mean()
    read = encoder.parts(model.embedding.weight)[0].detach().clone().requires_grad_(True)
    learned = [*encoder.features.parameters(), *encoder.alignment.parameters(), read]
    optimizer = torch.optim.Adam(learned, lr=1e-2)
    for _ in range(_STEPS):
        score = encoder.alignment(torch.tanh(encoder.features(read[END + 1 :])))
        optimizer.zero_grad()
        (score - score.mean() - wanted).square().mean().backward()
        optimizer.step()
    with torch.no_grad():
        encoder.parts(model.embedding.weight)[0].copy_(read)


def recipe(task: Task) -> Recipe:
    return Recipe(
        architecture=planted(alignment=task.alignment),
        settings=quick_settings(task.seed, epochs=4),
        prepare=_prepare,
        objective=_objective,
        finish=_once_more,
        contribution=by_construction,
    )


KINDS = (
    Kind(
        name="taught_evidence",
        truth="faithful",
        words="attention taught to be in proportion to the evidence that the model uses",
        recipe=recipe,
        half="held_out",
    ),
)
