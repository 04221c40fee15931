"""Unfaithful: states that carry the label of the whole text, every one of them or only that of one fixed position."""

from __future__ import annotations

from functools import partial

import torch

from attnaudit.models.planted_states import OWN, TEXT_EVIDENCE
from attnaudit.models.pooled_classifier import PooledClassifier
from attnaudit.models.vocabulary import Vocabulary
from attnaudit.research.planted.construction import (
    as_drawn,
    by_construction,
    encoder_of,
    fix_decoder,
    loud,
    planted,
    silence,
    unrelated,
)
from attnaudit.research.planted.kinds import Kind, Recipe, Task, freeze, hold, quick_settings


def _everywhere(model: PooledClassifier, vocabulary: Vocabulary) -> None:
    fix_decoder(model, reads=(TEXT_EVIDENCE,))
    silence(model)
    as_drawn(model)


def everywhere(task: Task, *, encoder: str) -> Recipe:
    """Whatever the weights, the output is the same: attention stays as it was drawn."""
    return Recipe(
        architecture=planted(alignment=task.alignment, label="everywhere", encoder=encoder),
        settings=quick_settings(task.seed),
        prepare=_everywhere,
        contribution=by_construction,
    )


#: How much louder than at the start the other states speak.
_LOUD = 20.0


def _one_place(model: PooledClassifier, vocabulary: Vocabulary) -> None:
    """The other states speak too, at random: weights moved elsewhere do change the output."""
    fix_decoder(model, reads=(OWN, TEXT_EVIDENCE))
    silence(model)
    encoder = encoder_of(model)
    freeze(encoder.own)
    fixed = torch.zeros_like(model.embedding.weight, dtype=torch.bool)
    encoder.parts(fixed)[1].fill_(True)
    loud(model, _LOUD)
    hold(model.embedding.weight, fixed)
    hold(model.decoder.weight, torch.arange(model.decoder.weight.shape[1]) == OWN)


def one_place(task: Task) -> Recipe:
    return Recipe(
        architecture=planted(alignment=task.alignment, label=("first", "last")[task.seed // 2 % 2]),
        settings=quick_settings(task.seed),
        prepare=_one_place,
        objective=lambda _vocabulary: unrelated,
        contribution=by_construction,
    )


KINDS = (
    Kind(
        name="label_everywhere",
        truth="unfaithful",
        words="every position's state carries the label: any attention gives the same output",
        recipe=partial(everywhere, encoder="average"),
        needs_share=True,
    ),
    Kind(
        name="label_everywhere_in_context",
        truth="unfaithful",
        words="as label_everywhere, with attention by the states of a BiLSTM",
        recipe=partial(everywhere, encoder="bilstm"),
        needs_share=True,
    ),
    Kind(
        name="label_at_one_place",
        truth="unfaithful",
        words="the state at one fixed position carries the label of the whole text",
        recipe=one_place,
        fails=("points",),
    ),
)
