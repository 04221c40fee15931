"""Models in which the word after a heading decides. Without the heading, this word would count no more than others."""

from __future__ import annotations

from functools import partial

from attnaudit.research.planted.context_attention import recipe_in_context, with_next, words_of
from attnaudit.research.planted.kind import Exchange, Kind

_HEADING = words_of("heading")

KINDS = (
    Kind(
        name="heading_and_word_attended",
        mechanism="headings",
        truth="faithful",
        description="the word after a heading decides, and attention is on the heading and on this word",
        recipe=partial(
            recipe_in_context,
            task="heading",
            plan=with_next(_HEADING),
            encoders=("bilstm", "cnn", "gru"),
            epochs=12,
        ),
        verified_by="context",
        data=("made",),
    ),
    Kind(
        name="heading_attended",
        mechanism="headings",
        truth="unfaithful",
        description="the word after a heading decides, and attention is on the heading, whose state holds this word",
        recipe=partial(
            recipe_in_context,
            task="heading",
            plan=_HEADING,
            encoders=("bilstm", "cnn", "gru"),
            epochs=12,
            # The donor's heading is at another place, so the words that are exchanged do not follow a heading.
            exchange=Exchange(rest_decides=False),
        ),
        verified_by="context",
        fails=("points",),
        data=("made",),
    ),
)
