"""The results of probing a Transformers model.

Shapes: B rows, T tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

#: Tokens whose last-layer states the logits depend on: the first token, the last token, all tokens, or "" if unknown.
ReadTokens = Literal["first", "last", "all", ""]


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Properties of a model, found by running it on synthetic tokens.

    Attributes:
        read_tokens: Which tokens the logits are read from; "" if unknown.
        pads_left: Whether batches must be padded on the left, because padding on the right changes the logits.
        left_padding: Whether the model gives the same logits with padding on the left.
        first_position: Position id of a row's first token under padding on the left.
        shares_prefixes: Whether a text with some tokens removed may reuse the keys and values that the whole text has
            before the first removed token.
    """

    read_tokens: ReadTokens
    pads_left: bool
    left_padding: bool
    first_position: int
    shares_prefixes: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayForms:
    """Which shortcuts of `replay` give the same logits as a full pass, for one site.

    Attributes:
        one_position: Running the last layer at the position that the logits are read from.
        from_layer: Running all positions from the site's layer on.
    """

    one_position: bool
    from_layer: bool


def read_positions(mask: Tensor, read_tokens: ReadTokens) -> Tensor:
    """Return the position (B,) of the last token if `read_tokens` is "last", otherwise of the first token.

    Args:
        mask: (B, T) mask of the stream that the logits are read from, True on tokens.
        read_tokens: Which tokens the logits are read from.
    """
    if read_tokens == "last":
        return mask.shape[1] - 1 - mask.flip(1).int().argmax(1)
    return mask.int().argmax(1)
