"""Models of data with a rare class. Texts of this class contain a cue word, and all other texts contain none."""

from __future__ import annotations

from functools import partial

import torch

from attnaudit.research.planted.compiled_model import WordTables, compiled_recipe
from attnaudit.research.planted.kind import Exchange, Recipe, TrainingInputs, compiled_kind
from attnaudit.research.planted.made_texts import TextPlan
from attnaudit.research.planted.word_material import attended, bypassed, cue_material

#: The share of texts of the rare class. The seed selects one.
SHARES = (0.1, 0.3, 0.02, 0.2, 0.05, 0.15)
#: Subtracted from every logit, in units of its scale. A single attended cue word adds about twice as much, so that the
#: logit of its text is positive.
_HALF = 0.4


def recipe(inputs: TrainingInputs, *, faithful: bool) -> Recipe:
    """Return the recipe of a model that finds the texts of a rare class."""
    share = SHARES[inputs.seed % len(SHARES)]
    plan = TextPlan(classes=("ordinary", "rare"), shares=(1 - share, share), cues=(1, 2), absence="ordinary", rows=1200)

    def write() -> WordTables:
        material = cue_material(inputs, plan)
        tables = attended(material) if faithful else bypassed(material)
        tables.bias = torch.tensor([-_HALF * tables.scale])
        return tables

    return compiled_recipe(write, exchange=Exchange(absence="ordinary"))


KINDS = (
    compiled_kind(
        "needles",
        "needles",
        "faithful",
        "a rare class, with attention on the words that decide",
        partial(recipe, faithful=True),
        half="held_out",
    ),
    compiled_kind(
        "needles_bypass",
        "needles",
        "unfaithful",
        "a rare class, with a bypass that decides",
        partial(recipe, faithful=False),
        half="held_out",
    ),
)
