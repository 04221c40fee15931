"""Models in which the last word decides, and the same words elsewhere in the text do not."""

from __future__ import annotations

from functools import partial

from attnaudit.research.planted.context_attention import last_token, recipe_in_context, words_of
from attnaudit.research.planted.kind import Kind

KINDS = (
    Kind(
        name="last_word_attended",
        mechanism="position shortcut",
        truth="faithful",
        description="attention on the last word, which decides alone",
        recipe=partial(
            recipe_in_context, task="last-word", plan=last_token, encoders=("cnn", "gru", "bilstm"), epochs=4
        ),
        half="held_out",
        verified_by="context",
        data=("made",),
    ),
    Kind(
        name="last_word_unattended",
        mechanism="position shortcut",
        truth="unfaithful",
        description="the last word decides, while attention is on a word that decides nothing",
        recipe=partial(
            recipe_in_context,
            task="last-word",
            plan=words_of("decoy"),
            label="everywhere",
            encoders=("bilstm",),
        ),
        half="held_out",
        verified_by="context",
        data=("made",),
    ),
)
