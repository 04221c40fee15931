"""Trend models. Their attention is not planted, and whether it is faithful is unknown. They therefore get no label."""

from __future__ import annotations

from functools import partial

import msgspec

from attnaudit.models.pooled_classifier import PooledClassifier
from attnaudit.models.training import train
from attnaudit.models.training_job import Objective, TrainingData, TrainingJob
from attnaudit.models.twin_adversary import twin_objective
from attnaudit.models.vocabulary import Vocabulary
from attnaudit.research.planted.kind import SMALL, Kind, Recipe, TrainingInputs, freeze, quick_settings

#: λ in the objective of a twin: a model that is trained to give the outputs of a base model with different attention. λ
#: is so small that the twin still learns these outputs.
TWIN_WEIGHT = 0.02


def _plain(inputs: TrainingInputs, **changes: object) -> Recipe:
    return Recipe(
        architecture=msgspec.structs.replace(SMALL, **{"encoder": "bilstm", "alignment": inputs.alignment, **changes}),
        settings=quick_settings(inputs.seed, epochs=3, batch_size=64, learning_rate=5e-3),
    )


def _tying(inputs: TrainingInputs) -> Recipe:
    plain = _plain(inputs)
    return Recipe(architecture=plain.architecture, settings=msgspec.structs.replace(plain.settings, tying=1.0))


def _frozen_random(inputs: TrainingInputs) -> Recipe:
    def prepare(model: PooledClassifier, _vocabulary: Vocabulary) -> None:
        freeze(model.attention)

    plain = _plain(inputs, encoder="average")
    return Recipe(architecture=plain.architecture, settings=plain.settings, prepare=prepare)


def _twin(inputs: TrainingInputs) -> Recipe:
    plain = _plain(inputs)

    def objective(_vocabulary: Vocabulary) -> Objective:
        data = TrainingData(train=inputs.train, dev=inputs.dev)
        base = train(TrainingJob(data=data, architecture=plain.architecture, settings=plain.settings))
        return twin_objective(base.model, weight=TWIN_WEIGHT)

    return Recipe(
        architecture=plain.architecture,
        settings=msgspec.structs.replace(plain.settings, seed=inputs.seed + 1000),
        objective=objective,
    )


KINDS = (
    Kind(name="plain", mechanism="trend", truth="trend", description="an ordinary BiLSTM", recipe=_plain),
    Kind(
        name="tying",
        mechanism="trend",
        truth="trend",
        description="states tied to their embeddings (δ = 1)",
        recipe=_tying,
    ),
    Kind(
        name="residual",
        mechanism="trend",
        truth="trend",
        description="the embedding is added to the state",
        recipe=partial(_plain, states="residual"),
    ),
    Kind(
        name="concat",
        mechanism="trend",
        truth="trend",
        description="the embedding is concatenated to the state",
        recipe=partial(_plain, states="concat"),
    ),
    Kind(
        name="uniform",
        mechanism="trend",
        truth="trend",
        description="every token has the same weight",
        recipe=partial(_plain, alignment="uniform"),
        alignments=("uniform",),
    ),
    Kind(
        name="frozen_random",
        mechanism="trend",
        truth="trend",
        description="attention with random parameters, over tokens that are encoded separately",
        recipe=_frozen_random,
    ),
    Kind(
        name="twin",
        mechanism="trend",
        truth="trend",
        description="trained to give the same outputs as a plain model, but with different attention",
        recipe=_twin,
    ),
)
