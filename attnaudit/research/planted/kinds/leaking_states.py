"""Unfaithful models of movie reviews whose contextual states carry the label to words that do not decide it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import msgspec
import torch

from attnaudit.data import sample
from attnaudit.models.vocabulary import END, Vocabulary
from attnaudit.research.planted.context_attention import (
    Plan,
    Targets,
    closest_to,
    encoder_for,
    first_of,
    held_to,
    last_token,
)
from attnaudit.research.planted.kind import SMALL, Kind, Recipe, TrainingInputs, quick_settings

#: The number of words that count as frequent. Almost every text contains one of them.
_FREQUENT = 20
#: The number of training texts.
_TEXTS = 4000


def frequent_words(vocabulary: Vocabulary) -> Targets:
    """Return a function that marks the tokens that are among the most frequent words.

    These words are articles, prepositions and punctuation marks.
    """
    ids = torch.arange(len(vocabulary))
    frequent = (ids > END) & (ids <= END + _FREQUENT)
    return lambda traced: frequent[traced.ids]


def recipe(inputs: TrainingInputs, *, plan: Plan, label: str, encoders: Sequence[str]) -> Recipe:
    """Return the recipe of a model of the movie reviews that is trained to follow a plan (see `context_attention`).

    Args:
        inputs: The inputs of training. The seed chooses the encoder.
        plan: The tokens on which attention should be.
        label: Which states may contain the label: "attended" or "everywhere".
        encoders: The encoders of the kind.
    """
    return Recipe(
        architecture=msgspec.structs.replace(
            SMALL, encoder=encoder_for(inputs.seed, encoders), alignment=inputs.alignment
        ),
        settings=quick_settings(inputs.seed, epochs=4, batch_size=64),
        objective=held_to(plan, label=label),
        selection_loss=closest_to(plan, label=label),
        train=sample(inputs.train, _TEXTS, inputs.seed),
    )


KINDS = (
    Kind(
        name="leaking_states",
        mechanism="leaking states",
        truth="unfaithful",
        description="attention on frequent words, while a contextual encoder carries the label into every state",
        recipe=partial(recipe, plan=first_of(frequent_words), label="everywhere", encoders=("bilstm", "transformer")),
        verified_by="context",
        data=("movie-reviews",),
    ),
    Kind(
        name="leaking_last_state",
        mechanism="leaking states",
        truth="unfaithful",
        description="attention on the last word, into whose state a contextual encoder carries the label",
        recipe=partial(recipe, plan=last_token, label="attended", encoders=("gru", "bilstm")),
        verified_by="context",
        fails=("points",),
        alignments=("additive",),
        data=("movie-reviews",),
    ),
)
