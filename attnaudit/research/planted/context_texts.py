"""Real sentences of movie reviews with inserted cue words. The combination of the cue words decides the label.

Cue words that the sentences already contain are removed, and the rating of a sentence is ignored, so that nothing else
in a text is related to its label.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable
from functools import cache

from attnaudit.data import movie_reviews
from attnaudit.data.movie_reviews import Split
from attnaudit.errors import DataError, nearest
from attnaudit.instances import Dataset, Instance
from attnaudit.models.vocabulary import words

CLASSES = ("negative", "positive")
#: Role -> its words. The roles of praise and blame decide labels. Decoys look like them, but decide nothing.
ROLES: dict[str, tuple[str, ...]] = {
    "praise": ("good", "great", "funny", "clever", "moving", "fresh", "charming", "brilliant"),
    "blame": ("bad", "dull", "boring", "silly", "weak", "stale", "awful", "tedious"),
    "negator": ("not", "never", "hardly"),
    "intensifier": ("very", "truly", "quite"),
    "warm": ("red", "orange", "yellow", "golden"),
    "cold": ("blue", "green", "grey", "violet"),
    "large": ("huge", "tall", "vast", "giant"),
    "small": ("tiny", "little", "short", "minute"),
    "colour question": ("colour",),
    "size question": ("size",),
    "constant": ("xoverall",),
    "heading": ("assessment", "diagnosis", "upshot", "tldr"),
    "decoy": ("fine", "superb", "lovely", "poor", "bland", "lame"),
}
#: The two questions of the task "query" -> the roles that answer "positive" and "negative".
QUESTIONS = {"colour": ("warm", "cold"), "size": ("large", "small")}
_RESERVED = frozenset(word for role in ROLES.values() for word in role)
#: Part -> number of texts and seed.
_SIZES: dict[Split, tuple[int, int]] = {"train": (1500, 21), "dev": (200, 22), "test": (300, 23)}
#: The numbers of words to which sentences are shortened. They are few, so that many texts have the same length and can
#: exchange words.
_LENGTHS = (8, 12, 16)


def role_words(*roles: str) -> frozenset[str]:
    """Return the words of some roles, such as "praise" (see `ROLES`)."""
    return frozenset(word for role in roles for word in ROLES[role])


class _Writer:
    """Draws words and inserts them into one sentence.

    Args:
        draw: The random generator.
        sentence: The words of the sentence.

    Attributes:
        query: The query of the text. None for a task without queries.
    """

    def __init__(self, draw: random.Random, sentence: list[str]) -> None:
        self.draw, self.text = draw, sentence
        self.query: str | None = None

    def word(self, role: str) -> str:
        return self.draw.choice(ROLES[role])

    def insert(self, *inserted: str) -> None:
        """Insert words, one next to the other, at a random place, but not inside an earlier insertion."""
        places = [at for at in range(len(self.text) + 1) if not self._inside(at)]
        at = self.draw.choice(places)
        self.text[at:at] = inserted

    def append_after_last(self, word: str) -> None:
        """Insert a word at a random place after all earlier insertions."""
        earlier = [at for at, other in enumerate(self.text) if other in _RESERVED]
        self.text.insert(self.draw.randint(earlier[-1] + 1 if earlier else 0, len(self.text)), word)

    def _inside(self, at: int) -> bool:
        return 0 < at < len(self.text) and self.text[at - 1] in _RESERVED and self.text[at] in _RESERVED


def _single(writer: _Writer, label: int) -> None:
    writer.insert(writer.word("praise" if label else "blame"))
    writer.insert(writer.word("decoy"))


def _inner(writer: _Writer, label: int) -> None:
    """Insert a cue word that is not the last word."""
    at = writer.draw.randrange(len(writer.text))
    writer.text.insert(at, writer.word("praise" if label else "blame"))


def _negation(writer: _Writer, label: int) -> None:
    negated = writer.draw.random() < 0.5
    praise = bool(label) != negated
    writer.insert(writer.word("negator" if negated else "intensifier"), writer.word("praise" if praise else "blame"))
    writer.insert(writer.word("decoy"))


def _xor(writer: _Writer, label: int) -> None:
    """Insert a colour and a size, and append a word that decides nothing."""
    warm = writer.draw.random() < 0.5
    large = warm != bool(label)
    writer.insert(writer.word("warm" if warm else "cold"), writer.word("large" if large else "small"))
    writer.text.append(writer.word("decoy"))


def _redundant(writer: _Writer, label: int) -> None:
    """Insert three cue words that stand for the label. One of them would suffice."""
    for _ in range(3):
        writer.insert(writer.word("praise" if label else "blame"))


def _votes(writer: _Writer, label: int) -> None:
    """Insert five cue words that stand for the label, and a word that is the same in every text."""
    for _ in range(5):
        writer.insert(writer.word("praise" if label else "blame"))
    writer.insert(writer.word("constant"))


def _first_of_three(writer: _Writer, label: int) -> None:
    """Insert three cue words. The first one in the text stands for the label, and the other two for random classes."""
    for order in range(3):
        writer.append_after_last(writer.word("praise" if (writer.draw.randrange(2) if order else label) else "blame"))


def _early_first(writer: _Writer, label: int) -> None:
    """Insert three cue words that stand for the label: one before the fourth word, and two after it."""
    for _ in range(2):
        writer.text.insert(writer.draw.randint(4, len(writer.text)), writer.word("praise" if label else "blame"))
    writer.text.insert(writer.draw.randrange(3), writer.word("praise" if label else "blame"))


def _last_two_of_three(writer: _Writer, label: int) -> None:
    """Insert three cue words. The first one in the text stands for a random class, and the other two for the label."""
    for order in range(3):
        writer.append_after_last(writer.word("praise" if (label if order else writer.draw.randrange(2)) else "blame"))


def _last_word(writer: _Writer, label: int) -> None:
    """Insert a cue word for a random class and a decoy, and append a cue word for the label."""
    writer.insert(writer.word(writer.draw.choice(("praise", "blame"))))
    writer.insert(writer.word("decoy"))
    writer.text.append(writer.word("praise" if label else "blame"))


def _query(writer: _Writer, label: int) -> None:
    """Insert a colour and a size. The query says which of the two decides."""
    writer.query = writer.draw.choice(sorted(QUESTIONS))
    for question, (positive, negative) in QUESTIONS.items():
        answer = label if question == writer.query else writer.draw.randrange(2)
        writer.insert(writer.word(positive if answer else negative))
    writer.insert(writer.word("decoy"))


def _heading(writer: _Writer, label: int) -> None:
    """Insert a heading with a cue word for the label after it, and two cue words for random classes elsewhere."""
    writer.insert(writer.word("heading"), writer.word("praise" if label else "blame"))
    for _ in range(2):
        writer.insert(writer.word(writer.draw.choice(("praise", "blame"))))


#: Task -> inserts the cue words of a label, 0 or 1, into a sentence.
TASKS: dict[str, Callable[[_Writer, int], None]] = {
    "single": _single,
    "inner": _inner,
    "negation": _negation,
    "xor": _xor,
    "redundant": _redundant,
    "first-of-three": _first_of_three,
    "early-first": _early_first,
    "votes": _votes,
    "last-two-of-three": _last_two_of_three,
    "last-word": _last_word,
    "query": _query,
    "heading": _heading,
}


@cache
def _sentences(part: Split) -> tuple[list[str], ...]:
    """Return the sentences of a part of the movie reviews, without the cue words, cut to 8, 12 or 16 words."""
    found = []
    for instance in movie_reviews.split(part).instances:
        kept = [word for word in words(instance.text) if word not in _RESERVED]
        length = max((length for length in _LENGTHS if length <= len(kept)), default=0)
        if length:
            found.append(kept[:length])
    return tuple(found)


@cache
def texts(task: str, part: Split) -> Dataset:
    """Return one part of the texts of a task.

    Args:
        task: A name in `TASKS`.
        part: "train" (1,500 texts), "dev" (200) or "test" (300).

    Raises:
        DataError: There is no such task.
    """
    if task not in TASKS:
        raise DataError(f"Unknown task '{task}'. {nearest(task, TASKS)}")
    count, seed = _SIZES[part]
    draw = random.Random(seed + zlib.crc32(task.encode()))
    sentences = draw.sample(_sentences(part), min(count, len(_sentences(part))))
    instances = []
    for index, sentence in enumerate(sentences):
        label = index % 2
        writer = _Writer(draw, list(sentence))
        TASKS[task](writer, label)
        instances.append(
            Instance(
                id=f"{task}-{part}-{index}",
                text=" ".join(writer.text),
                label=CLASSES[label],
                query=writer.query,
                where=f"{task}-{part}:{index + 1}",
            )
        )
    return Dataset(
        name=f"reviews-{task}" + ("" if part == "test" else f"-{part}"),
        source="attnaudit.research.planted.context_texts (made from the movie reviews)",
        description=f"Sentences of movie reviews with inserted cue words. Task: {task}. Part: {part}.",
        instances=tuple(instances),
        classes=CLASSES,
        rows=len(instances),
    )
