"""Faithful models whose attention is proportional to a power of the evidence of each word.

The evidence comes from real texts, by naive Bayes or by logistic regression. It is spread over many words, and most of
them carry little evidence.
"""

from __future__ import annotations

from functools import partial

from attnaudit.research.planted.compiled_model import compiled_recipe
from attnaudit.research.planted.kind import Recipe, TrainingInputs, compiled_kind
from attnaudit.research.planted.word_material import attended, learned_material

_POWERS = {"evidence_to_half": 0.5, "evidence_to_one": 1.0, "evidence_squared": 2.0}


def recipe(inputs: TrainingInputs, *, power: float) -> Recipe:
    """Return the recipe of a model with attention proportional to |evidence| ** power."""
    return compiled_recipe(lambda: attended(learned_material(inputs), power=power))


KINDS = tuple(
    compiled_kind(
        name,
        "proportional attention",
        "faithful",
        f"attention in proportion to each word's evidence, raised to the power of {power:g}",
        partial(recipe, power=power),
        data=("movie-reviews", "synthetic"),
    )
    for name, power in _POWERS.items()
)
