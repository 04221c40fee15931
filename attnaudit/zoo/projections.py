"""Projections: scores (B, T) and allowed (B, T) -> weights (B, T) that sum to one, exactly zero where not allowed.

A new projection is a module whose `forward(scores)` maps the last dimension onto the simplex, with -inf given zero,
and one entry in `PROJECTIONS`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from entmax import sparsemax
from torch import Tensor, nn


class Softmax(nn.Module):
    """exp(a) / Σ exp(a)."""

    def forward(self, scores: Tensor) -> Tensor:
        return scores.softmax(dim=-1)


class Sparsemax(nn.Module):
    """The Euclidean projection onto the simplex (Martins & Astudillo 2016)."""

    def forward(self, scores: Tensor) -> Tensor:
        return cast(Tensor, sparsemax(scores, dim=-1))


def project(projection: nn.Module, scores: Tensor, allowed: Tensor) -> Tensor:
    """`projection` over the allowed tokens. A row in which nothing is allowed gets zeros, without a NaN gradient."""
    nothing = ~allowed.any(dim=-1, keepdim=True)
    open_scores = scores.masked_fill(~allowed & ~nothing, float("-inf"))
    weights: Tensor = projection(open_scores)
    return weights * allowed


#: name -> projection
PROJECTIONS: dict[str, Callable[[], nn.Module]] = {"softmax": Softmax, "sparsemax": Sparsemax}
