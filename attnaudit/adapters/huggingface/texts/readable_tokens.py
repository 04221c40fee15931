"""Tokens as strings for reports, without the marks that tokenizers put on them."""

from __future__ import annotations

from typing import Any

from attnaudit.adapters.huggingface.texts.token_words import WORD_MARKS


class ReadableTokens(dict[int, str]):
    """Token id -> the token as a readable string. Each string is made when it is first asked for.

    Args:
        tokenizer: The tokenizer.
    """

    def __init__(self, tokenizer: Any) -> None:
        super().__init__()
        self._tokenizer = tokenizer

    def __missing__(self, number: int) -> str:
        token = str(self._tokenizer.convert_ids_to_tokens([number])[0])
        decoder = getattr(getattr(self._tokenizer, "backend_tokenizer", None), "decoder", None)
        text = token if decoder is None else decoder.decode([token])
        text = text.removeprefix("##").lstrip("".join(WORD_MARKS)).strip()
        # White space and parts of a letter have no readable form. The token itself is shown instead.
        self[number] = text if text and "\N{REPLACEMENT CHARACTER}" not in text else token
        return self[number]
