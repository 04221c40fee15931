"""Models with a position shortcut: the first word decides. Elsewhere in the text, the same words do not matter."""

from __future__ import annotations

from functools import partial

from attnaudit.models.architecture import PlantedTables
from attnaudit.research.planted.compiled_model import WordTables, compiled_recipe
from attnaudit.research.planted.kind import Recipe, TrainingInputs, compiled_kind
from attnaudit.research.planted.made_texts import TextPlan
from attnaudit.research.planted.word_material import attended, cue_material

#: The first word decides. One or two words of random classes follow.
PLAN = TextPlan(cues=(2, 3), first=True)
#: Added to the attention score of the first word in models whose attention is on this word.
_BONUS = 4.0


def recipe(inputs: TrainingInputs, *, faithful: bool) -> Recipe:
    """Return the recipe of a model in which the first word decides.

    In the faithful model, attention is on the first word. In the unfaithful model, the first word acts through a
    bypass. Attention is then on the same words elsewhere in the text, where they have little effect.
    """

    def write() -> WordTables:
        material = cue_material(inputs, PLAN, noise=0.01)
        tables = attended(material, idle=0.002)
        if faithful:
            tables.settings = PlantedTables(first_score=_BONUS + inputs.seed % 3)
        else:
            tables.settings = PlantedTables(bypass="first", first_score=-_BONUS)
            tables.bypass = material.evidence.clone()
            tables.own = 0.1 * tables.own
        return tables

    return compiled_recipe(write)


KINDS = (
    compiled_kind(
        "first_word_attended",
        "position",
        "faithful",
        "the first word decides, and attention is on it",
        partial(recipe, faithful=True),
        half="held_out",
    ),
    compiled_kind(
        "first_word_bypass",
        "position",
        "unfaithful",
        "the first word decides through a bypass, and attention is on later occurrences of the same words",
        partial(recipe, faithful=False),
        half="held_out",
    ),
)
