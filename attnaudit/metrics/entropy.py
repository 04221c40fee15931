"""Normalised Shannon entropy of a distribution over tokens."""

from __future__ import annotations

import torch
from torch import Tensor

from attnaudit.metrics.padded_rows import distributions, padded_rows


def normalized_entropy(p: Tensor, mask: Tensor | None = None) -> Tensor:
    """Return the entropy of each row's distribution, divided by the entropy of the uniform distribution.

    The value is H(p) / ln n = -Σ_i p_i ln p_i / ln n over the n real tokens, with 0 ln 0 = 0. It is 0 if one token has
    all weight, and 1 for the uniform distribution. Source: Meister et al. 2021, §4.1 and table 1.

    Args:
        p: (..., T) weights of at least 0; they are normalised over the mask.
        mask: (..., T) True at real tokens; None if every position is real.

    Returns:
        (...) values in [0, 1]. A row is NaN if n < 2, if its weights sum to 0, or if a real token has a NaN.

    Raises:
        ValueError: A weight is negative, or the mask is not boolean.

    Examples:
        >>> normalized_entropy(torch.tensor([[0.5, 0.5, 0.0, 0.0], [0.2, 0.2, 0.2, 0.2]])).tolist()
        [0.5, 1.0]
    """
    rows = padded_rows(mask, p=p)
    share = distributions(rows.values[0], rows.mask, "p")
    count = rows.mask.sum(-1).to(torch.float64)
    entropy = -torch.special.xlogy(share, share).sum(-1) / count.log()
    return torch.where(count >= 2, entropy.clamp(0.0, 1.0), torch.nan).reshape(rows.leading)
