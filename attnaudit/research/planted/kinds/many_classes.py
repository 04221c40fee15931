"""Models with 3, 5 and 20 classes."""

from __future__ import annotations

from functools import partial

from attnaudit.research.planted.compiled_model import compiled_recipe
from attnaudit.research.planted.kind import Recipe, TrainingInputs, compiled_kind
from attnaudit.research.planted.made_texts import TextPlan
from attnaudit.research.planted.word_material import attended, bypassed, cue_material

_NUMBERS = (3, 5, 20)


def recipe(inputs: TrainingInputs, *, numbers: tuple[int, ...], faithful: bool) -> Recipe:
    """Return the recipe of a model with several classes. Each text has cue words of its class.

    Args:
        inputs: The inputs of training. The seed selects one of `numbers`.
        numbers: Numbers of classes to choose from.
        faithful: Whether attention is on the cue words. If False, their evidence reaches the decoder through a bypass
            around attention.
    """
    number = numbers[inputs.seed % len(numbers)]
    plan = TextPlan(classes=tuple(f"class{index:02}" for index in range(number)), cues=(1, 1 + inputs.seed % 3))
    write = attended if faithful else bypassed
    return compiled_recipe(lambda: write(cue_material(inputs, plan)))


KINDS = (
    *(
        compiled_kind(
            f"classes_{number}",
            "many classes",
            "faithful",
            f"{number} classes, with attention on the words that decide",
            partial(recipe, numbers=(number,), faithful=True),
            half="held_out",
        )
        for number in _NUMBERS
    ),
    compiled_kind(
        "classes_bypass",
        "many classes",
        "unfaithful",
        "3, 5 or 20 classes, with a bypass that decides",
        partial(recipe, numbers=_NUMBERS, faithful=False),
        half="held_out",
    ),
)
