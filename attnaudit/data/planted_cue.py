"""Synthetic sentences with known cue words: which words decide the label is part of the construction.

A sentence holds one to three *cue* words, most of them of its own class; the class of that majority is the label, but
for `NOISE` of the sentences, whose label is flipped. *Hint* words (nought to two) belong to the label's class only
seven times in ten: they look like evidence, and a good model needs none of them. The rest is *filler*, drawn from a
Zipf distribution alike for both classes. Everything is drawn from a seed of its own per part.
"""

from __future__ import annotations

import random
from functools import cache

from attnaudit.errors import DataError, nearest
from attnaudit.instances import Dataset, Instance

CLASSES = ("negative", "positive")
NOISE = 0.02
_HINTED = 0.7
_SIZES = {"train": (4000, 11), "dev": (800, 12), "test": (1200, 13)}
NAMES = {"train": "planted-cue-train", "dev": "planted-cue-dev", "test": "planted-cue"}
_CONSONANTS, _VOWELS = "bdfgklmnprstvz", "aeiou"


@cache
def words() -> dict[str, tuple[str, ...]]:
    """Made-up words by role: cue.negative, cue.positive, hint.negative, hint.positive (15 each), filler (300)."""
    draw = random.Random(7)
    made: dict[str, None] = {}
    while len(made) < 360:
        made["".join(draw.choice(_CONSONANTS) + draw.choice(_VOWELS) for _ in range(draw.randint(2, 3)))] = None
    known = tuple(made)
    return {
        "cue.negative": known[:15],
        "cue.positive": known[15:30],
        "hint.negative": known[30:45],
        "hint.positive": known[45:60],
        "filler": known[60:],
    }


def cues() -> frozenset[str]:
    """The words that decide the label."""
    return frozenset((*words()["cue.negative"], *words()["cue.positive"]))


def hints() -> frozenset[str]:
    """Words that go with the label but do not decide it."""
    return frozenset((*words()["hint.negative"], *words()["hint.positive"]))


def _sentence(draw: random.Random, label: str) -> str:
    other = CLASSES[1 - CLASSES.index(label)]
    count = draw.choice((1, 2, 3))
    chosen = [draw.choice(words()[f"cue.{label}"]) for _ in range(max(1, count - count // 3))]
    chosen += [draw.choice(words()[f"cue.{other}"]) for _ in range(count - len(chosen))]
    for _ in range(draw.choice((0, 1, 2))):
        chosen.append(draw.choice(words()[f"hint.{label if draw.random() < _HINTED else other}"]))
    filler = words()["filler"]
    weights = [1 / (rank + 2) for rank in range(len(filler))]
    chosen += draw.choices(filler, weights=weights, k=draw.randint(6, 16))
    draw.shuffle(chosen)
    return " ".join(chosen)


@cache
def split(name: str) -> Dataset:
    """One part: train (4,000), dev (800) or test (1,200). Raises DataError on any other name."""
    if name not in NAMES:
        raise DataError(f"planted-cue has no part '{name}'. {nearest(name, NAMES)}")
    rows, seed = _SIZES[name]
    draw = random.Random(seed)
    instances = []
    for index in range(rows):
        label = CLASSES[index % 2]
        text = _sentence(draw, label)
        if draw.random() < NOISE:
            label = CLASSES[1 - CLASSES.index(label)]
        instances.append(Instance(id=f"cue-{name}-{index}", text=text, label=label, where=f"{NAMES[name]}:{index + 1}"))
    return Dataset(
        name=NAMES[name],
        source="attnaudit.data.planted_cue (generated)",
        description=f"Made-up sentences whose cue words are known. Part: {name}.",
        instances=tuple(instances),
        classes=CLASSES,
        rows=rows,
    )


def planted_cue() -> Dataset:
    """The test part, which audits use."""
    return split("test")


def dev() -> Dataset:
    """The development part, on which models are selected."""
    return split("dev")


def train() -> Dataset:
    """The training part."""
    return split("train")
