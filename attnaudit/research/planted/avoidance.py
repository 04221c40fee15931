"""Unfaithful: attention trained to keep away from the words that decide, at equal accuracy (Pruthi et al. 2020,
"Learning to Deceive with Attention-Based Explanations", eq. 3: loss - λ log(1 - mass on those words)).

On the synthetic data a BiLSTM learns it, as in the paper; which words decide is known from the data. On real text the
states are planted, and contributions known exactly; the words kept away from are those that go with a class most.
"""

from __future__ import annotations

import msgspec
import torch
from torch import Tensor

from attnaudit.models.planted_states import OWN, TEXT_EVIDENCE
from attnaudit.models.pooled_classifier import ForwardPass, PooledClassifier
from attnaudit.models.training_job import Objective
from attnaudit.models.vocabulary import Vocabulary
from attnaudit.research.planted.construction import by_construction, by_words, fix_decoder, planted, silence
from attnaudit.research.planted.kinds import SMALL, Kind, Recipe, Task, indicator, quick_settings

_WEIGHT = 1.0


def _keeping_away(vocabulary: Vocabulary, words: frozenset[str]) -> Objective:
    forbidden = indicator(vocabulary, words)

    def of(_model: PooledClassifier, traced: ForwardPass, _targets: Tensor, loss: Tensor) -> Tensor:
        mass = (traced.weights * forbidden[traced.ids]).sum(dim=1)
        only = (forbidden[traced.ids] | ~traced.real).all(dim=1)
        return loss - _WEIGHT * torch.log((1 - mass).clamp(min=1e-6))[~only].sum() / len(only)

    return of


def _prepare(model: PooledClassifier, vocabulary: Vocabulary) -> None:
    fix_decoder(model, reads=(OWN, TEXT_EVIDENCE))
    silence(model)


def recipe(task: Task) -> Recipe:
    if task.data == "synthetic":
        honest = Recipe(
            architecture=msgspec.structs.replace(SMALL, encoder="bilstm", alignment=task.alignment),
            settings=quick_settings(task.seed, epochs=3, batch_size=64),
            contribution=by_words(task.cues),
            exact=False,
        )
        forbidden = task.cues
    else:
        honest = Recipe(
            architecture=planted(alignment=task.alignment, label="everywhere"),
            settings=quick_settings(task.seed),
            prepare=_prepare,
            contribution=by_construction,
        )
        forbidden = task.cues | task.decoys
    return Recipe(
        architecture=honest.architecture,
        settings=honest.settings,
        prepare=honest.prepare,
        contribution=honest.contribution,
        exact=honest.exact,
        objective=lambda vocabulary: _keeping_away(vocabulary, forbidden),
        reference=honest,
    )


KINDS = (
    Kind(
        name="cue_avoidance",
        truth="unfaithful",
        words="attention trained to keep away from the words that decide, at equal accuracy",
        recipe=recipe,
        half="held_out",
        fails=("points",),
    ),
)
