"""Models in which two neighbouring words decide together: an adjective and its negation, or a colour and a size."""

from __future__ import annotations

from functools import partial

from attnaudit.research.planted.context_attention import last_token, recipe_in_context, words_of
from attnaudit.research.planted.kind import Kind

_NEGATION = words_of("praise", "blame", "negator", "intensifier")
_XOR = words_of("warm", "cold", "large", "small")

KINDS = (
    Kind(
        name="negation_attended",
        mechanism="negation",
        truth="faithful",
        description="attention on an adjective and on the word before it, which may negate it",
        recipe=partial(
            recipe_in_context, task="negation", plan=_NEGATION, encoders=("gru", "cnn", "bilstm", "transformer")
        ),
        half="held_out",
        verified_by="context",
        data=("made",),
    ),
    Kind(
        name="negation_unattended",
        mechanism="negation",
        truth="unfaithful",
        description="an adjective and the word before it decide, while attention is on another adjective",
        recipe=partial(
            recipe_in_context,
            task="negation",
            plan=words_of("decoy"),
            label="everywhere",
            encoders=("bilstm", "transformer"),
            epochs=8,
        ),
        half="held_out",
        verified_by="context",
        data=("made",),
    ),
    Kind(
        name="xor_attended",
        mechanism="exclusive or",
        truth="faithful",
        description="a colour word and a size word decide together (exclusive or), and attention is on both",
        recipe=partial(recipe_in_context, task="xor", plan=_XOR, encoders=("transformer", "gru", "cnn", "bilstm")),
        verified_by="context",
        data=("made",),
    ),
    Kind(
        name="xor_in_last_state",
        mechanism="exclusive or",
        truth="unfaithful",
        description="attention on the last word, whose state holds what two earlier words decide (exclusive or)",
        recipe=partial(recipe_in_context, task="xor", plan=last_token, encoders=("gru", "bilstm"), epochs=12),
        verified_by="context",
        fails=("points",),
        alignments=("additive",),
        data=("made",),
    ),
)
