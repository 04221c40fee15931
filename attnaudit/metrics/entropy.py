"""Normalised Shannon entropy of a distribution over tokens."""

from __future__ import annotations

import torch
from torch import Tensor

from attnaudit.metrics.padded_rows import distributions, padded_rows


def normalized_entropy(p: Tensor, mask: Tensor | None = None) -> Tensor:
    """H(p) / log n of each row over its n real tokens: 0 for one token alone, 1 for the uniform distribution.

    H~(p) = -sum_i p_i log p_i / log n, with 0 log 0 = 0. Weights are normalised over the mask first.

    Shapes: p (..., T) of weights at least 0; mask (..., T) boolean, True at real tokens, every position if None;
    result (...), without unit, in [0, 1]. NaN (undefined) for n < 2 and for rows without mass or with a real NaN.
    Raises ValueError for a negative weight or a mask that is not boolean. Source: Meister et al. 2021, §4.1 and table
    1.

    >>> normalized_entropy(torch.tensor([[0.5, 0.5, 0.0, 0.0], [0.2, 0.2, 0.2, 0.2]])).tolist()
    [0.5, 1.0]
    """
    rows = padded_rows(mask, p=p)
    share = distributions(rows.values[0], rows.mask, "p")
    count = rows.mask.sum(-1).to(torch.float64)
    entropy = -torch.special.xlogy(share, share).sum(-1) / count.log()
    return torch.where(count >= 2, entropy.clamp(0.0, 1.0), torch.nan).reshape(rows.leading)
