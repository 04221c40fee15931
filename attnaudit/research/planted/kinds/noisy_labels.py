"""Models of data in which three labels in ten are wrong. The models are uncertain, and often contradict the label."""

from __future__ import annotations

import dataclasses
import random
from functools import cache, partial

from attnaudit.instances import Dataset
from attnaudit.research.planted.compiled_model import WordTables, compiled_recipe
from attnaudit.research.planted.kind import Recipe, TrainingInputs, compiled_kind
from attnaudit.research.planted.word_material import attended, bypassed, learned_material

#: The share of labels that are flipped.
FLIPPED = 0.3
#: The smallest accuracy on the test texts, some of whose labels are flipped.
_ACCURACY = 0.53


@cache
def with_flipped_labels(data: Dataset, seed: int) -> Dataset:
    """Return a data set of two classes in which a random share of the labels is flipped."""
    draw = random.Random(seed)
    other = {name: data.classes[1 - index] for index, name in enumerate(data.classes)}
    instances = tuple(
        dataclasses.replace(instance, label=other[instance.label or ""]) if draw.random() < FLIPPED else instance
        for instance in data.instances
    )
    return dataclasses.replace(data, instances=instances)


def recipe(inputs: TrainingInputs, *, faithful: bool) -> Recipe:
    """Return the recipe of a model that is made from noisy labels and also measured on noisy labels."""
    noisy = dataclasses.replace(inputs, train=with_flipped_labels(inputs.train, inputs.seed))

    def write() -> WordTables:
        material = learned_material(noisy, halves=not faithful)
        material = dataclasses.replace(material, test=with_flipped_labels(inputs.texts, inputs.seed))
        return attended(material) if faithful else bypassed(material)

    return compiled_recipe(write, minimum_accuracy=_ACCURACY)


KINDS = (
    compiled_kind(
        "noisy_labels",
        "noisy labels",
        "faithful",
        "evidence learnt from data with 30% wrong labels, and attention in proportion to this evidence",
        partial(recipe, faithful=True),
        half="held_out",
        data=("movie-reviews", "synthetic"),
    ),
    compiled_kind(
        "noisy_labels_bypass",
        "noisy labels",
        "unfaithful",
        "evidence learnt from data with 30% wrong labels, and a bypass that decides",
        partial(recipe, faithful=False),
        half="held_out",
        data=("movie-reviews", "synthetic"),
    ),
)
