"""The tokenizer and the vocabulary of the reference models."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import repeat

from attnaudit.adapters.pooled.token_streams import Encoding
from attnaudit.instances import Instance

PAD, UNKNOWN, START, END = range(4)
#: The first entries of every vocabulary. They never occur as words, because "<" and ">" are always separate tokens.
RESERVED = ("<pad>", "<unk>", "<sos>", "<eos>")

_TOKEN = re.compile(r"[^\W_]+(?:['’][^\W_]+)*|[^\w\s]|_")


def words(text: str) -> list[str]:
    """Split a text into lower-case words and single punctuation marks. A word such as "doesn't" is not split."""
    return _TOKEN.findall(unicodedata.normalize("NFC", text).lower().replace("’", "'"))


def mentioned_classes(classes: Sequence[str], instance: Instance) -> list[bool]:
    """Return, for each class, whether a question about the text may be answered with this class.

    A class is a possible answer if the text mentions it, that is, if the words of its name occur in the text one after
    the other. If the text mentions no class, all classes are possible answers.
    """
    text_words = words(instance.text)

    def mentioned(name: str) -> bool:
        name_words = words(name)
        count = len(name_words)
        return any(text_words[start : start + count] == name_words for start in range(len(text_words) - count + 1))

    flags = [mentioned(name) for name in classes]
    return flags if any(flags) else [True] * len(flags)


class Vocabulary:
    """Words and their ids.

    Args:
        entries: `RESERVED`, followed by the words. The index of an entry is its id.

    Raises:
        ValueError: The entries do not begin with `RESERVED`, or they contain a word twice.
    """

    def __init__(self, entries: Sequence[str]) -> None:
        if tuple(entries[: len(RESERVED)]) != RESERVED:
            raise ValueError(f"the vocabulary starts with {list(entries[: len(RESERVED)])}, expected {list(RESERVED)}")
        self.entries = tuple(entries)
        self._ids = {word: index for index, word in enumerate(self.entries)}
        if len(self._ids) != len(self.entries):
            duplicate = next(word for word, count in Counter(self.entries).items() if count > 1)
            raise ValueError(f"the vocabulary contains {duplicate!r} twice")

    @classmethod
    def build(cls, texts: Iterable[str], *, min_count: int = 1, limit: int | None = None) -> Vocabulary:
        """Build the vocabulary of some texts.

        Words are sorted by frequency, most frequent first. Words with the same frequency are in alphabetical order.

        Args:
            texts: The texts whose words are counted.
            min_count: Smallest number of occurrences of a word that is kept.
            limit: Largest number of words that are kept; None for no limit.
        """
        counts = Counter(word for text in texts for word in words(text))
        frequent = sorted((w for w, count in counts.items() if count >= min_count), key=lambda w: (-counts[w], w))
        return cls([*RESERVED, *frequent[:limit]])

    def __len__(self) -> int:
        return len(self.entries)

    def encode(self, text: str) -> Encoding:
        """Tokenize a text and surround it with the special tokens START and END.

        Unknown words have the id UNKNOWN, but keep their spelling in `tokens`.
        """
        text_words = words(text)
        ids = [START, *map(self._ids.get, text_words, repeat(UNKNOWN)), END]
        tokens = [RESERVED[START], *text_words, RESERVED[END]]
        return Encoding(ids=ids, tokens=tokens, special=[True, *([False] * len(text_words)), True])
