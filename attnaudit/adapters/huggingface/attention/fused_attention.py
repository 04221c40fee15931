"""Observers that compute attention with PyTorch's fused kernel, or compare it with the model's own function."""

from __future__ import annotations

import math
from dataclasses import replace

from torch import Tensor

from attnaudit.adapters.huggingface.attention.function_call import FunctionCall, fused_attention
from attnaudit.adapters.huggingface.attention.recorder import FunctionObserver

#: Factors by which the queries are multiplied in the comparison. A cap on the scores, for example, has an effect only
#: on large scores.
QUERY_SCALES = (1.0, 8.0, 64.0)


class FusedObserver(FunctionObserver):
    """An observer that records nothing. The fused kernel computes all attention of the pass.

    Attributes:
        skips_masks: As in `Observer`.
    """

    def __init__(self, *, skips_masks: bool = False) -> None:
        self.skips_masks = skips_masks

    def attend(self, call: FunctionCall) -> tuple[Tensor, None]:
        return fused_attention(call), None


class FusedComparison(FunctionObserver):
    """An observer that compares the fused kernel with the architecture's own attention function at every site.

    Attributes:
        largest_difference: Largest difference between the outputs, divided by the largest absolute entry of the value
            vectors; infinite if the fused kernel fails.
    """

    def __init__(self) -> None:
        self.largest_difference = 0.0

    def attend(self, call: FunctionCall) -> tuple[Tensor, Tensor]:
        for scale in QUERY_SCALES:
            scaled = replace(call, query=call.query * scale)
            expected, _ = scaled.eager()
            try:
                found = fused_attention(scaled)
                difference = float((found - expected).abs().max() / call.value.abs().max().clamp_min(1e-9))
            # The kernel refuses arguments that it does not know with various exceptions.
            except (RuntimeError, ValueError, TypeError, AttributeError):
                difference = math.inf
            if math.isnan(difference) or difference > self.largest_difference:
                self.largest_difference = math.inf if math.isnan(difference) else difference
        return call.eager()
