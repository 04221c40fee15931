"""Changes of attention rows: functions that permute, redistribute or remove weights.

A row is the weights of one query. No weight is moved to a key to which the query may not attend, so that causal,
sliding-window and padding masks stay in effect.

Shapes: N rows of a batch of variants, H heads, Q queries, K keys.
"""

from __future__ import annotations

import torch
from torch import Tensor


def permuted(weights: Tensor, order: Tensor, attendable: Tensor) -> Tensor:
    """Permute the weights of the attendable keys in each row. All other weights stay in place.

    Args:
        weights: (N, H, Q, K) attention weights.
        order: (N, 1, 1, K) a permutation of the key positions.
        attendable: (N, 1 or H, Q, K) True at the real tokens to which the query may attend.

    Returns:
        (N, H, Q, K) weights. In each row, the i-th attendable key by position gets the weight of the i-th attendable
        key in `order`.
    """
    order = order.expand(*attendable.shape[:3], order.shape[-1])
    if bool((attendable.gather(-1, order) == attendable).all()):
        return weights.gather(-1, order.expand_as(weights))
    # A stable sort moves the attendable keys to the front. The sources of the weights are sorted in the order of
    # `order`, and the targets in the order of their positions.
    sources_first = (~attendable.gather(-1, order)).to(torch.uint8).sort(dim=-1, stable=True).indices
    source = order.gather(-1, sources_first).expand_as(weights)
    target = (~attendable).to(torch.uint8).sort(dim=-1, stable=True).indices.expand_as(weights)
    moved = torch.zeros_like(weights).scatter(-1, target, weights.gather(-1, source))
    return torch.where(attendable, moved, weights)


def redistributed(weights: Tensor, shares: Tensor, attendable: Tensor) -> Tensor:
    """Redistribute the total weight on the attendable keys of each row. All other weights stay the same.

    Args:
        weights: (N, H, Q, K) attention weights.
        shares: (N, 1 or H, 1 or Q, K) non-negative numbers to which the new weights are proportional. They need not sum
            to 1.
        attendable: (N, 1 or H, Q, K) True at the real tokens to which the query may attend.

    Returns:
        (N, H, Q, K) weights. A row is unchanged if the shares of all its attendable keys are 0.
    """
    shares = shares * attendable
    total = shares.sum(-1, keepdim=True)
    mass = (weights * attendable).sum(-1, keepdim=True)
    scaled = shares * (mass / total.clamp_min(torch.finfo(shares.dtype).tiny))
    return torch.where(attendable & (total > 0), scaled, weights)


def without(weights: Tensor, removed: Tensor) -> Tensor:
    """Set some weights to 0, and scale up the other weights so that each row keeps its sum.

    Args:
        weights: (N, H, Q, K) attention weights.
        removed: (N, 1, 1, K) True at the keys whose weights are set to 0.

    Returns:
        (N, H, Q, K) weights. A row without any weight left is 0 everywhere.
    """
    left = weights.masked_fill(removed, 0.0)
    total = left.sum(-1, keepdim=True)
    before = weights.sum(-1, keepdim=True)
    return torch.where(total > 0, left * (before / total.clamp_min(torch.finfo(weights.dtype).tiny)), left)
