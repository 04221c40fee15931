"""Models that read texts with three cue words of the same class, one of which would suffice."""

from __future__ import annotations

from functools import partial

from attnaudit.research.planted.context_attention import first_of, recipe_in_context, words_of
from attnaudit.research.planted.kind import Kind

_CUES = words_of("praise", "blame")

KINDS = (
    Kind(
        name="all_redundant_cues",
        mechanism="redundant cues",
        truth="faithful",
        description="attention shared by three cues, each of which would suffice",
        recipe=partial(
            recipe_in_context,
            task="redundant",
            plan=_CUES,
            encoders=("mlp", "transformer", "bilstm", "cnn", "gru"),
            epochs=4,
        ),
        half="held_out",
        verified_by="context",
        data=("made",),
    ),
    Kind(
        name="first_redundant_cue",
        mechanism="redundant cues",
        truth="faithful",
        description="attention on the first of three cues, the only one that the model learned to use",
        recipe=partial(
            recipe_in_context,
            task="first-of-three",
            plan=first_of(_CUES),
            encoders=("bilstm", "gru"),
            test="early-first",
            epochs=10,
        ),
        half="held_out",
        verified_by="context",
        data=("made",),
    ),
    Kind(
        name="unused_redundant_cue",
        mechanism="redundant cues",
        truth="unfaithful",
        description="attention on the first of three cues, although the model learned to use only the other two",
        recipe=partial(
            recipe_in_context,
            task="last-two-of-three",
            plan=first_of(_CUES),
            label="everywhere",
            encoders=("bilstm",),
            test="redundant",
            epochs=12,
        ),
        half="held_out",
        alignments=("additive",),
        verified_by="context",
        data=("made",),
    ),
)
