"""Unfaithful models in which attention changes the confidence of a decision, but never the decision."""

from __future__ import annotations

from attnaudit.models.architecture import PlantedTables
from attnaudit.research.planted.compiled_model import WordTables, compiled_recipe, proportional_scores
from attnaudit.research.planted.kind import Recipe, TrainingInputs, compiled_kind
from attnaudit.research.planted.made_texts import TextPlan
from attnaudit.research.planted.word_evidence import LARGEST
from attnaudit.research.planted.word_material import UNATTENDED, cue_material

#: The largest part of the logit that attention can move, as a share of the bypass's part. The seed selects one.
SHARES = (0.3, 0.5, 0.4)


def recipe(inputs: TrainingInputs) -> Recipe:
    """Return the recipe of a model in which one cue word decides through a bypass.

    Attention weighs the sentiment of the other words, whose evidence is always smaller than that of the cue word.
    """

    def write() -> WordTables:
        material = cue_material(inputs, TextPlan(), noise=0.0)
        assert material.cues is not None
        tables = material.tables(PlantedTables(bypass="sum"))
        tables.own = material.plausible * (SHARES[inputs.seed % len(SHARES)] / LARGEST)
        tables.bypass = material.evidence.clone()
        tables.score = proportional_scores(material.plausible, idle=0.02) - UNATTENDED * material.cues
        return tables

    return compiled_recipe(write)


KINDS = (
    compiled_kind(
        "confidence_only",
        "confidence without decisions",
        "unfaithful",
        "attention to words with sentiment only changes the confidence, and a bypass decides",
        recipe,
        half="held_out",
    ),
)
