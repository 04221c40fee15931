"""Models that read a query, which says whether a colour or a size in the text decides."""

from __future__ import annotations

from functools import partial

from attnaudit.research.planted.context_attention import answer_to_query, recipe_in_context, words_of
from attnaudit.research.planted.kind import Kind

KINDS = (
    Kind(
        name="query_followed",
        mechanism="queries",
        truth="faithful",
        description="attention on the word that answers the query",
        recipe=partial(
            recipe_in_context,
            task="query",
            plan=answer_to_query,
            encoders=("gru", "mlp", "bilstm", "cnn", "transformer"),
        ),
        half="held_out",
        verified_by="context",
        data=("made",),
    ),
    Kind(
        name="query_ignored",
        mechanism="queries",
        truth="unfaithful",
        description="attention on a word that answers no query, while every state holds the answers",
        recipe=partial(
            recipe_in_context,
            task="query",
            plan=words_of("decoy"),
            label="everywhere",
            encoders=("transformer",),
            epochs=8,
        ),
        half="held_out",
        alignments=("additive",),
        verified_by="context",
        data=("made",),
    ),
    Kind(
        name="query_answered_elsewhere",
        mechanism="queries",
        truth="unfaithful",
        description="attention on a word that answers no query, while only the state of this word holds the answers",
        recipe=partial(recipe_in_context, task="query", plan=words_of("decoy"), encoders=("transformer",), epochs=10),
        half="held_out",
        verified_by="context",
        fails=("points",),
        alignments=("additive",),
        data=("made",),
    ),
)
