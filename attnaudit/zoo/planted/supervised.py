"""Faithful: attention is taught to be in proportion to the evidence that the model really uses."""

from __future__ import annotations

import torch
from torch import Tensor

from attnaudit.zoo.model import Pass, PooledClassifier
from attnaudit.zoo.planted.construction import by_construction, fix_decoder, planted, silence
from attnaudit.zoo.planted.kinds import Kind, Recipe, Task, quick_settings
from attnaudit.zoo.planted.states import OWN
from attnaudit.zoo.text import Vocabulary
from attnaudit.zoo.training import Objective

_WEIGHT = 3.0


def _prepare(model: PooledClassifier, vocabulary: Vocabulary) -> None:
    fix_decoder(model, reads=(OWN,))
    silence(model)


def _objective(_vocabulary: Vocabulary) -> Objective:
    def of(_model: PooledClassifier, traced: Pass, _targets: Tensor, loss: Tensor) -> Tensor:
        magnitude = traced.hidden[..., OWN].abs().detach() * traced.real
        wanted = magnitude / magnitude.sum(dim=1, keepdim=True).clamp(min=1e-9)
        taught = -(wanted * torch.log(traced.weights.clamp(min=1e-9))).sum(dim=1).mean()
        return loss + _WEIGHT * taught

    return of


def recipe(task: Task) -> Recipe:
    return Recipe(
        architecture=planted(alignment=task.alignment),
        settings=quick_settings(task.seed, epochs=6),
        prepare=_prepare,
        objective=_objective,
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
