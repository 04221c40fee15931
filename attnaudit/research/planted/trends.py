"""Reported as trends, never labelled: ordinary models whose attention nobody has planted."""

from __future__ import annotations

from functools import partial

import msgspec

from attnaudit.models.pooled_classifier import PooledClassifier
from attnaudit.models.training import train
from attnaudit.models.training_job import Objective, TrainingData, TrainingJob
from attnaudit.models.twin_adversary import twin_objective
from attnaudit.models.vocabulary import Vocabulary
from attnaudit.research.planted.kinds import SMALL, Kind, Recipe, Task, freeze, quick_settings

#: λ of the twin, small enough that it still learns what its base answers.
TWIN_WEIGHT = 0.02


def _plain(task: Task, **changes: object) -> Recipe:
    return Recipe(
        architecture=msgspec.structs.replace(SMALL, **{"encoder": "bilstm", "alignment": task.alignment, **changes}),
        settings=quick_settings(task.seed, epochs=3, batch_size=64, learning_rate=5e-3),
    )


def _tying(task: Task) -> Recipe:
    plain = _plain(task)
    return Recipe(architecture=plain.architecture, settings=msgspec.structs.replace(plain.settings, tying=1.0))


def _frozen_random(task: Task) -> Recipe:
    def prepare(model: PooledClassifier, _vocabulary: Vocabulary) -> None:
        freeze(model.attention)

    plain = _plain(task, encoder="average")
    return Recipe(architecture=plain.architecture, settings=plain.settings, prepare=prepare)


def _twin(task: Task) -> Recipe:
    plain = _plain(task)

    def objective(_vocabulary: Vocabulary) -> Objective:
        data = TrainingData(train=task.train, dev=task.dev)
        base = train(TrainingJob(data=data, architecture=plain.architecture, settings=plain.settings))
        return twin_objective(base.model, weight=TWIN_WEIGHT)

    return Recipe(
        architecture=plain.architecture,
        settings=msgspec.structs.replace(plain.settings, seed=task.seed + 1000),
        objective=objective,
    )


KINDS = (
    Kind(name="plain", truth="trend", words="an ordinary BiLSTM", recipe=_plain),
    Kind(name="tying", truth="trend", words="states tied to their embeddings (δ = 1)", recipe=_tying),
    Kind(
        name="residual",
        truth="trend",
        words="embedding added to the state",
        recipe=partial(_plain, states="residual"),
    ),
    Kind(
        name="concat",
        truth="trend",
        words="embedding beside the state",
        recipe=partial(_plain, states="concat"),
    ),
    Kind(
        name="uniform",
        truth="trend",
        words="every token has the same weight",
        recipe=partial(_plain, alignment="uniform"),
        alignments=("uniform",),
    ),
    Kind(
        name="frozen_random",
        truth="trend",
        words="attention left as drawn, over tokens encoded alone",
        recipe=_frozen_random,
    ),
    Kind(
        name="twin", truth="trend", words="trained to answer as a plain model does with other attention", recipe=_twin
    ),
)
