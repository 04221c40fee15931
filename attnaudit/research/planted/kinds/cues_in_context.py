"""Models with contextual states, and attention on a cue, on a word that decides nothing, or next to the cue."""

from __future__ import annotations

from functools import partial

from attnaudit.research.planted.context_attention import next_to, recipe_in_context, words_of
from attnaudit.research.planted.kind import Exchange, Kind

_CUES = words_of("praise", "blame")

KINDS = (
    Kind(
        name="cue_in_context",
        mechanism="one cue in context",
        truth="faithful",
        description="attention on the one word that decides, over contextual states",
        recipe=partial(
            recipe_in_context, task="single", plan=_CUES, encoders=("bilstm", "cnn", "transformer", "gru", "mlp")
        ),
        verified_by="context",
        data=("made",),
    ),
    Kind(
        name="decoy_in_context",
        mechanism="one cue in context",
        truth="unfaithful",
        description="attention on a word that decides nothing, while every state holds the label",
        recipe=partial(
            recipe_in_context,
            task="single",
            plan=words_of("decoy"),
            label="everywhere",
            encoders=("transformer", "bilstm"),
        ),
        verified_by="context",
        data=("made",),
    ),
    Kind(
        name="next_to_the_cue",
        mechanism="states of neighbours",
        truth="unfaithful",
        description="attention on the word after the cue, while the state of this word holds the label",
        recipe=partial(
            recipe_in_context,
            task="inner",
            plan=next_to(_CUES),
            encoders=("cnn", "gru", "bilstm"),
            # The donor's cue is rarely next to the token with attention, so its state cannot hold the donor's label.
            exchange=Exchange(rest_decides=False),
        ),
        verified_by="context",
        fails=("points",),
        data=("made",),
    ),
    Kind(
        name="collector_in_context",
        mechanism="collectors",
        truth="unfaithful",
        description="attention on a word that is the same in every text, whose state holds the label",
        recipe=partial(
            recipe_in_context, task="votes", plan=words_of("constant"), encoders=("bilstm", "transformer"), epochs=12
        ),
        verified_by="context",
        fails=("points",),
        data=("made",),
    ),
)
