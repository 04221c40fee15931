"""Distances between distributions: Jensen-Shannon divergence (nats) and total variation."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from attnaudit.metrics.padded_rows import distributions, padded_rows


def jensen_shannon(p: Tensor, q: Tensor, mask: Tensor | None = None) -> Tensor:
    """Jensen-Shannon divergence of each row's two distributions, in nats.

    JSD(p, q) = ½ KL(p ‖ m) + ½ KL(q ‖ m) with m = (p + q)/2; symmetric, at most ln 2 = 0.693. This is the divergence:
    `scipy.spatial.distance.jensenshannon` returns its square root. Weights are normalised over the mask first.

    Shapes: p, q (..., T) of weights at least 0; mask (..., T) boolean, True at real tokens, every position if None;
    result (...). NaN (undefined) for rows without real tokens or mass and for a real NaN. Differentiable, also at
    zeros.
    Raises ValueError for shapes that differ, a negative weight or a mask that is not boolean.
    Source: Lin 1991; Jain & Wallace 2019, §4.2.

    >>> p, q = torch.tensor([[1.0, 0.0], [0.5, 0.5]]), torch.tensor([[0.0, 1.0], [0.5, 0.5]])
    >>> [round(value, 4) for value in jensen_shannon(p, q).tolist()]
    [0.6931, 0.0]
    """
    rows = padded_rows(mask, p=p, q=q)
    left = distributions(rows.values[0], rows.mask, "p")
    right = distributions(rows.values[1], rows.mask, "q")
    return divergence_of_distributions(left, right).clamp(0.0, math.log(2)).reshape(rows.leading)


def divergence_of_distributions(p: Tensor, q: Tensor) -> Tensor:
    """JSD in nats over the last dimension of tensors that are already distributions; no check, made for inner loops."""
    middle = (p + q) / 2
    log_middle = torch.where(middle > 0, middle, 1.0).log()
    # A weight of 0 adds nothing; taking its logarithm at 1 keeps the gradient finite.
    from_p = p * (torch.where(p > 0, p, 1.0).log() - log_middle)
    from_q = q * (torch.where(q > 0, q, 1.0).log() - log_middle)
    divergence: Tensor = (from_p + from_q).sum(-1) / 2
    return torch.where(p.isnan().any(-1) | q.isnan().any(-1), torch.nan, divergence)


def total_variation(p: Tensor, q: Tensor) -> Tensor:
    """Total variation distance over the last dimension, ½ sum_c |p_c - q_c|, in [0, 1] for probabilities.

    Shapes: p, q (..., C), broadcast against each other, the *whole* class vector (one sigmoid output p is (1-p, p));
    result (...). Nothing is normalised; NaN stays NaN. Raises ValueError for shapes that do not broadcast.
    Source: Jain & Wallace 2019, §4.2.

    >>> round(total_variation(torch.tensor([[0.7, 0.3]]), torch.tensor([[0.5, 0.5]])).item(), 6)
    0.2
    """
    if p.dim() == 0 or q.dim() == 0 or p.shape[-1] != q.shape[-1]:
        raise ValueError(f"q: expected the classes of p, {tuple(p.shape)}, but got {tuple(q.shape)}")
    try:
        difference = p.to(torch.float64) - q.to(torch.float64)
    except RuntimeError:
        raise ValueError(f"q: expected a shape that broadcasts to {tuple(p.shape)} but got {tuple(q.shape)}") from None
    return difference.abs().sum(-1) / 2


def largest_jensen_shannon(attention: Tensor, mask: Tensor | None = None) -> Tensor:
    """The largest JSD (nats) that any distribution over the same real tokens can have to `attention`.

    JSD is convex, so its maximum over the simplex is at a one-hot, and the one-hot at the least weight a is the
    furthest: JSD = ln 2 + ½ (a ln a - (1 + a) ln(1 + a)). 0 for one token; ln 2 as soon as one weight is 0 (and another
    is not).

    Shapes: attention (..., T) of weights at least 0; mask (..., T) boolean; result (...). Undefined rows and errors as
    in `jensen_shannon`. The denominator of an adversary's share.

    >>> round(largest_jensen_shannon(torch.tensor([[0.5, 0.5]])).item(), 4)
    0.2158
    """
    rows = padded_rows(mask, attention=attention)
    share = distributions(rows.values[0], rows.mask, "attention")
    least = torch.where(rows.mask & ~share.isnan(), share, torch.inf).amin(-1)
    value = math.log(2) + (torch.special.xlogy(least, least) - torch.special.xlogy(1 + least, 1 + least)) / 2
    undefined = share.isnan().any(-1) | ~rows.mask.any(-1)
    return torch.where(undefined, torch.nan, value.clamp(min=0.0)).reshape(rows.leading)
