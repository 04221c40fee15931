"""Find the tokens of a text from which a Transformers model reads its logits.

Shapes: B rows, T tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from attnaudit.adapters.protocol import TEXT, Inputs
from attnaudit.errors import DataError

#: The tokens that the logits are read from. The logits depend on the states of these tokens after the last layer, and
#: on no other states of this layer. "" if the tokens are unknown.
ReadTokens = Literal["first", "last", "all", ""]


def read_positions(mask: Tensor, read_tokens: ReadTokens) -> Tensor:
    """Return the position of the token that the logits are read from.

    Args:
        mask: (B, T) mask of the stream that the logits are read from, True on tokens.
        read_tokens: The tokens that the logits are read from.

    Returns:
        (B,) position of the last token if `read_tokens` is "last", otherwise of the first token.
    """
    if read_tokens == "last":
        return mask.shape[1] - 1 - mask.flip(1).int().argmax(1)
    return mask.int().argmax(1)


def require_other_end(inputs: Inputs, pad_id: int, names: Sequence[str]) -> None:
    """Check that no text ends with the padding token.

    Args:
        inputs: B encoded texts.
        pad_id: The id of the padding token.
        names: (B,) names of the rows, for messages.

    Raises:
        DataError: A text ends with the padding token.
    """
    mask = inputs.mask[TEXT]
    rows = torch.arange(len(mask), device=mask.device)
    ends = (inputs.ids[TEXT][rows, read_positions(mask, "last")] == pad_id) & mask.any(1)
    for row in ends.nonzero()[:, 0].tolist():
        raise DataError(
            f"{names[row]}: the encoded text ends with {inputs.tokens[TEXT][row][-1]!r}, the padding token. The model "
            "reads its prediction from the last token that is not this one, even if it belongs to the text. Remove it "
            "from the end of the text, or set another padding token, both in the tokenizer and as pad_token_id in the "
            "model's config."
        )
