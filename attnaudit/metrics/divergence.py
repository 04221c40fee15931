"""Distances between distributions: Jensen-Shannon divergence (in nats) and total variation."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from attnaudit.metrics.padded_rows import distributions, padded_rows


def jensen_shannon(p: Tensor, q: Tensor, mask: Tensor | None = None) -> Tensor:
    """Return the Jensen-Shannon divergence (JSD) of each row's two distributions, in nats.

    JSD(p, q) = ½ KL(p ‖ m) + ½ KL(q ‖ m), where m = (p + q)/2. It is symmetric and at most ln 2 = 0.693. Note that
    `scipy.spatial.distance.jensenshannon` returns the square root of this divergence. The function is differentiable,
    even where weights are 0. Sources: Lin 1991; Jain & Wallace 2019, §4.2.

    Args:
        p: (..., T) weights of at least 0; they are normalised over the mask.
        q: (..., T) weights of at least 0; they are normalised over the mask.
        mask: (..., T) True at real tokens; None if every position is real.

    Returns:
        (...) divergences. A row is NaN if it has no real tokens, if the weights of p or q sum to 0, or if a real token
        has a NaN.

    Raises:
        ValueError: Shapes differ, a weight is negative, or the mask is not boolean.

    Examples:
        >>> p, q = torch.tensor([[1.0, 0.0], [0.5, 0.5]]), torch.tensor([[0.0, 1.0], [0.5, 0.5]])
        >>> [round(value, 4) for value in jensen_shannon(p, q).tolist()]
        [0.6931, 0.0]
    """
    rows = padded_rows(mask, p=p, q=q)
    left = distributions(rows.values[0], rows.mask, "p")
    right = distributions(rows.values[1], rows.mask, "q")
    return divergence_of_distributions(left, right).clamp(0.0, math.log(2)).reshape(rows.leading)


def divergence_of_distributions(p: Tensor, q: Tensor) -> Tensor:
    """Return the JSD, in nats, of normalised distributions p (..., T) and q (..., T).

    This function is faster than `jensen_shannon`, because it neither checks nor normalises its arguments. Padding must
    be 0.

    Returns:
        (...) divergences; NaN in rows with a NaN.
    """
    middle = (p + q) / 2
    log_middle = torch.where(middle > 0, middle, 1.0).log()
    # A weight of 0 adds nothing to the sum. Its logarithm is replaced by ln 1, which keeps the gradient finite.
    from_p = p * (torch.where(p > 0, p, 1.0).log() - log_middle)
    from_q = q * (torch.where(q > 0, q, 1.0).log() - log_middle)
    divergence: Tensor = (from_p + from_q).sum(-1) / 2
    return torch.where(p.isnan().any(-1) | q.isnan().any(-1), torch.nan, divergence)


def total_variation(p: Tensor, q: Tensor) -> Tensor:
    """Return the total variation distance ½ Σ_c |p_c - q_c| of two distributions over classes.

    The arguments are not normalised. Source: Jain & Wallace 2019, §4.2.

    Args:
        p: (..., C) probabilities of all classes. Give the output p of a single sigmoid as (1 - p, p).
        q: (..., C) probabilities of all classes. The shapes of p and q must broadcast.

    Returns:
        (...) distances in [0, 1]; NaN in rows with a NaN.

    Raises:
        ValueError: The shapes do not broadcast, or the numbers of classes differ.

    Examples:
        >>> round(total_variation(torch.tensor([[0.7, 0.3]]), torch.tensor([[0.5, 0.5]])).item(), 6)
        0.2
    """
    if p.dim() == 0 or q.dim() == 0 or p.shape[-1] != q.shape[-1]:
        raise ValueError(
            f"q: expected as many classes as in p, of shape {tuple(p.shape)}, but got the shape {tuple(q.shape)}"
        )
    try:
        difference = p.to(torch.float64) - q.to(torch.float64)
    except RuntimeError:
        raise ValueError(f"q: expected a shape that broadcasts to {tuple(p.shape)} but got {tuple(q.shape)}") from None
    return difference.abs().sum(-1) / 2


def largest_jensen_shannon(attention: Tensor, mask: Tensor | None = None) -> Tensor:
    """Return the largest possible JSD, in nats, between `attention` and any distribution over the same real tokens.

    JSD is convex, so its maximum over the simplex is at a one-hot distribution, with all weight on the token that has
    the smallest weight a in `attention`. The maximum is ln 2 + ½ (a ln a - (1 + a) ln(1 + a)). It is 0 if there is only
    one token, and ln 2 if some but not all weights are 0. The JSD of an adversarial attention, divided by this maximum,
    is in [0, 1].

    Args:
        attention: (..., T) weights of at least 0; they are normalised over the mask.
        mask: (..., T) True at real tokens; None if every position is real.

    Returns:
        (...) divergences. A row is NaN if it has no real tokens, if its weights sum to 0, or if a real token has a NaN.

    Raises:
        ValueError: A weight is negative, or the mask is not boolean.

    Examples:
        >>> round(largest_jensen_shannon(torch.tensor([[0.5, 0.5]])).item(), 4)
        0.2158
    """
    rows = padded_rows(mask, attention=attention)
    share = distributions(rows.values[0], rows.mask, "attention")
    least = torch.where(rows.mask & ~share.isnan(), share, torch.inf).amin(-1)
    value = math.log(2) + (torch.special.xlogy(least, least) - torch.special.xlogy(1 + least, 1 + least)) / 2
    undefined = share.isnan().any(-1) | ~rows.mask.any(-1)
    return torch.where(undefined, torch.nan, value.clamp(min=0.0)).reshape(rows.leading)
