"""Synthetic sentences whose label is decided by known words.

A sentence contains one to three *cue* words, most of which belong to one class. This class is the label. In a share
`NOISE` of the sentences, the label is then flipped. A sentence also contains up to two *hint* words. A hint word
belongs to the majority class of the cue words with a probability of only 0.7. Hint words look like evidence, but a good
model does not need them. All other words are *filler* words, which are drawn from the same Zipf-like distribution for
both classes. Each part (train, dev, test) has its own seed.
"""

from __future__ import annotations

import random
from functools import cache

from attnaudit.errors import DataError, nearest
from attnaudit.instances import Dataset, Instance

CLASSES = ("negative", "positive")
#: Share of the sentences whose label is flipped.
NOISE = 0.02
#: Probability that a hint word belongs to the majority class of the cue words.
_HINTED = 0.7
#: Name of a part -> its number of sentences and its seed.
_SIZES = {"train": (4000, 11), "dev": (800, 12), "test": (1200, 13)}
#: Name of a part -> name of the registered data set.
NAMES = {"train": "planted-cue-train", "dev": "planted-cue-dev", "test": "planted-cue"}
_CONSONANTS, _VOWELS = "bdfgklmnprstvz", "aeiou"


@cache
def words() -> dict[str, tuple[str, ...]]:
    """Return the synthetic words by role.

    The roles are "filler" (300 words), "cue.negative", "cue.positive", "hint.negative" and "hint.positive" (15 words
    each).
    """
    draw = random.Random(7)
    distinct: dict[str, None] = {}
    while len(distinct) < 360:
        distinct["".join(draw.choice(_CONSONANTS) + draw.choice(_VOWELS) for _ in range(draw.randint(2, 3)))] = None
    known = tuple(distinct)
    return {
        "cue.negative": known[:15],
        "cue.positive": known[15:30],
        "hint.negative": known[30:45],
        "hint.positive": known[45:60],
        "filler": known[60:],
    }


def cues() -> frozenset[str]:
    """Return the words that decide the label."""
    return frozenset((*words()["cue.negative"], *words()["cue.positive"]))


def hints() -> frozenset[str]:
    """Return the words that are correlated with the label but do not decide it."""
    return frozenset((*words()["hint.negative"], *words()["hint.positive"]))


def _sentence(draw: random.Random, label: str) -> str:
    """Generate a sentence in which most cue words belong to the class `label`."""
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
    """Generate one part of the data set.

    Args:
        name: "train" (4,000 sentences), "dev" (800) or "test" (1,200).

    Raises:
        DataError: There is no part with this name.
    """
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
        description=f"Synthetic sentences whose cue words are known. Part: {name}.",
        instances=tuple(instances),
        classes=CLASSES,
        rows=rows,
    )


def planted_cue() -> Dataset:
    """Return the test part of the data set. Audits use this part."""
    return split("test")


def dev() -> Dataset:
    """Return the development part of the data set. Models are selected on this part."""
    return split("dev")


def train() -> Dataset:
    """Return the training part of the data set."""
    return split("train")
