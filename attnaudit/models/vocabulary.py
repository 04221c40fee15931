"""Text to ids: a word tokenizer and a vocabulary with special tokens around every text."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence

from attnaudit.adapters.pooled.pooled_adapter import Encoding
from attnaudit.instances import Instance

PAD, UNKNOWN, START, END = range(4)
#: The first entries of every vocabulary. No text tokenizes to one of them: "<" and ">" are tokens of their own.
RESERVED = ("<pad>", "<unk>", "<sos>", "<eos>")

_TOKEN = re.compile(r"[^\W_]+(?:['’][^\W_]+)*|[^\w\s]|_")


def words(text: str) -> list[str]:
    """Lower-cased words (with inner apostrophes: "doesn't") and single punctuation marks, in order."""
    return _TOKEN.findall(unicodedata.normalize("NFC", text).lower().replace("’", "'"))


def open_classes(classes: Sequence[str], one: Instance) -> list[bool]:
    """For each class, whether the text mentions it: the words of its name stand there one after another. All are open
    where it mentions none."""
    found = words(one.text)

    def mentioned(name: str) -> bool:
        wanted = words(name)
        return any(found[at : at + len(wanted)] == wanted for at in range(len(found) - len(wanted) + 1))

    flags = [mentioned(name) for name in classes]
    return flags if any(flags) else [True] * len(flags)


class Vocabulary:
    """Words and their ids. entries: RESERVED, then the words; the index is the id. Raises ValueError otherwise."""

    def __init__(self, entries: Sequence[str]) -> None:
        if tuple(entries[: len(RESERVED)]) != RESERVED:
            raise ValueError(f"the vocabulary starts with {list(entries[: len(RESERVED)])}, expected {list(RESERVED)}")
        self.entries = tuple(entries)
        self._ids = {word: index for index, word in enumerate(self.entries)}
        if len(self._ids) != len(self.entries):
            twice = next(word for word, count in Counter(self.entries).items() if count > 1)
            raise ValueError(f"the vocabulary holds {twice!r} twice")

    @classmethod
    def build(cls, texts: Iterable[str], *, min_count: int = 1, limit: int | None = None) -> Vocabulary:
        """The words seen at least `min_count` times, most frequent first (then by spelling), at most `limit`."""
        counts = Counter(word for text in texts for word in words(text))
        kept = sorted((w for w, count in counts.items() if count >= min_count), key=lambda w: (-counts[w], w))
        return cls([*RESERVED, *kept[:limit]])

    def __len__(self) -> int:
        return len(self.entries)

    def encode(self, text: str) -> Encoding:
        """Ids of START, the words and END. Tokens keep the spelling of unknown words; START and END are special."""
        found = words(text)
        ids = [START, *(self._ids.get(word, UNKNOWN) for word in found), END]
        tokens = [RESERVED[START], *found, RESERVED[END]]
        return Encoding(ids=ids, tokens=tokens, special=[True, *(False for _ in found), True])
