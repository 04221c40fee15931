"""Unfaithful models whose attention is trained to avoid the words that decide the label.

A model gets its label only if this training lowers the accuracy at most slightly. The loss is that of Pruthi et al.
2020 ("Learning to Deceive with Attention-Based Explanations", eq. 3): the usual loss minus λ log(1 - attention mass on
the words to avoid).

On the synthetic data, a BiLSTM is trained with this loss, as in the paper. The words that decide the label are known
from how the data are generated. On real text, the hidden states are planted, so that contributions are known exactly.
Attention is then trained to avoid the words that are correlated with either class.
"""

from __future__ import annotations

import msgspec
import torch
from torch import Tensor

from attnaudit.models.planted_states import OWN, TEXT_EVIDENCE
from attnaudit.models.pooled_classifier import ForwardPass, PooledClassifier
from attnaudit.models.training_job import Objective
from attnaudit.models.vocabulary import Vocabulary
from attnaudit.research.planted.construction import (
    fix_decoder,
    planted,
    planted_contributions,
    silence_evidence,
    word_contributions,
)
from attnaudit.research.planted.kind import SMALL, Kind, Recipe, TrainingInputs, indicator, quick_settings

#: λ in the loss.
_WEIGHT = 1.0


def _avoid(vocabulary: Vocabulary, words: frozenset[str]) -> Objective:
    forbidden = indicator(vocabulary, words)

    def objective(_model: PooledClassifier, traced: ForwardPass, _targets: Tensor, loss: Tensor) -> Tensor:
        mass = (traced.weights * forbidden[traced.ids]).sum(dim=1)
        all_forbidden = (forbidden[traced.ids] | ~traced.real).all(dim=1)
        kept_away = torch.log((1 - mass).clamp(min=1e-6))[~all_forbidden]
        return loss - _WEIGHT * kept_away.sum() / len(all_forbidden)

    return objective


def _prepare(model: PooledClassifier, vocabulary: Vocabulary) -> None:
    fix_decoder(model, reads=(OWN, TEXT_EVIDENCE))
    silence_evidence(model)


def recipe(inputs: TrainingInputs) -> Recipe:
    """Return the recipe of a model whose attention avoids the words that decide the label.

    Its reference is the same model trained with the usual loss.
    """
    if inputs.data == "synthetic":
        honest = Recipe(
            architecture=msgspec.structs.replace(SMALL, encoder="bilstm", alignment=inputs.alignment),
            settings=quick_settings(inputs.seed, epochs=3, batch_size=64),
            contribution=word_contributions(inputs.cues),
            exact=False,
        )
        forbidden = inputs.cues
    else:
        honest = Recipe(
            architecture=planted(alignment=inputs.alignment, label="everywhere"),
            settings=quick_settings(inputs.seed),
            prepare=_prepare,
            contribution=planted_contributions,
        )
        forbidden = inputs.cues | inputs.decoys
    return Recipe(
        architecture=honest.architecture,
        settings=honest.settings,
        prepare=honest.prepare,
        contribution=honest.contribution,
        exact=honest.exact,
        objective=lambda vocabulary: _avoid(vocabulary, forbidden),
        reference=honest,
    )


KINDS = (
    Kind(
        name="cue_avoidance",
        mechanism="avoidance",
        truth="unfaithful",
        description="attention trained to avoid the words that decide the label, at equal accuracy",
        recipe=recipe,
        half="held_out",
        fails=("points",),
    ),
)
