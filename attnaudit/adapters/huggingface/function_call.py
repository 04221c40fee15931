"""Calls of an attention function in Transformers, and two ways to compute their result.

The eager function of an architecture computes and stores the weights of all pairs of tokens. PyTorch's fused kernel
computes the output faster, and stores no weights. It ignores what some architectures add, such as attention sinks or
caps on the scores. It is therefore used only for models in which `FusedComparison` finds no difference.

Shapes: B rows, Q queries, K keys, H heads, G groups of heads that share their keys and values, d features of a head.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

#: The attention function of an architecture. It is called with (module, query, key, value, mask, ...), and returns the
#: output (B, Q, H, d) and the weights (B, H, Q, K).
EagerAttention = Callable[..., tuple[Tensor, Tensor]]


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
    """

    function: EagerAttention
    module: nn.Module
    query: Tensor
    key: Tensor
    value: Tensor
    mask: Tensor | None
    rest: Mapping[str, Any]

    def eager(self) -> tuple[Tensor, Tensor]:
        """Return the output (B, Q, H, d) and the weights (B, H, Q, K) of the architecture's own function."""
        return self.function(self.module, self.query, self.key, self.value, self.mask, **self.rest)


def fused_attention(call: FunctionCall) -> Tensor:
    """Return the output (B, Q, H, d) of the fused kernel.

    The kernel forbids only what the mask forbids, as the architecture's own function does.
    """
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    rest = {**call.rest, "is_causal": False}
    output: Tensor = sdpa_attention_forward(call.module, call.query, call.key, call.value, call.mask, **rest)[0]
    return output
