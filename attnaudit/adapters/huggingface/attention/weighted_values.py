"""Weighted sums of values, and attention functions that scale them.

Shapes: B rows, Q queries, K keys, H heads, G groups of heads that share their keys and values, d features of a head.
"""

from __future__ import annotations

import torch
from torch import Tensor

from attnaudit.adapters.huggingface.half_precision import widened

#: The largest difference between an output and a multiple of the weighted sum, relative to the largest output.
TOLERANCE = 1e-4


def apply_weights(weights: Tensor, value: Tensor) -> Tensor:
    """Apply attention weights to values.

    Args:
        weights: (B, H, Q, K) attention weights.
        value: (B, G, K, d) values; H is a multiple of G.

    Returns:
        (B, Q, H, d) weighted sums, on the device and in the data type of the values. They are computed in the data type
        of the weights.
    """
    wide = expand_groups(value, weights.shape[1]).to(weights.dtype)
    return (weights.to(value.device) @ wide).transpose(1, 2).contiguous().to(value.dtype)


def expand_groups(value: Tensor, heads: int) -> Tensor:
    """Return the values (B, H, K, d) of every head, given the values (B, G, K, d) of the groups of heads."""
    groups = value.shape[1]
    return value if groups == heads else value.repeat_interleave(heads // groups, dim=1)


def output_factor(output: Tensor, weights: Tensor, value: Tensor) -> Tensor:
    """Return the factors (B, H, Q, 1) by which an output is larger than the weighted sum of the values.

    They are those of least squares; 1 where the weighted sum is 0.

    Args:
        output: (B, Q, H, d) output of an attention function.
        weights: (B, H, Q, K) weights that the function returned.
        value: (B, G, K, d) values; H is a multiple of G.
    """
    summed = widened(apply_weights(weights, value))
    square = summed.square().sum(-1, keepdim=True)
    # The gradient of a division by 0 would be NaN, even where its result is not used.
    factor = (output * summed).sum(-1, keepdim=True) / torch.where(square > 0, square, 1.0)
    return torch.where(square > 0, factor, 1.0).transpose(1, 2)


def scales_output(output: Tensor, weights: Tensor, value: Tensor) -> bool:
    """Return whether an output is the weighted sum of the values times a factor per query and head, which is not 1.

    Args:
        output: (B, Q, H, d) output of an attention function.
        weights: (B, H, Q, K) weights that the function returned.
        value: (B, G, K, d) values; H is a multiple of G.
    """
    if weights.dim() != 4 or output.dim() != 4 or weights.shape[1] % value.shape[1]:
        return False
    if weights.shape[3] != value.shape[2]:
        return False
    summed = apply_weights(weights, value)
    if summed.shape != output.shape:
        return False
    allowed = TOLERANCE * float(output.abs().max())
    if float((summed - output).abs().max()) <= allowed:
        return False
    scaled = summed * output_factor(output, weights, value).transpose(1, 2)
    return float((scaled - output).abs().max()) <= allowed
