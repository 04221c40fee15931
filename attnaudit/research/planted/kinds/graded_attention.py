"""Models whose attention is right on a known share of the texts.

For a share between 0 and 1, the evidence of half of the words reaches the decoder through a bypass around attention. In
a text with a marker word, only the bypass counts, and attention is on words that the bypass does not use. In all other
texts, only evidence multiplied by attention counts.
"""

from __future__ import annotations

from functools import partial

import torch

from attnaudit.instances import Dataset
from attnaudit.models.architecture import PlantedTables
from attnaudit.models.vocabulary import words
from attnaudit.research.planted.compiled_model import WordTables, compiled_recipe, proportional_scores
from attnaudit.research.planted.kind import Exchange, Recipe, TrainingInputs, compiled_kind, indicator, truth_of_share
from attnaudit.research.planted.word_evidence import METHODS, evidence_of_words, random_numbers, vocabulary_of
from attnaudit.research.planted.word_material import UNATTENDED, learned_material

SHARES = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
#: Of the most frequent words, this many may become markers.
_FREQUENT = 60
#: Words with more evidence than this cannot be markers.
_NO_EVIDENCE = 0.3


def marker_words(data: Dataset, share: float, skip: int) -> frozenset[str]:
    """Return frequent words with little evidence. About the given share of the texts contains one of these words.

    Args:
        data: The texts.
        share: The share of texts.
        skip: How many of the most frequent words may not be markers, so that different seeds get different markers.
    """
    evidence = evidence_of_words(data, METHODS[0])
    entries = vocabulary_of(data).entries
    neutral = [
        word for word, value in zip(entries, evidence, strict=True) if word.isalnum() and abs(value) < _NO_EVIDENCE
    ]
    texts = [frozenset(words(instance.text)) for instance in data.instances]
    chosen: set[str] = set()
    marked = torch.zeros(len(texts), dtype=torch.bool)
    for word in neutral[skip : skip + _FREQUENT]:
        with_word = marked | torch.tensor([word in text for text in texts])
        if with_word.float().mean().item() <= share + 0.005:
            chosen.add(word)
            marked = with_word
    return frozenset(chosen)


def recipe(inputs: TrainingInputs, *, share: float) -> Recipe:
    """Return the recipe of a model whose attention is right on a share of the texts."""
    markers = frozenset[str]() if share in (0.0, 1.0) else marker_words(inputs.train, 1 - share, inputs.seed)

    def write() -> WordTables:
        material = learned_material(inputs)
        attended = random_numbers(material.vocabulary, inputs.seed, "half") < 0.5
        marker = indicator(material.vocabulary, markers)
        tables = material.tables(PlantedTables(bypass="sum" if share < 1 else "none", switched=0 < share < 1))
        read = material.evidence * (attended & ~marker).unsqueeze(1)
        tables.own = read if share > 0 else torch.zeros_like(read)
        tables.bypass = material.evidence * (~attended & ~marker).unsqueeze(1)
        tables.marker = marker.float()
        tables.score = proportional_scores(read, idle=0.02) - UNATTENDED * marker
        return tables

    graded = 0 < share < 1
    return compiled_recipe(write, exchange=Exchange(kept=markers), share=share if graded else None)


KINDS = tuple(
    compiled_kind(
        f"right_on_{share:.0%}".removesuffix("%"),
        "attention right on a share of the texts",
        truth_of_share(share),
        f"attention is right on {share:.0%} of the texts, and a bypass decides all others",
        partial(recipe, share=share),
        half="tuning",
        data=("movie-reviews", "synthetic"),
    )
    for share in SHARES
)
