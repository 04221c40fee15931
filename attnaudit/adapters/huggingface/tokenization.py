"""From instances to ids: special tokens, words, token types and truncation, as a model's own tokenizer has them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from attnaudit.errors import DataError, ModelError
from attnaudit.instances import Instance

#: A tokenizer that says more than this has no limit of its own.
UNLIMITED = 10**6
#: What marks the first token of a word: byte-level BPE, and SentencePiece.
_STARTS = ("Ġ", "▁")
_PLACES = re.compile(r"\{(text|query)\}")


@dataclass(frozen=True, slots=True)
class Row:
    """One encoded instance, one entry per token. words: number of the word a token is part of, -1 on special tokens.
    types: which of two texts a token is of, empty where the tokenizer does not say. truncated: tokens were cut off."""

    ids: list[int]
    special: list[bool]
    tokens: list[str]
    words: list[int]
    types: list[int]
    truncated: bool


class Reader:
    """Encodes texts with a Transformers tokenizer.

    limit: most tokens that the model takes, special ones included; longer texts are cut. template: None encodes a text,
    or a text and a query as a pair, as the tokenizer does; otherwise the text (and query) in their places in it, and
    only tokens of the text are not special.
    """

    def __init__(self, tokenizer: Any, *, limit: int | None, template: str | None = None) -> None:
        self.tokenizer = tokenizer
        self.limit = limit
        self.template = template
        self.fast = bool(getattr(tokenizer, "is_fast", False))
        if template is not None and not self.fast:
            raise ModelError(
                f"template: {type(tokenizer).__name__} does not say which characters a token stands for, so the tokens "
                "of the text cannot be told from those of the template. Give a fast tokenizer (one with a "
                "tokenizer.json)."
            )
        self._words_by_space = not self._knows_words()

    @property
    def takes_query(self) -> bool:
        """Whether an instance's query has a place."""
        return self.template is None or "{query}" in self.template

    def _knows_words(self) -> bool:
        """Whether the tokenizer splits a text into words at all before it splits words into tokens."""
        if not self.fast:
            return False
        found = self.tokenizer("of the end", add_special_tokens=False).word_ids()
        return len({w for w in found if w is not None}) == 3

    def encode(self, instances: Sequence[Instance]) -> list[Row]:
        """One row per instance. Raises DataError for an instance that the model has no place for."""
        if self.template is None:
            return [self._encode(one) for one in instances]
        return [self._fill(one, self.template) for one in instances]

    def _encode(self, one: Instance) -> Row:
        texts = [one.text] if one.query is None else [one.text, one.query]
        whole = self._call(texts)
        cut = self.limit is not None and len(whole["input_ids"]) > self.limit
        if cut:
            try:
                whole = self._call(texts, truncation=True, max_length=self.limit)
            except Exception as error:
                raise DataError(
                    f"{one.where or one.id}: its two texts cannot be cut to {self.limit} tokens ({error}). Shorten "
                    "them."
                ) from error
        ids = list(whole["input_ids"])
        special = self._special(whole)
        return Row(
            ids=ids,
            special=special,
            tokens=self.readable(ids),
            words=self._words(whole, ids, special, texts),
            types=list(whole.get("token_type_ids", [])),
            truncated=cut,
        )

    def _special(self, encoded: Any) -> list[bool]:
        """Tokens that the tokenizer has added, and those of the same names that the text itself spells out."""
        roles = ("cls", "sep", "pad", "bos", "eos")
        marks = {getattr(self.tokenizer, f"{role}_token_id", None) for role in roles}
        marks -= {None, getattr(self.tokenizer, "unk_token_id", None)}
        return [
            bool(s) or i in marks for s, i in zip(encoded["special_tokens_mask"], encoded["input_ids"], strict=True)
        ]

    def _call(self, texts: Sequence[str], **settings: Any) -> Any:
        return self.tokenizer(
            *texts,
            return_special_tokens_mask=True,
            return_offsets_mapping=self.fast,
            return_attention_mask=False,
            verbose=False,
            **settings,
        )

    def _fill(self, one: Instance, template: str) -> Row:
        """The template with the text in its place; where that is too long, the text's last tokens are left out."""
        whole, start, end = "", 0, 0
        given = {"text": one.text, "query": one.query or ""}
        position = 0
        for found in _PLACES.finditer(template):
            whole += template[position : found.start()]
            if found.group(1) == "text":
                start, end = len(whole), len(whole) + len(one.text)
            whole += given[found.group(1)]
            position = found.end()
        whole += template[position:]
        encoded = self._call([whole])
        ids = list(encoded["input_ids"])
        added = self._special(encoded)
        special = []
        for (a, b), extra in zip(encoded["offset_mapping"], added, strict=True):
            inside = whole[max(a, start) : min(b, end)] if max(a, start) < min(b, end) else ""
            # A token that stands for a space alone belongs to the text too when the text holds the space.
            special.append(extra or not inside or (not inside.strip() and bool(whole[a:b].strip())))
        words = self._words(encoded, ids, special, [whole])
        keep = list(range(len(ids)))
        over = len(ids) - self.limit if self.limit is not None else 0
        if over > 0:
            real = [p for p, s in enumerate(special) if not s]
            if over >= len(real):
                raise DataError(
                    f"{one.where or one.id}: the template alone is {len(ids) - len(real)} tokens long, and the model "
                    f"takes {self.limit}. Shorten the template or the query."
                )
            gone = set(real[-over:])
            keep = [p for p in keep if p not in gone]
        types = list(encoded.get("token_type_ids", []))
        return Row(
            ids=[ids[p] for p in keep],
            special=[special[p] for p in keep],
            tokens=self.readable([ids[p] for p in keep]),
            words=[words[p] for p in keep],
            types=[types[p] for p in keep] if types else [],
            truncated=over > 0,
        )

    def _words(self, encoded: Any, ids: Sequence[int], special: Sequence[bool], texts: Sequence[str]) -> list[int]:
        """Number of the word of each token, counted through both texts."""
        names: list[tuple[int, int] | None]
        if self.fast and not self._words_by_space:
            which = encoded.sequence_ids()
            names = [
                None if word is None or text is None else (text, word)
                for text, word in zip(which, encoded.word_ids(), strict=True)
            ]
        elif self.fast:
            names = self._by_space(encoded, texts)
        else:
            names = self._by_mark(ids)
        numbers: dict[tuple[int, int], int] = {}
        found = []
        for name, extra in zip(names, special, strict=True):
            if extra or name is None:
                found.append(-1)
            else:
                found.append(numbers.setdefault(name, len(numbers)))
        return found

    @staticmethod
    def _by_space(encoded: Any, texts: Sequence[str]) -> list[tuple[int, int] | None]:
        """By the white space before a token in the text: for tokenizers that take the whole text as one word."""
        names: list[tuple[int, int] | None] = []
        word, before = 0, (-1, 0)
        for text, (start, end) in zip(encoded.sequence_ids(), encoded["offset_mapping"], strict=True):
            if text is None:
                names.append(None)
                continue
            given = texts[text]
            gap = given[before[1] : end] if before[0] == text else " "
            # White space anywhere before the token's own first letter begins a word.
            if gap[: len(gap) - len(gap.lstrip())] or given[start : start + 1].isspace():
                word += 1
            names.append((text, word))
            before = (text, max(end, before[1]))
        return names

    def _by_mark(self, ids: Sequence[int]) -> list[tuple[int, int] | None]:
        """By the marks in the tokens themselves: for tokenizers that give no offsets."""
        tokens = [str(t) for t in self.tokenizer.convert_ids_to_tokens(list(ids))]
        marked = any(t.startswith(_STARTS) for t in tokens)
        names: list[tuple[int, int] | None] = []
        word = 0
        for token in tokens:
            goes_on = not token.startswith(_STARTS) if marked else token.startswith("##")
            word += not goes_on
            names.append((0, word))
        return names

    def readable(self, ids: Sequence[int]) -> list[str]:
        """One string per id, without the marks that a tokenizer puts on them."""
        raw = [str(t) for t in self.tokenizer.convert_ids_to_tokens(list(ids))]
        decoder = getattr(getattr(self.tokenizer, "backend_tokenizer", None), "decoder", None)
        found = []
        for token in raw:
            text = token
            if decoder is not None:
                text = decoder.decode([token])
            text = text.removeprefix("##").lstrip("".join(_STARTS)).strip()
            # A token that is part of a letter, or white space, has no readable form of its own.
            found.append(text if text and "\N{REPLACEMENT CHARACTER}" not in text else token)
        return found


def longest(tokenizer: Any, config: Any, offset: int) -> int | None:
    """Most tokens that model and tokenizer take, special ones included; None where neither says. offset: position ids
    that the model keeps for itself."""
    limits = []
    own = getattr(tokenizer, "model_max_length", None)
    if isinstance(own, int) and 0 < own < UNLIMITED:
        limits.append(own)
    positions = getattr(config, "max_position_embeddings", None)
    if isinstance(positions, int) and positions > offset:
        limits.append(positions - offset)
    return min(limits, default=None)


def check_template(template: str) -> None:
    """Raises ModelError unless the template has one place for the text and at most one for the query."""
    places = _PLACES.findall(template)
    strange = re.findall(r"\{([^{}]*)\}", _PLACES.sub("", template))
    if places.count("text") != 1 or places.count("query") > 1 or strange:
        raise ModelError(
            f"template {template!r}: expected {{text}} once, {{query}} at most once and no other braces, as in "
            "'{text} It was'."
        )
