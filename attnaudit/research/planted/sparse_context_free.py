"""Faithful: tokens encoded alone and pooled with sparsemax. A weight of zero is no effect at all."""

from __future__ import annotations

import msgspec

from attnaudit.research.planted.construction import by_state, no_bias
from attnaudit.research.planted.kinds import SMALL, Kind, Recipe, Task, quick_settings


def recipe(task: Task) -> Recipe:
    return Recipe(
        architecture=msgspec.structs.replace(
            SMALL,
            encoder=("mlp", "average")[task.seed // 2 % 2],
            alignment=task.alignment,
            projection="sparsemax",
        ),
        settings=quick_settings(task.seed),
        prepare=lambda model, _vocabulary: no_bias(model),
        contribution=by_state,
    )


KINDS = (
    Kind(
        name="sparse_context_free",
        truth="faithful",
        words="tokens encoded alone, pooled with sparsemax: no weight, no effect",
        recipe=recipe,
    ),
)
