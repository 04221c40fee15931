"""The results of a tokenizer: one text at a time, and all texts of a batch in flat arrays.

Shapes: B texts, N tokens of all texts together.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, chain, pairwise, repeat
from typing import Any, NamedTuple, TypeVar, overload

import numpy as np
from numpy.typing import DTypeLike, NDArray

from attnaudit.arrays import Integers

T = TypeVar("T")
#: An array (N,) of flags.
Flags = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class EncodedText:
    """One encoded instance, with one entry per token in every list.

    Attributes:
        ids: Token ids.
        special: True for special tokens, such as [CLS], for all tokens of a template outside the text, and for the
            tokens of an answer.
        tokens: The tokens as readable strings.
        words: Index of the word that each token belongs to; -1 for special tokens.
        types: Index of the text (0 or 1) that each token belongs to; empty if the tokenizer returns no token types.
        truncated: Whether the text was truncated.
        marks: Marks of the tokens of the target (see `target_marks`); all 0 if the row does not mark its target.
        candidates: True for the tokens that may be the target of a row without marks. For a tag, these are the first
            tokens of words. For a span, these are all tokens of the text. False for all tokens of other targets.
        passages: Index of the passage that each token belongs to, -1 for other tokens; empty if the model reads none.
    """

    ids: list[int]
    special: list[bool]
    tokens: list[str]
    words: list[int]
    types: list[int]
    truncated: bool
    marks: list[int]
    candidates: list[bool]
    passages: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedTexts(Sequence[EncodedText]):
    """The encoded instances of a batch. Each array has the entries of all texts, one text after the other.

    Attributes:
        counts: (B,) number of tokens of each text.
        ids: (N,) as in `EncodedText`, like the other arrays.
        special: (N,).
        tokens: The tokens of each text.
        words: (N,).
        types: (N,), with 0 for texts without token types; empty if no text has any.
        truncated: (B,).
        marks: (N,).
        candidates: (N,).
        passages: (N,); empty if the model reads none.
    """

    counts: Integers
    ids: Integers
    special: Flags
    tokens: list[list[str]]
    words: Integers
    types: Integers
    truncated: Flags
    marks: Integers
    candidates: Flags
    passages: Integers = field(default_factory=lambda: np.zeros(0, dtype=np.int64))

    @classmethod
    def joined(cls, texts: Sequence[EncodedText]) -> EncodedTexts:
        """Join texts that were encoded one by one."""
        types = [text.types or [0] * len(text.ids) for text in texts] if any(text.types for text in texts) else []
        return cls(
            counts=np.array([len(text.ids) for text in texts], dtype=np.int64),
            ids=flat((text.ids for text in texts), np.int64),
            special=flat((text.special for text in texts), np.bool_),
            tokens=[text.tokens for text in texts],
            words=flat((text.words for text in texts), np.int64),
            types=flat(types, np.int64),
            truncated=np.array([text.truncated for text in texts], dtype=np.bool_),
            marks=flat((text.marks for text in texts), np.int64),
            candidates=flat((text.candidates for text in texts), np.bool_),
            passages=flat((text.passages for text in texts), np.int64),
        )

    def __len__(self) -> int:
        return len(self.counts)

    @overload
    def __getitem__(self, row: int) -> EncodedText: ...
    @overload
    def __getitem__(self, row: slice) -> list[EncodedText]: ...
    def __getitem__(self, row: int | slice) -> EncodedText | list[EncodedText]:
        if isinstance(row, slice):
            return [self[i] for i in range(*row.indices(len(self)))]
        if not -len(self) <= row < len(self):
            raise IndexError(f"text {row} of {len(self)}")
        stop = int(self.counts[: row % len(self) + 1].sum())
        part = slice(stop - int(self.counts[row]), stop)
        return EncodedText(
            ids=self.ids[part].tolist(),
            special=self.special[part].tolist(),
            tokens=self.tokens[row],
            words=self.words[part].tolist(),
            types=self.types[part].tolist(),
            truncated=bool(self.truncated[row]),
            marks=self.marks[part].tolist(),
            candidates=self.candidates[part].tolist(),
            passages=self.passages[part].tolist(),
        )


class TokenizedText(NamedTuple):
    """What a tokenizer returns for one text, or for a pair of texts, with one entry per token.

    Attributes:
        ids: Token ids.
        added: 1 for special tokens that the tokenizer adds, else 0.
        types: Token types; empty if the tokenizer returns none.
        words: Index of the word within its text; None for added tokens. Empty if the tokenizer does not report it.
        texts: Index of the text (0 or 1); None for added tokens. Empty if it was not requested.
        offsets: The position of the first character of each token in its text, and the position after its last
            character; empty if they were not requested.
    """

    ids: list[int]
    added: list[int]
    types: list[int]
    words: list[int | None]
    texts: list[int | None]
    offsets: list[tuple[int, int]]

    @classmethod
    def rows(cls, encoded: Any, *, texts: bool, batched: bool) -> Iterator[TokenizedText]:
        """Return the texts in the result of a call of a tokenizer.

        Args:
            encoded: The result.
            texts: Whether to ask for the index of the text of each token.
            batched: Whether the tokenizer was called with a list of texts, rather than with a single one.
        """
        encodings = getattr(encoded, "encodings", None) or ()  # Only fast tokenizers return encodings.

        def column(name: str) -> Iterable[list[Any]]:
            found = encoded.get(name)
            return repeat([]) if found is None else found if batched else [found]

        columns: tuple[Iterable[Any], ...] = (
            column("input_ids"),
            column("special_tokens_mask"),
            column("token_type_ids"),
            [one.word_ids for one in encodings] or repeat([]),
            [one.sequence_ids for one in encodings if texts] or repeat([]),
            column("offset_mapping"),
        )
        return map(cls._make, zip(*columns, strict=False))


def flat(rows: Iterable[Sequence[Any]], dtype: DTypeLike) -> NDArray[Any]:
    """Return an array (N,) of the entries of all rows, one row after the other."""
    return np.fromiter(chain.from_iterable(rows), dtype=dtype)


def split(entries: list[T], counts: Sequence[int]) -> list[list[T]]:
    """Split a list (N,) into rows with these numbers of entries."""
    return [entries[start:stop] for start, stop in pairwise(accumulate(counts, initial=0))]
