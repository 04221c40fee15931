"""Cosine similarity of two vectors over tokens."""

from __future__ import annotations

import torch
from torch import Tensor

from attnaudit.metrics.padded_rows import padded_rows


def cosine(first: Tensor, second: Tensor, mask: Tensor | None = None) -> Tensor:
    """Return the cosine similarity of the two vectors of each row.

    The value is Σ_i a_i b_i / (‖a‖₂ ‖b‖₂) over the real tokens. Multiplying a vector by a positive number does not
    change it. Each vector is first divided by its largest absolute element, so that very small numbers do not underflow
    when squared.

    Args:
        first: (..., T) vectors.
        second: (..., T) vectors.
        mask: (..., T) True at real tokens; None if every position is real.

    Returns:
        (...) values in [-1, 1]; NaN in rows where a vector is zero or has a NaN at a real token.

    Raises:
        ValueError: The shapes differ, or the mask is not boolean.

    Examples:
        >>> cosine(torch.tensor([[3.0, 4.0], [1.0, 0.0]]), torch.tensor([[6.0, 8.0], [0.0, 1.0]])).tolist()
        [1.0, 0.0]
    """
    rows = padded_rows(mask, first=first, second=second)
    product = torch.ones_like(rows.values[0])
    for values in rows.values:
        real = torch.where(rows.mask, values, 0.0)
        scaled = real / real.abs().amax(-1, keepdim=True)  # 0 / 0 is NaN: a zero vector has no direction
        product = product * (scaled / scaled.norm(dim=-1, keepdim=True))
    return product.sum(-1).clamp(-1.0, 1.0).reshape(rows.leading)
