"""Models whose attention is nearly uniform."""

from __future__ import annotations

import torch

from attnaudit.models.architecture import PlantedTables
from attnaudit.research.planted.compiled_model import WordTables, compiled_recipe
from attnaudit.research.planted.kind import Recipe, TrainingInputs, compiled_kind
from attnaudit.research.planted.made_texts import TextPlan
from attnaudit.research.planted.word_evidence import random_numbers
from attnaudit.research.planted.word_material import cue_material, learned_material

#: Weights differ at most by this factor from their geometric mean. The seed selects one of the factors.
RANGES = (3.0, 4.0, 2.5)
#: If the evidence of a word in the training set is at most the first number, its magnitude is the second number.
_NOTHING, _IDLE = 0.1, 0.05
#: The smallest accuracy. It is low, because random magnitudes make the model less accurate.
_ACCURACY = 0.55
#: The weight of a cue word in `level_over_bypass`, relative to the weight 1 of an average other word.
_CUE_WEIGHT = 0.3


def spread(inputs: TrainingInputs) -> Recipe:
    """Return the recipe of a model in which every word has evidence, and attention is proportional to its magnitude.

    The training set determines for which class a word is evidence. The magnitude of the evidence is random.
    """
    width = RANGES[inputs.seed // 2 % len(RANGES)]

    def write() -> WordTables:
        material = learned_material(inputs)
        tables = material.tables()
        magnitude = width ** (2 * random_numbers(material.vocabulary, inputs.seed, "magnitude") - 1)
        magnitude = torch.where(material.evidence.squeeze(1).abs() > _NOTHING, magnitude, _IDLE)
        tables.own = torch.sign(material.evidence) * magnitude.unsqueeze(1)
        tables.score = torch.log(magnitude)
        return tables

    return compiled_recipe(write, minimum_accuracy=_ACCURACY)


def level(inputs: TrainingInputs) -> Recipe:
    """Return the recipe of a model whose words have nearly equal weights, while a bypass decides.

    The words that decide have lower weights, so that most of the attention is on other words.
    """

    def write() -> WordTables:
        material = cue_material(inputs, TextPlan(cues=(1, 1)))
        tables = material.tables(PlantedTables(bypass="sum"))
        tables.own = 0.05 * material.plausible
        tables.bypass = material.evidence.clone()
        weight = 0.8 + 0.4 * random_numbers(material.vocabulary, inputs.seed, "weight")
        assert material.cues is not None
        tables.score = torch.log(torch.where(material.cues, torch.tensor(_CUE_WEIGHT), weight))
        return tables

    return compiled_recipe(write)


KINDS = (
    compiled_kind(
        "spread_evidence",
        "nearly uniform attention",
        "faithful",
        "every word carries evidence, and attention is nearly uniform, in proportion to the magnitude of the evidence",
        spread,
        data=("movie-reviews",),
    ),
    compiled_kind(
        "level_over_bypass",
        "nearly uniform attention",
        "unfaithful",
        "nearly equal weights on all words except those that decide, which take a bypass",
        level,
    ),
)
