"""Attention calls whose weights are not stored. They are computed in blocks of queries whenever they are read.

Shapes: B rows, H heads, Q queries, R queries of a block, K keys, d features of a head.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from attnaudit.adapters.huggingface.attention.function_call import FunctionCall

#: If an attention score or an entry of a mask is at or below this value, the query may not attend to the key. All
#: architectures mask keys with values of -10,000 or lower.
FORBIDDEN = -9e3


def allowed_pairs(mask: Tensor | None, tokens: Tensor) -> Tensor:
    """Return the mask (B, 1 or H, Q, K) of the allowed keys.

    Args:
        mask: The additive or boolean mask that was passed to the attention function; None if it forbids nothing.
        tokens: (B, 1, Q, K) True where neither the query nor the key is padding.
    """
    if mask is None:
        return tokens
    mask = mask[..., : tokens.shape[-1]].to(tokens.device)
    permitted = mask if mask.dtype == torch.bool else mask > FORBIDDEN
    return permitted.expand(len(tokens), permitted.shape[1], *tokens.shape[2:]) & tokens


@dataclass(frozen=True, slots=True, eq=False)
class BlockwiseAttention:
    """A call of an attention function, for which the weights of any block of queries can be computed.

    Attributes:
        call: The call.
        queries: (B, Q) True on the tokens that attend.
        keys: (B, K) True on the tokens that are attended to.
    """

    call: FunctionCall
    queries: Tensor
    keys: Tensor

    def detached(self) -> BlockwiseAttention:
        """Return the same call without its autograd graph."""
        call = self.call
        mask = None if call.mask is None else call.mask.detach()
        rest = {name: v.detach() if isinstance(v, Tensor) else v for name, v in call.rest.items()}
        query, key, value = call.query.detach(), call.key.detach(), call.value.detach()
        return replace(self, call=replace(call, query=query, key=key, value=value, mask=mask, rest=rest))

    def rows(self, first: int, stop: int) -> tuple[Tensor, Tensor, Tensor]:
        """Compute the call for the queries from `first` to `stop` with the architecture's own function.

        Returns:
            (B, R, H, d) output; (B, H, R, K) weights, which are zero where `allowed` is False; and `allowed`
            (B, 1 or H, R, K), True where a query may attend to a key.
        """
        part, allowed = self._part(first, stop)
        output, weights = part.eager()
        weights = weights.to(allowed.device)
        if not bool(self.queries.all() & self.keys.all()):
            # For queries that are padding, the architectures' own code returns uniform weights over forbidden keys.
            weights = weights.masked_fill(~allowed, 0.0)
        return output, weights, allowed

    def allowed(self, first: int, stop: int) -> Tensor:
        """Return a mask (B, 1 or H, R, K), True where a query from `first` to `stop` may attend to a key."""
        return self._part(first, stop)[1]

    def _part(self, first: int, stop: int) -> tuple[FunctionCall, Tensor]:
        positions = torch.arange(first, min(stop, self.queries.shape[1]), device=self.queries.device)
        part = self.call.at(positions.expand(len(self.queries), -1))
        tokens = self.queries[:, None, positions, None] & self.keys[:, None, None, :]
        return part, allowed_pairs(part.mask, tokens)
