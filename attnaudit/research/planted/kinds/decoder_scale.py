"""Models with very large or very small logits. The scale of the logits says nothing about attention."""

from __future__ import annotations

import dataclasses
from functools import partial

from attnaudit.research.planted.compiled_model import compiled_recipe
from attnaudit.research.planted.kind import Recipe, TrainingInputs, compiled_kind
from attnaudit.research.planted.word_material import Material, attended, bypassed, learned_material

#: Factors of the logits. The seed selects one.
SHARP, FLAT = (20.0, 10.0, 6.0), (0.05, 0.1, 0.3)


def recipe(inputs: TrainingInputs, *, factors: tuple[float, ...], faithful: bool) -> Recipe:
    """Return the recipe of a model whose logits are multiplied by one of several factors, which the seed selects."""

    def scaled(material: Material) -> Material:
        return dataclasses.replace(material, scale=material.scale * factors[inputs.seed % len(factors)])

    if faithful:
        return compiled_recipe(lambda: attended(scaled(learned_material(inputs))))
    return compiled_recipe(lambda: bypassed(scaled(learned_material(inputs, halves=True))))


KINDS = tuple(
    compiled_kind(
        name,
        "decoder scale",
        truth,
        description,
        partial(recipe, factors=factors, faithful=truth == "faithful"),
        data=("movie-reviews", "synthetic"),
    )
    for name, truth, factors, description in (
        ("sharp_decoder", "faithful", SHARP, "attention on the words that decide, with very large logits"),
        ("flat_decoder", "faithful", FLAT, "attention on the words that decide, with very small logits"),
        ("sharp_bypass", "unfaithful", SHARP, "a bypass decides, with very large logits"),
        ("flat_bypass", "unfaithful", FLAT, "a bypass decides, with very small logits"),
    )
)
