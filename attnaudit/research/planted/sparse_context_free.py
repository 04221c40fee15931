"""Faithful: tokens are encoded alone and pooled with sparsemax, so a token with weight zero has no effect."""

from __future__ import annotations

import msgspec

from attnaudit.research.planted.construction import remove_biases, state_contributions
from attnaudit.research.planted.kinds import SMALL, Kind, Recipe, TrainingInputs, quick_settings


def recipe(inputs: TrainingInputs) -> Recipe:
    """Return the recipe of an ordinary classifier without biases, with the encoder "mlp" or "average"."""
    return Recipe(
        architecture=msgspec.structs.replace(
            SMALL,
            encoder=("mlp", "average")[inputs.seed // 2 % 2],
            alignment=inputs.alignment,
            projection="sparsemax",
        ),
        settings=quick_settings(inputs.seed),
        prepare=lambda model, _vocabulary: remove_biases(model),
        contribution=state_contributions,
    )


KINDS = (
    Kind(
        name="sparse_context_free",
        truth="faithful",
        description="tokens encoded alone and pooled with sparsemax: a token without weight has no effect",
        recipe=recipe,
    ),
)
