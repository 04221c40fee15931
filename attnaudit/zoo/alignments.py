"""Alignments: hidden states (B, T, m) -> one score per token (B, T).

A new alignment is a class with `__init__(width, size)` and one entry in `ALIGNMENTS`.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn


class Additive(nn.Module):
    """vᵀ tanh(W h + b) (Bahdanau et al. 2015, the form without a query). size: rows of W."""

    def __init__(self, width: int, size: int) -> None:
        super().__init__()
        self.hidden = nn.Linear(width, size)
        self.score = nn.Linear(size, 1, bias=False)

    def forward(self, hidden: Tensor) -> Tensor:
        scores: Tensor = self.score(torch.tanh(self.hidden(hidden)))
        return scores.squeeze(-1)


class ScaledDot(nn.Module):
    """hᵀq / √m with a learned query. q starts from N(0, 1): a smaller start collapses to uniform attention
    (Tutek & Šnajder 2020, appendix C). size is not used."""

    def __init__(self, width: int, size: int) -> None:
        super().__init__()
        self.query = nn.Parameter(torch.randn(width))

    def forward(self, hidden: Tensor) -> Tensor:
        return hidden @ self.query / math.sqrt(hidden.shape[-1])


class Deep(nn.Module):
    """D(W_h h) with D(x) = W⁽²⁾ ReLU(W⁽¹⁾ ReLU(x)) (Wen et al. 2022, eq. 3 and 4; they do not say how many layers they
    stack: here two). size: rows of W_h and W⁽¹⁾."""

    def __init__(self, width: int, size: int) -> None:
        super().__init__()
        self.hidden = nn.Linear(width, size)
        self.stack = nn.Sequential(nn.ReLU(), nn.Linear(size, size), nn.ReLU(), nn.Linear(size, 1, bias=False))

    def forward(self, hidden: Tensor) -> Tensor:
        scores: Tensor = self.stack(self.hidden(hidden))
        return scores.squeeze(-1)


class Uniform(nn.Module):
    """The same score for every token: attention says nothing. width and size are not used."""

    def __init__(self, width: int, size: int) -> None:
        super().__init__()

    def forward(self, hidden: Tensor) -> Tensor:
        return hidden[..., 0] * 0.0


#: name -> (width of the hidden states, attention size) -> alignment
ALIGNMENTS: dict[str, Callable[[int, int], nn.Module]] = {
    "additive": Additive,
    "dot": ScaledDot,
    "deep": Deep,
    "uniform": Uniform,
}
