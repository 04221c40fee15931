"""Checks of special tokens, of queries, and of the word numbers in `Inputs.words`."""

from __future__ import annotations

from dataclasses import replace

import torch

from attnaudit.adapters.protocol import TEXT
from attnaudit.conformance.contract import BrokenContractError, contract, gap
from attnaudit.conformance.sample_texts import Examples, paired
from attnaudit.records.unit_names import TOKENS_OF_TEXTS

#: The characters with which tokenisers mark a space before a word.
SPACES = "Ġ▁ "


@contract(quick=False)
def check_special_tokens(e: Examples) -> str:
    """Tokens that are not part of the text, such as [CLS], are flagged as special. Padding is not flagged."""
    mask, special = e.inputs.mask[TEXT], e.inputs.special[TEXT]
    if bool((special & ~mask).any()):
        raise BrokenContractError("special is True on padding. Flag only tokens such as [CLS], never padding.")
    if not bool(e.inputs.real().any(1).all()):
        raise BrokenContractError(
            "every token of a text is flagged as special. Flag only tokens that the tokeniser adds."
        )
    strings = e.inputs.tokens[TEXT]
    # The parts of a picture, a recording or a bag may have the same names in every input.
    named_by_place = (
        TEXT in e.inputs.boxes or TEXT in e.inputs.times or e.capabilities.unit_name != TOKENS_OF_TEXTS.unit
    )
    for place, verb in ((0, "begins"), (-1, "ends")):
        same = {row[place] for row in strings}
        texts = [f"{one.text} {one.query or ''}".casefold() for one in e.instances]
        positions = [row.nonzero()[place, 0] for row in mask]
        flagged = all(bool(special[b, position]) for b, position in enumerate(positions))
        if len(strings) > 2 and len(same) == 1 and not flagged and not named_by_place:
            (token,) = same
            bare = token.strip(SPACES).casefold()
            if not any(bare in text for text in texts):
                raise BrokenContractError(
                    f"every input {verb} with {token!r}, which is in none of the texts and is not flagged as special. "
                    "Flag the tokens that the tokeniser or a prompt adds: the model reads special tokens, but the "
                    "audit leaves them out of its statistics."
                )
    count = int(special.sum())
    return f"{count / len(strings):.2g} special tokens per text" if count else "no special tokens"


@contract("query", quick=False)
def check_query(e: Examples) -> str:
    """The model reads the query: the logits are finite, and a different query changes them."""
    pairs = paired(e.few.instances)
    texts = sorted({one.text for one in pairs})
    if len(texts) < 2:
        return "no two texts differ, so no query could be replaced"
    others = [replace(one, query=texts[one.query == texts[0]]) for one in pairs]
    logits = e.run(e.adapter.collate(pairs)).logits
    if not bool(logits.isfinite().all()):
        raise BrokenContractError(
            "the logits of inputs with a query are not finite. Look for a division by zero or a softmax without any "
            "allowed key."
        )
    if gap(logits, e.run(e.adapter.collate(others)).logits) == 0:
        raise BrokenContractError(
            "another query leaves the logits unchanged. Encode Instance.query in collate(), or declare query=False."
        )
    return "another query changes the logits"


@contract()
def check_words(e: Examples) -> str:
    """Word numbers do not decrease along a text. They are -1 on special tokens and padding, and nowhere else."""
    if not e.inputs.words:
        unit = e.capabilities.unit_name
        return "every token is a word" if unit == TOKENS_OF_TEXTS.unit else "every token is a unit"
    for stream, words in e.inputs.words.items():
        if stream not in e.inputs.ids or words.shape != e.inputs.ids[stream].shape or words.is_floating_point():
            raise BrokenContractError(
                f"Inputs.words of '{stream}' is {words.dtype} of shape {tuple(words.shape)}; expected integers, "
                "one per position of the stream's ids."
            )
        real = e.inputs.real(stream)
        if not torch.equal(words >= 0, real) or bool((words < -1).any()):
            raise BrokenContractError(
                f"Inputs.words of '{stream}' must be -1 on special tokens and padding, and nowhere else. Give every "
                "other token the number of its word, counted from 0."
            )
        for row, is_real in zip(words, real, strict=True):
            numbers = row[is_real]
            if bool((numbers.diff() < 0).any()):
                raise BrokenContractError(
                    f"word numbers of '{stream}' decrease along a text: {numbers.tolist()[:12]}. Number the words in "
                    "the order of the text; if the stream has a second text, continue the numbering there."
                )
    real = e.inputs.real()
    text_words = e.inputs.words.get(TEXT)
    if text_words is None:
        return "every token of the text is a word"
    count = sum(len(set(row[is_real].tolist())) for row, is_real in zip(text_words, real, strict=True))
    return f"{int(real.sum()) / max(1, count):.2f} tokens per word"
