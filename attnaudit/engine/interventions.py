"""What an intervention does to rows of attention: permute, put, or take away. Only keys that a row may attend to change
places, so that causal, sliding-window and padding structure is kept.

Shapes: N rows of a batch of variants, H heads, Q queries, K keys; `free` marks the allowed keys that are real tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor


def permuted(weights: Tensor, order: Tensor, free: Tensor) -> Tensor:
    """weights (N, H, Q, K), order (N, 1, 1, K), a permutation of positions, free (N, 1 or H, Q, K) -> the weights of
    the free keys in the order that the permutation gives those keys; others stay."""
    order = order.expand(*free.shape[:3], order.shape[-1])
    if bool((free.gather(-1, order) == free).all()):
        return weights.gather(-1, order.expand_as(weights))
    # The free keys among order, and the places they go to: both brought to the front in their order.
    taken = (~free.gather(-1, order)).to(torch.uint8).sort(dim=-1, stable=True).indices
    source = order.gather(-1, taken).expand_as(weights)
    target = (~free).to(torch.uint8).sort(dim=-1, stable=True).indices.expand_as(weights)
    moved = torch.zeros_like(weights).scatter(-1, target, weights.gather(-1, source))
    return torch.where(free, moved, weights)


def put(weights: Tensor, shares: Tensor, free: Tensor) -> Tensor:
    """shares (N, 1 or H, 1 or Q, K) of the mass on free keys -> weights with that mass so shared; the rest stays."""
    shares = shares * free
    total = shares.sum(-1, keepdim=True)
    mass = (weights * free).sum(-1, keepdim=True)
    scaled = shares * (mass / total.clamp_min(torch.finfo(shares.dtype).tiny))
    return torch.where(free & (total > 0), scaled, weights)


def without(weights: Tensor, gone: Tensor) -> Tensor:
    """gone (N, 1, 1, K) -> weights without those, scaled to the sum that each row had; zero where nothing is left."""
    left = weights.masked_fill(gone, 0.0)
    total = left.sum(-1, keepdim=True)
    whole = weights.sum(-1, keepdim=True)
    return torch.where(total > 0, left * (whole / total.clamp_min(torch.finfo(weights.dtype).tiny)), left)
