"""Faithful: every token's evidence is for or against with one magnitude, so only attention says how much it counts.

`unit_evidence` attends by the token alone, `unit_evidence_in_context` by a BiLSTM's state around it.
"""

from __future__ import annotations

from functools import partial

from attnaudit.models.planted_states import OWN
from attnaudit.models.pooled_classifier import PooledClassifier
from attnaudit.models.vocabulary import Vocabulary
from attnaudit.research.planted.construction import by_construction, fix_decoder, loud, planted, silence
from attnaudit.research.planted.kinds import Kind, Recipe, Task, quick_settings


def _prepare(model: PooledClassifier, vocabulary: Vocabulary) -> None:
    fix_decoder(model, reads=(OWN,))
    silence(model)
    loud(model, 5.0)


def recipe(task: Task, *, encoder: str) -> Recipe:
    return Recipe(
        architecture=planted(alignment=task.alignment, evidence="unit", encoder=encoder),
        settings=quick_settings(task.seed),
        prepare=_prepare,
        contribution=by_construction,
    )


KINDS = (
    Kind(
        name="unit_evidence",
        truth="faithful",
        words="evidence of one magnitude: attention alone says how much a token counts",
        recipe=partial(recipe, encoder="average"),
    ),
    Kind(
        name="unit_evidence_in_context",
        truth="faithful",
        words="evidence of one magnitude, attention by the states of a BiLSTM",
        recipe=partial(recipe, encoder="bilstm"),
    ),
)
