"""Faithful models that encode each token alone and pool the hidden states with sparsemax.

A token with an attention weight of zero therefore has no effect on the output.
"""

from __future__ import annotations

import msgspec

from attnaudit.research.planted.construction import remove_biases, state_contributions
from attnaudit.research.planted.kind import SMALL, Kind, Recipe, TrainingInputs, quick_settings


def recipe(inputs: TrainingInputs) -> Recipe:
    """Return the recipe of an ordinary classifier without biases. The seed selects the encoder "mlp" or "average"."""
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
        mechanism="sparse attention",
        truth="faithful",
        description="tokens encoded one by one and pooled with sparsemax: a token without weight has no effect",
        recipe=recipe,
    ),
)
