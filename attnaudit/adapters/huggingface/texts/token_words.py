"""Find the word that each token of a text belongs to.

Shapes: N tokens of all texts together.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from attnaudit.adapters.huggingface.texts.encoded_texts import Flags, TokenizedText, flat
from attnaudit.arrays import Floats, Integers

#: The characters that mark the first token of a word, in byte-level BPE and in SentencePiece.
WORD_MARKS = ("Ġ", "▁")
#: In other kinds of BPE, the ends of the last token of a word, and of every token that is not the last one.
LAST_MARK, INNER_MARK = "</w>", "@@"
#: A word: the index of its text (0 or 1), and its index in the text.
Word = tuple[int, int]


def numbered_words(texts: Sequence[TokenizedText], special: Flags) -> Integers:
    """Return the index of the word that each token belongs to; -1 for special tokens.

    Words are counted from 0 in the order in which they first occur. In a pair, the count continues in the second text.

    Args:
        texts: Results of a tokenizer that reports the words.
        special: (N,) True at special tokens.
    """
    row = np.repeat(np.arange(len(texts)), [len(text.ids) for text in texts])
    # Arrays of float64 turn None into NaN.
    words = flat((text.words for text in texts), np.float64)
    in_text = np.zeros(len(row))
    if any(text.texts for text in texts):
        in_text = flat((text.texts or [0] * len(text.ids) for text in texts), np.float64)
    keys = (row * 2 + in_text) * (words.max(initial=0, where=~np.isnan(words)) + 1) + words
    counted = ~special & ~np.isnan(keys)
    numbers = np.full(len(row), -1, dtype=np.int64)
    row, keys = row[counted], keys[counted]
    first, word = _distinct(keys)
    rank = np.empty(len(first), dtype=np.int64)
    order = first.argsort()
    rank[order] = np.arange(len(first))
    words_before = np.searchsorted(row[first[order]], np.arange(len(texts)))
    numbers[counted] = rank[word] - words_before[row]
    return numbers


def _distinct(keys: Floats) -> tuple[Integers, Integers]:
    """Return the index of the first entry of each distinct key, and the number of the key of each entry (N,).

    The keys are numbered in ascending order. Most tokenizers report words in the order of the text, so that the keys
    are sorted already.
    """
    if bool((keys[1:] >= keys[:-1]).all()):
        begins = np.ones(len(keys), dtype=np.bool_)
        begins[1:] = keys[1:] > keys[:-1]
        return np.flatnonzero(begins), begins.cumsum() - 1
    _, first, word = np.unique(keys, return_index=True, return_inverse=True)
    return first, word.reshape(-1)


def numbered(keys: Sequence[Word | None], special: Sequence[bool]) -> list[int]:
    """Return the same numbers as `numbered_words`, for the tokens of a single row.

    Args:
        keys: The word of each token; None for tokens that belong to no word.
        special: True at special tokens.
    """
    known: dict[Word, int] = {}
    return [
        -1 if key is None or is_special else known.setdefault(key, len(known))
        for key, is_special in zip(keys, special, strict=True)
    ]


def words_of(encoded: TokenizedText) -> list[Word | None]:
    """Return the word that the tokenizer reports for each token; None for tokens that belong to no word."""
    return [
        None if text is None or word is None else (text, word)
        for text, word in zip(encoded.texts, encoded.words, strict=True)
    ]


def words_by_space(encoded: TokenizedText, texts: Sequence[str]) -> list[Word | None]:
    """Find the word of each token from white space, for tokenizers that treat the whole text as one word.

    Returns:
        One word per token; None for tokens that belong to no text.
    """
    keys: list[Word | None] = []
    word, previous = 0, (-1, 0)
    for text, (start, end) in zip(encoded.texts, encoded.offsets, strict=True):
        if text is None:
            keys.append(None)
            continue
        characters = texts[text]
        gap = characters[previous[1] : end] if previous[0] == text else " "
        # White space anywhere before the token's first letter begins a new word.
        if gap[: len(gap) - len(gap.lstrip())] or characters[start : start + 1].isspace():
            word += 1
        keys.append((text, word))
        previous = (text, max(end, previous[1]))
    return keys


def words_by_mark(tokens: Sequence[str]) -> list[Word | None]:
    """Find the word of each token from marks such as "##", for tokenizers that do not report characters."""
    marks_starts = any(token.startswith(WORD_MARKS) for token in tokens)
    marks_ends = any(token.endswith(LAST_MARK) for token in tokens)
    keys: list[Word | None] = []
    word, previous = 0, ""
    for token in tokens:
        if marks_starts:
            continues = not token.startswith(WORD_MARKS)
        elif marks_ends:
            continues = bool(previous) and not previous.endswith(LAST_MARK)
        else:
            continues = token.startswith("##") or previous.endswith(INNER_MARK)
        word, previous = word + (not continues), token
        keys.append((0, word))
    return keys


def words_of_characters(tokens: Sequence[str]) -> list[Word | None]:
    """Find the word of each token from white space, for tokenizers whose tokens are characters or bytes."""
    keys: list[Word | None] = []
    word = 0
    for token in tokens:
        # Tokens of several characters are special. They separate the two texts of a pair.
        word += is_white_space(token) or len(token) > 1
        keys.append((0, word))
    return keys


def is_white_space(token: str) -> bool:
    """Return whether a token is white space. Outside of ASCII, it may be a byte of a letter such as "à"."""
    return token.isascii() and token.isspace()
