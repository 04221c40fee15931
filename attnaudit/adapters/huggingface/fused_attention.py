"""PyTorch's fused attention kernel, for the sites whose weights are not needed.

An architecture's eager function computes and stores all n² weights of a site. The fused kernel gives the same output
faster and without storing them. It ignores what some architectures add, such as attention sinks or caps on the scores.
It is therefore used only for models in which `FusedComparison` has found no difference.

Shapes: B rows, Q queries, K keys, H heads, d features of a head.
"""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor, nn

from attnaudit.adapters.huggingface.recorder import EagerAttention

#: Factors by which the queries are multiplied in the comparison. A cap on the scores, for example, has an effect only
#: on large scores.
QUERY_SCALES = (1.0, 8.0, 64.0)


def fused_attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **rest: Any
) -> Tensor:
    """Return the output (B, Q, H, d) of the fused kernel.

    The arguments are those of an architecture's eager function. Like it, the kernel forbids only what the mask forbids.
    """
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    output: Tensor = sdpa_attention_forward(module, query, key, value, mask, **{**rest, "is_causal": False})[0]
    return output


class FusedObserver:
    """An observer that records nothing. All attention of the pass is computed by the fused kernel."""

    def attend(
        self,
        eager: EagerAttention,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        **rest: Any,
    ) -> tuple[Tensor, Tensor | None]:
        return fused_attention(module, query, key, value, mask, **rest), None

    def on_softmax(self, module: nn.Module, scores: Tensor, weights: Tensor) -> Tensor:
        raise NotImplementedError("The fused kernel replaces only attention functions.")

    def on_values(self, value: Tensor, output: Tensor) -> None:
        raise NotImplementedError("The fused kernel replaces only attention functions.")


class FusedComparison(FusedObserver):
    """An observer that compares the fused kernel with the eager function at every site.

    Attributes:
        largest_difference: Largest difference of the outputs, relative to the largest value; infinite if the fused
            kernel fails.
    """

    def __init__(self) -> None:
        self.largest_difference = 0.0

    def attend(
        self,
        eager: EagerAttention,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        **rest: Any,
    ) -> tuple[Tensor, Tensor | None]:
        for scale in QUERY_SCALES:
            expected, _ = eager(module, query * scale, key, value, mask, **rest)
            try:
                found = fused_attention(module, query * scale, key, value, mask, **rest)
                difference = float((found - expected).abs().max() / value.abs().max().clamp_min(1e-9))
            # The kernel refuses arguments that it does not know with various exceptions.
            except (RuntimeError, ValueError, TypeError, AttributeError):
                difference = math.inf
            if math.isnan(difference) or difference > self.largest_difference:
                self.largest_difference = math.inf if math.isnan(difference) else difference
        return eager(module, query, key, value, mask, **rest)
