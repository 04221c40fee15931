"""Unfaithful: attention is taught to look at plausible words which the model does not use, while a bypass decides.

The plausible words go with a class as much as those that are used. This is the hard case: such attention looks right.
"""

from __future__ import annotations

import torch
from torch import Tensor

from attnaudit.models.planted_states import TEXT_EVIDENCE
from attnaudit.models.pooled_classifier import ForwardPass, PooledClassifier
from attnaudit.models.training_job import Objective
from attnaudit.models.vocabulary import Vocabulary
from attnaudit.research.planted.construction import by_construction, fix_decoder, planted, silence, spread
from attnaudit.research.planted.kinds import Kind, Recipe, Task, indicator, quick_settings


def recipe(task: Task) -> Recipe:
    def prepare(model: PooledClassifier, vocabulary: Vocabulary) -> None:
        fix_decoder(model, reads=(TEXT_EVIDENCE,))
        silence(model, text=indicator(vocabulary, task.decoys))

    def objective(vocabulary: Vocabulary) -> Objective:
        plausible = indicator(vocabulary, task.decoys)

        def of(_model: PooledClassifier, traced: ForwardPass, _targets: Tensor, loss: Tensor) -> Tensor:
            there = plausible[traced.ids] & traced.real
            mass = (traced.weights * there).sum(dim=1)[there.any(dim=1)]
            return loss - torch.log(mass.clamp(min=1e-6)).sum() / len(traced.ids) + spread(traced, traced.real & ~there)

        return of

    return Recipe(
        architecture=planted(alignment=task.alignment, label="everywhere"),
        settings=quick_settings(task.seed),
        prepare=prepare,
        objective=objective,
        contribution=by_construction,
    )


KINDS = (
    Kind(
        name="decoys",
        truth="unfaithful",
        words="attention taught to look at plausible but unused words, while a bypass decides",
        recipe=recipe,
        half="held_out",
        needs_share=True,
    ),
)
