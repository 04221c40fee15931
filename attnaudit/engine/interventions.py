"""What an intervention does to attention rows: permute the weights, replace them, or remove some.

No weight is moved to a key that its row may not attend to, so causal, sliding-window and padding masks stay in effect.

Shapes: N rows of a batch of variants, H heads, Q queries, K keys.
"""

from __future__ import annotations

import torch
from torch import Tensor


def permuted(weights: Tensor, order: Tensor, attendable: Tensor) -> Tensor:
    """Permute the weights of the attendable keys; other weights stay.

    Args:
        weights: (N, H, Q, K) attention weights.
        order: (N, 1, 1, K) a permutation of the positions.
        attendable: (N, 1 or H, Q, K) True at real tokens that the row may attend to.

    Returns:
        (N, H, Q, K) weights. The i-th attendable key of a row gets the weight of the i-th attendable key in `order`.
    """
    order = order.expand(*attendable.shape[:3], order.shape[-1])
    if bool((attendable.gather(-1, order) == attendable).all()):
        return weights.gather(-1, order.expand_as(weights))
    # A stable sort brings the attendable keys to the front: once in the order of `order` (sources of the weights), once
    # in the order of their positions (targets).
    sources_first = (~attendable.gather(-1, order)).to(torch.uint8).sort(dim=-1, stable=True).indices
    source = order.gather(-1, sources_first).expand_as(weights)
    target = (~attendable).to(torch.uint8).sort(dim=-1, stable=True).indices.expand_as(weights)
    moved = torch.zeros_like(weights).scatter(-1, target, weights.gather(-1, source))
    return torch.where(attendable, moved, weights)


def redistributed(weights: Tensor, shares: Tensor, attendable: Tensor) -> Tensor:
    """Redistribute each row's weight on attendable keys in proportion to the shares; other weights stay.

    Args:
        weights: (N, H, Q, K) attention weights.
        shares: (N, 1 or H, 1 or Q, K) non-negative shares, which need not sum to 1.
        attendable: (N, 1 or H, Q, K) True at real tokens that the row may attend to.

    Returns:
        (N, H, Q, K) weights; rows whose shares on attendable keys are all 0 are unchanged.
    """
    shares = shares * attendable
    total = shares.sum(-1, keepdim=True)
    mass = (weights * attendable).sum(-1, keepdim=True)
    scaled = shares * (mass / total.clamp_min(torch.finfo(shares.dtype).tiny))
    return torch.where(attendable & (total > 0), scaled, weights)


def without(weights: Tensor, removed: Tensor) -> Tensor:
    """Set some weights to 0 and scale up the rest, so that each row keeps its sum.

    Args:
        weights: (N, H, Q, K) attention weights.
        removed: (N, 1, 1, K) True at keys whose weight is removed.

    Returns:
        (N, H, Q, K) weights; rows with no weight left are 0.
    """
    left = weights.masked_fill(removed, 0.0)
    total = left.sum(-1, keepdim=True)
    before = weights.sum(-1, keepdim=True)
    return torch.where(total > 0, left * (before / total.clamp_min(torch.finfo(weights.dtype).tiny)), left)
