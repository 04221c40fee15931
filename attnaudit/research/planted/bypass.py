"""Unfaithful: a bypass decides. Attention and bypass read different words; the attended part is a twentieth at most.

The bypass is a column that every state carries, so that Σ α = 1 takes it past any attention, as a skip connection to
the decoder does: this is how such a model is wrapped with one pooled site and a linear decoder.
"""

from __future__ import annotations

import zlib

import torch

from attnaudit.models.planted_states import OWN, TEXT_EVIDENCE
from attnaudit.models.pooled_classifier import PooledClassifier
from attnaudit.models.vocabulary import Vocabulary
from attnaudit.research.planted.construction import by_construction, fix_decoder, planted, silence, unrelated
from attnaudit.research.planted.kinds import Kind, Recipe, Task, quick_settings


def recipe(task: Task) -> Recipe:
    def dealt(vocabulary: Vocabulary) -> torch.Tensor:
        """(V,) True on the quarter of the words that attention may learn from; the bypass has the others."""
        return torch.tensor([zlib.crc32(f"{task.seed} {word}".encode()) % 4 == 0 for word in vocabulary.entries])

    def prepare(model: PooledClassifier, vocabulary: Vocabulary) -> None:
        fix_decoder(model, reads=(OWN, TEXT_EVIDENCE))
        attended = dealt(vocabulary)
        silence(model, own=~attended, text=attended)

    def quiet(model: PooledClassifier) -> None:
        with torch.no_grad():
            model.decoder.weight[0, OWN] *= 0.1

    return Recipe(
        architecture=planted(alignment=task.alignment, label="everywhere"),
        settings=quick_settings(task.seed),
        prepare=prepare,
        objective=lambda _vocabulary: unrelated,
        finish=quiet,
        contribution=by_construction,
    )


KINDS = (
    Kind(
        name="bypass",
        truth="unfaithful",
        words="a bypass that attention does not weigh carries at least 95% of the logit's variance",
        recipe=recipe,
        needs_share=True,
    ),
)
