"""Find the tokens of a text from which a Transformers model reads its logits.

Shapes: B rows, T tokens.
"""

from __future__ import annotations

from typing import Literal

from torch import Tensor

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
