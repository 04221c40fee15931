"""Calls of an attention function in Transformers, and two ways to compute their result.

The eager function of an architecture computes and stores the weights of all pairs of tokens. PyTorch's fused kernel
computes the output faster, and stores no weights. It ignores what some architectures add, such as attention sinks or
caps on the scores. It is therefore used only for models in which `FusedComparison` finds no difference.

The eager function can also be called for a few queries only. Its weights then need no memory for the other queries.

Shapes: B rows, Q queries, R selected queries, K keys, H heads, G groups of heads that share their keys and values, d
features of a head.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from attnaudit.adapters.huggingface.attention.weighted_values import output_factor, scales_output
from attnaudit.adapters.huggingface.half_precision import HALF_TYPES, widened

#: The attention function of an architecture. It is called with (module, query, key, value, mask, ...), and returns the
#: output (B, Q, H, d) and the weights (B, H, Q, K).
EagerAttention = Callable[..., tuple[Tensor, Tensor]]
#: The attention functions that scale the output after the softmax, as attention sinks in GraniteSWA do. `learn` finds
#: them. The weights that they return are multiplied by the factor, because the output is computed with these weights.
_scaling: set[EagerAttention] = set()
#: In the pass that the current thread or task is running: an attention module, and the positions (B,) of its only
#: queries whose outputs are used. None if the outputs of all queries are used.
_used_queries: ContextVar[tuple[nn.Module, Tensor] | None] = ContextVar("attnaudit_used_queries", default=None)


@contextmanager
def only_query_used(module: nn.Module, positions: Tensor) -> Iterator[None]:
    """Inside the context, `fused_attention` computes only one query of each row in the calls of an attention module.

    Args:
        module: The attention module.
        positions: (B,) positions of the queries. The outputs of all other queries are NaN.
    """
    token = _used_queries.set((module, positions))
    try:
        yield
    finally:
        _used_queries.reset(token)


@dataclass(frozen=True, slots=True, eq=False)
class FunctionCall:
    """A call of an attention function, with the arguments that Transformers passes to it.

    Attributes:
        function: The architecture's own attention function.
        module: The attention module that makes the call.
        query: (B, H, Q, d) queries.
        key: (B, G, K, d) keys.
        value: (B, G, K, d) values.
        mask: The attention mask; None if it forbids nothing.
        rest: The other arguments, by name.
        causal: True if `mask` is None and no query may attend to a later key. A causal mask is left out if the
            observer skips masks and the batch has no padding (see `Observer.skips_masks`).
    """

    function: EagerAttention
    module: nn.Module
    query: Tensor
    key: Tensor
    value: Tensor
    mask: Tensor | None
    rest: Mapping[str, Any]
    causal: bool = False

    def eager(self) -> tuple[Tensor, Tensor]:
        """Return the output (B, Q, H, d) and the weights (B, H, Q, K) of the architecture's own function.

        If the model is in half precision, the function is called with float32 numbers, and the weights are float32.
        Only the output is rounded. The fused kernel rounds in the same way. In half precision, the function would also
        round the scores, so that its weights would be further from those of the fused kernel. If the function scales
        its output, the weights include the factor, so that the output is always the weighted sum of the values.
        """
        if self.causal:
            return self._with_mask().eager()
        output, weights = self.widened().unchanged()
        return output.to(self.query.dtype), weights

    def learn(self) -> None:
        """Find out whether the attention function scales its output, and let the weights take this into account."""
        call = self.widened()
        if scales_output(*call._own(), call.value):
            _scaling.add(self.function)

    def unchanged(self) -> tuple[Tensor, Tensor]:
        """Return the same as `eager`, but call the function in the precision of the model."""
        output, weights = self._own()
        if self.function in _scaling:
            weights = weights * output_factor(output, weights, self.value)
        return output, weights

    def _own(self) -> tuple[Tensor, Tensor]:
        """Return what the architecture's own function returns."""
        call = self._with_mask() if self.causal else self
        return call.function(call.module, call.query, call.key, call.value, call.mask, **call.rest)

    def continues(self, earlier: FunctionCall | None) -> bool:
        """Return whether the call applies the weights of an earlier call to other values, as in differential attention.

        Both calls are made by the same module, with the same queries, keys and mask.
        """
        return (
            earlier is not None
            and self.module is earlier.module
            and self.query is earlier.query
            and self.key is earlier.key
            and self.mask is earlier.mask
        )

    def _with_mask(self) -> FunctionCall:
        """Return the same call with a mask, for a causal call without one."""
        positions = torch.arange(self.query.shape[2], device=self.query.device)
        return self.at(positions.expand(len(self.query), -1))

    def widened(self) -> FunctionCall:
        """Return the same call, with its half-precision tensors converted to float32."""
        if self.query.dtype not in HALF_TYPES:
            return self
        mask = None if self.mask is None else widened(self.mask)
        rest = {name: widened(one) if isinstance(one, Tensor) else one for name, one in self.rest.items()}
        query, key, value = (widened(one) for one in (self.query, self.key, self.value))
        return replace(self, query=query, key=key, value=value, mask=mask, rest=rest)

    def with_constant_weights(self) -> FunctionCall:
        """Return the same call, through whose weights no gradient flows.

        Besides the queries and keys, the other arguments may depend on the tokens, such as a bias that is computed from
        the states.
        """
        mask = None if self.mask is None else self.mask.detach()
        rest = {name: one.detach() if isinstance(one, Tensor) else one for name, one in self.rest.items()}
        return replace(self, query=self.query.detach(), key=self.key.detach(), mask=mask, rest=rest)

    def at(self, queries: Tensor) -> FunctionCall:
        """Return the same call for some of the queries only.

        Args:
            queries: (B, R) positions of the queries in each row.

        Returns:
            A call whose output is (B, R, H, d) and whose weights are (B, H, R, K).
        """
        queries = queries.to(self.query.device)
        pairs = (self.query.shape[2], self.key.shape[2])
        mask, rest = self.mask, dict(self.rest)
        if self.causal:
            keys = torch.arange(pairs[1], device=queries.device)
            mask = torch.zeros((len(queries), 1, queries.shape[1], pairs[1])).to(self.query)
            mask = mask.masked_fill(keys > queries[:, None, :, None], torch.finfo(mask.dtype).min)
        elif mask is not None:
            mask = mask if mask.shape[2] == 1 < pairs[0] else _at_queries(mask, queries)
        for name, value in rest.items():
            # Position biases (B, H, Q, K), for example, are passed in addition to the mask. Sinks that are computed
            # from the states have the shape (B, H, Q, 1).
            if isinstance(value, Tensor) and value.dim() == 4 and tuple(value.shape[2:]) in (pairs, (pairs[0], 1)):
                rest[name] = _at_queries(value, queries)
        return replace(self, query=_at_queries(self.query, queries), mask=mask, rest=rest, causal=False)


def fused_attention(call: FunctionCall) -> Tensor:
    """Return the output (B, Q, H, d) of the fused kernel.

    The kernel uses the mask and the causality of the call, as the architecture's own function does. Inside
    `only_query_used`, it computes the output of only one query, and the outputs of all others are NaN.
    """
    used = _used_queries.get()
    if used is None or used[0] is not call.module:
        return _fused(call)
    return alone_among_nan(_fused(call.at(used[1][:, None])), used[1], call.query.shape[2])


def alone_among_nan(values: Tensor, positions: Tensor, width: int) -> Tensor:
    """Return values (B, 1, ...) at one position (B,) of each row, among NaN at the other positions (B, T, ...)."""
    everything = values.new_full((len(values), width, *values.shape[2:]), torch.nan)
    index = positions.to(values.device).reshape(-1, *[1] * (values.dim() - 1)).expand_as(values)
    return everything.scatter_(1, index, values)


def _fused(call: FunctionCall) -> Tensor:
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    rest = {**call.rest, "is_causal": call.causal}
    output: Tensor = sdpa_attention_forward(call.module, call.query, call.key, call.value, call.mask, **rest)[0]
    return output


def _at_queries(values: Tensor, queries: Tensor) -> Tensor:
    """Return the values (B, H, R, d) of some queries, at positions (B, R), given values (B or 1, H, Q, d)."""
    index = queries[:, None, :, None].expand(-1, values.shape[1], -1, values.shape[3])
    return values.expand(len(queries), -1, -1, -1).gather(2, index)
