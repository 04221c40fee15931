"""Texts made from real sentences: invented cue words, which decide the label, are inserted into movie reviews."""

from __future__ import annotations

import bisect
import itertools
import random
from dataclasses import dataclass

from attnaudit.data import planted_cue
from attnaudit.instances import Dataset, Instance
from attnaudit.models.vocabulary import words

#: Number of cue words of each class.
CUES_PER_CLASS = 6
#: Number of texts, unless a plan says otherwise.
ROWS = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class TextPlan:
    """How texts are made.

    Attributes:
        classes: Class names.
        shares: The share of texts of each class. None for equal shares.
        cues: Smallest and largest number of cue words of the text's class.
        length: Smallest and largest number of words, cue words included. None for the length of a real sentence. Most
            texts are short: lengths are drawn uniformly on a logarithmic scale.
        absence: The class whose texts have no cue word. None if every class has cue words.
        first: Whether the first word is a cue word of the text's class. If True, the other cue words are of random
            classes and come later in the text. If False, no cue word is first.
        inserted: Pairs of a word and a share. The word is inserted into this share of the texts, whatever their class.
        one_of: Words of which one is inserted into each text, whatever its class. None is inserted if there are none.
        marks: Words that replace the cue words of every class, such as formatting marks. Empty for invented words.
        partners: Whether a text also has as many *partner words* of its class as cue words. Partner words are other
            invented words, so a model can read cue words and partner words in different ways.
        rows: Number of texts.
    """

    classes: tuple[str, ...] = ("negative", "positive")
    shares: tuple[float, ...] | None = None
    cues: tuple[int, int] = (1, 1)
    length: tuple[int, int] | None = None
    absence: str | None = None
    first: bool = False
    inserted: tuple[tuple[str, float], ...] = ()
    one_of: tuple[str, ...] = ()
    marks: tuple[str, ...] = ()
    partners: bool = False
    rows: int = ROWS


def invented_words(sentences: Dataset) -> list[str]:
    """Return invented words that do not occur in the sentences."""
    known = {word for instance in sentences.instances for word in words(instance.text)}
    parts = planted_cue.words()
    return [word for role in sorted(parts) for word in parts[role] if word not in known]


def cue_words(plan: TextPlan, sentences: Dataset) -> dict[str, tuple[str, ...]]:
    """Return the cue words of each class. The class `absence` has none.

    Args:
        plan: How texts are made.
        sentences: The real sentences.
    """
    invented = invented_words(sentences)
    return {
        name: () if name == plan.absence else plan.marks or tuple(invented[index * CUES_PER_CLASS :][:CUES_PER_CLASS])
        for index, name in enumerate(plan.classes)
    }


def partner_words(plan: TextPlan, sentences: Dataset) -> dict[str, tuple[str, ...]]:
    """Return the partner words of each class. They are no cue words of any class. Without partners, there are none.

    The arguments are those of `cue_words`.
    """
    invented = invented_words(sentences)[len(plan.classes) * CUES_PER_CLASS :]
    return {
        name: tuple(invented[index * CUES_PER_CLASS :][:CUES_PER_CLASS]) if plan.partners else ()
        for index, name in enumerate(plan.classes)
    }


def made_texts(plan: TextPlan, sentences: Dataset, seed: int) -> Dataset:
    """Return texts with known cue words.

    Args:
        plan: How texts are made.
        sentences: The real sentences.
        seed: The seed of all random choices.
    """
    draw = random.Random(seed)
    cues, partners = cue_words(plan, sentences), partner_words(plan, sentences)
    shuffled = [words(instance.text) for instance in sentences.instances]
    draw.shuffle(shuffled)
    cumulated = list(itertools.accumulate(plan.shares or (1 / len(plan.classes),) * len(plan.classes)))
    instances = []
    for index in range(plan.rows):
        # The proportions of the classes are fixed, so that chance cannot leave out a rare class.
        position = (index * 0.6180339887498949 + 0.5 / plan.rows) % 1.0
        label = plan.classes[min(bisect.bisect_right(cumulated, position), len(plan.classes) - 1)]
        text = _text(plan, cues, partners[label], label, shuffled, index, draw)
        instances.append(
            Instance(id=f"made-{seed}-{index}", text=" ".join(text), label=label, where=f"made:{index + 1}")
        )
    return Dataset(
        name="made",
        source=f"{sentences.name} with inserted words",
        description="Movie reviews with inserted cue words, which decide the label.",
        instances=tuple(instances),
        classes=plan.classes,
        rows=plan.rows,
    )


def _text(
    plan: TextPlan,
    cues: dict[str, tuple[str, ...]],
    partners: tuple[str, ...],
    label: str,
    sentences: list[list[str]],
    index: int,
    draw: random.Random,
) -> list[str]:
    """Return the words of one text."""
    number = draw.randint(*plan.cues) if cues[label] else 0
    added = [draw.choice(cues[label]) for _ in range(number)]
    if plan.first:
        everywhere = [word for group in cues.values() for word in group]
        added = added[:1] + [draw.choice(everywhere) for _ in added[1:]]
    if partners:
        added += [draw.choice(partners) for _ in range(number)]
    added += [word for word, share in plan.inserted if draw.random() < share]
    if plan.one_of:
        added.append(draw.choice(plan.one_of))
    background = list(sentences[index % len(sentences)])
    if plan.length is not None:
        low, high = plan.length
        wanted = round(low * (high / low) ** draw.random()) - len(added)
        while len(background) < wanted:
            background += draw.choice(sentences)
        background = background[: max(wanted, 0)]
    text, rest = ([added[0]], added[1:]) if plan.first else (background[:1], added)
    background = background if plan.first else background[1:]
    for word in rest:
        background.insert(draw.randint(0, len(background)), word)
    return text + background
