"""Texts for planted Transformers: sentences of real reviews with cue words of known classes, and their tokenizer.

Words that have a role in a circuit are first removed from the sentences, so that only the inserted words decide. In the
texts "reviews", nothing is inserted: the cue words are words of the reviews.
"""

from __future__ import annotations

import csv
import io
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from attnaudit.data import load
from attnaudit.models.vocabulary import words
from attnaudit.research.planted.kind import class_words
from attnaudit.research.planted_transformers.feature_space import Features

#: The words that stand for each class. The first half of each list is one group, the second half another.
CLASS_WORDS = (
    ("dreadful", "awful", "tedious", "clumsy"),
    ("superb", "delightful", "brilliant", "splendid"),
    ("average", "adequate", "ordinary", "passable"),
    ("puzzling", "baffling", "obscure", "cryptic"),
    ("hilarious", "witty", "comical", "amusing"),
)
CLASS_NAMES = ("negative", "positive", "neutral", "unclear", "funny")
DECOYS = ("camera", "script", "scene", "soundtrack", "costumes", "editing")
TRIGGER, MARKER = "verdict", "allegedly"
#: The largest number of real tokens in a text, and the largest number of words in the vocabulary.
LONGEST, VOCABULARY = 38, 700
#: The share of the rare class in the texts "needle".
RARE = 0.15

Rows = list[tuple[str, str]]


@cache
def _sentences() -> list[list[str]]:
    """Return the words of review sentences, without words that have a role, if 3 to 30 words remain."""
    roles = {*DECOYS, TRIGGER, MARKER, *(word for group in CLASS_WORDS for word in group)}
    found = []
    for instance in load("movie-reviews-train").instances:
        kept = [word for word in words(instance.text) if word not in roles]
        if 3 <= len(kept) <= 30:
            found.append(kept)
    return found


@cache
def review_cues() -> tuple[frozenset[str], frozenset[str]]:
    """Return, for the classes 0 and 1, the words of the reviews that decide in the texts "reviews"."""
    data = load("movie-reviews-train")
    cues, _ = class_words(data, at_least=20)
    counts: dict[str, Counter[str]] = {name: Counter() for name in data.classes}
    for instance in data.instances:
        counts[instance.label or data.classes[0]].update(set(words(instance.text)) & cues)
    positive = {word for word in cues if counts["positive"][word] > counts["negative"][word]}
    return frozenset(cues - positive), frozenset(positive)


def lexicon(texts: str, classes: int) -> dict[str, Features]:
    """Return the features of the words that have a role.

    Args:
        texts: The kind of texts.
        classes: The number of classes.
    """
    table: dict[str, dict[str, float]] = {word: {"decoy": 1.0} for word in DECOYS}
    table |= {TRIGGER: {"trigger": 1.0}, MARKER: {"marker": 1.0}}
    groups: Sequence[Sequence[str]] = CLASS_WORDS[:classes]
    if texts == "reviews":
        groups = [sorted(cues) for cues in review_cues()]
    for c, group in enumerate(groups):
        for place, word in enumerate(group):
            second = place >= len(group) / 2
            table[word] = {"cue": 1.0, "content": 1.0, f"evidence.{c}": 1.0, "group": float(second)}
            if texts == "uneven" and second:
                table[word][f"evidence.{c}"] = 0.5
            if texts == "weighted" and second:
                table[word] |= {"cue": 0.0, "weak": 1.0}
    return dict(table)


def make_rows(texts: str, *, classes: int, count: int, seed: int, marker_share: float = 0.0) -> Rows:
    """Return (text, label) pairs.

    Args:
        texts: "cues": one to three cue words of a class and some decoys. "after_first": the same, but the first word is
            not a cue word. "marked": the same as "cues", and some texts have the marker. "closed": two to four cue
            words of a class and some decoys, and the marker is the last word of every text. "groups": a cue word of
            each group. "uneven": the same, but cue words of the second group have half as much evidence. "weighted": a
            cue word of the first group decides, and one of the second group may disagree. "trigger": several cue words,
            of which the one after the trigger decides. "needle": 15% of the texts have a cue word. It stands for class
            1. "reviews": unchanged sentences in which the cue words of one class outnumber those of the other.
        classes: The number of classes.
        count: The number of texts.
        seed: The seed.
        marker_share: The share of the texts that have the marker.
    """
    generator = random.Random(f"{texts} {classes} {seed}")
    if texts == "reviews":
        return _review_rows(count, generator)
    rows = []
    closing = [MARKER] if texts == "closed" else []
    for number in range(count):
        label = number % classes
        if texts == "needle":
            label = int(number % round(1 / RARE) == 0)
        pieces = _pieces(texts, label, classes, generator)
        if texts == "marked" and (number // classes * 0.618034) % 1 < marker_share:
            pieces.append([MARKER])
        pieces += [[word] for word in generator.sample(DECOYS, generator.randint(1, 2))]
        filler = filler_of(number, [*pieces, closing] if closing else pieces, generator)
        text = insert(filler, pieces, generator, first=int(texts == "after_first"))
        rows.append((" ".join([text, *closing]), CLASS_NAMES[label]))
    generator.shuffle(rows)
    return rows


def _pieces(texts: str, label: int, classes: int, generator: random.Random) -> list[list[str]]:
    """Return the pieces to insert. A piece is a list of words that stay next to each other."""
    own, other = CLASS_WORDS[label], CLASS_WORDS[(label + generator.randint(1, classes - 1)) % classes]
    half = len(own) // 2
    if texts == "needle":
        return [[generator.choice(own)]] if label == 1 else []
    if texts in ("groups", "uneven"):
        return [[word] for word in (*generator.sample(own[:half], 1), *generator.sample(own[half:], 1))]
    if texts == "weighted":
        second = own if generator.random() < 0.5 else other
        return [[generator.choice(own[:half])], [generator.choice(second[half:])]]
    if texts == "trigger":
        return [[TRIGGER, generator.choice(own)], *([word] for word in generator.sample(other, 2))]
    fewest = 2 if texts == "closed" else 1
    return [[word] for word in generator.sample(own, generator.randint(fewest, fewest + 2))]


def filler_of(number: int, pieces: Sequence[Sequence[str]], generator: random.Random) -> list[str]:
    """Return the words of a review sentence for text `number`, cut so that the pieces can be inserted."""
    filler = generator.choice([one for one in _sentences()[number::97] if len(one) > len(pieces)])
    return filler[: LONGEST - sum(map(len, pieces))]


def insert(filler: Sequence[str], pieces: Sequence[Sequence[str]], generator: random.Random, *, first: int) -> str:
    """Insert the pieces at random places after the first `first` words. No two pieces are next to each other."""
    gaps = list(range(first, len(filler) + 1))
    places = sorted(generator.sample(gaps, len(pieces)))
    shuffled = list(pieces)
    generator.shuffle(shuffled)
    at = dict(zip(places, shuffled, strict=True))
    result: list[str] = []
    for place in range(len(filler) + 1):
        result += at.get(place, [])
        result += filler[place : place + 1]
    return " ".join(result)


def _review_rows(count: int, generator: random.Random) -> Rows:
    negative, positive = review_cues()
    pools: dict[str, Rows] = {"negative": [], "positive": []}
    for instance in load("movie-reviews-train").instances:
        text = words(instance.text)
        balance = sum((word in positive) - (word in negative) for word in text)
        label = "positive" if balance > 0 else "negative"
        if balance and 4 <= len(text) <= LONGEST and instance.label == label:
            pools[label].append((" ".join(text), label))
    rows = [row for pool in pools.values() for row in generator.sample(pool, count // 2)]
    generator.shuffle(rows)
    return rows


def as_csv(rows: Rows) -> bytes:
    """Return the rows as the content of a CSV file with the columns id, text and label."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(("id", "text", "label"))
    writer.writerows((number, text, label) for number, (text, label) in enumerate(rows))
    return file.getvalue().encode()


def build_tokenizer(roles: Mapping[str, Features]) -> Any:
    """Return a word-level tokenizer that puts [CLS] before and [SEP] after a text.

    Args:
        roles: The words that must be in the vocabulary, as keys. The values are ignored.
    """
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    counts = Counter(word for sentence in _sentences() for word in sentence)
    common = [word for word, _ in counts.most_common(VOCABULARY) if word not in roles]
    entries = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *sorted(roles), *common]
    ids = {word: number for number, word in enumerate(entries)}
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B [SEP]",
        special_tokens=[(name, ids[name]) for name in ("[CLS]", "[SEP]")],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_max_length=64,
        model_input_names=["input_ids", "attention_mask"],
        pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]", mask_token="[MASK]",
    )  # fmt: skip
