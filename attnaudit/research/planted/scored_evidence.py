"""Faithful: attention multiplied by evidence that grows with the same score, so both rank tokens alike."""

from __future__ import annotations

from attnaudit.models.planted_states import OWN
from attnaudit.models.pooled_classifier import PooledClassifier
from attnaudit.models.vocabulary import Vocabulary
from attnaudit.research.planted.construction import by_construction, fix_decoder, loud, planted, silence
from attnaudit.research.planted.kinds import Kind, Recipe, Task, quick_settings


def _prepare(model: PooledClassifier, vocabulary: Vocabulary) -> None:
    fix_decoder(model, reads=(OWN,))
    silence(model)
    loud(model, 5.0)


def recipe(task: Task) -> Recipe:
    return Recipe(
        architecture=planted(alignment=task.alignment, evidence="scored"),
        settings=quick_settings(task.seed),
        prepare=_prepare,
        contribution=by_construction,
    )


KINDS = (
    Kind(
        name="attention_times_evidence",
        truth="faithful",
        words="evidence grows with the attention score, so their product ranks as attention does",
        recipe=recipe,
    ),
)
