"""Alignments: hidden states (B, T, m) and, for models that read one, the state of a query (B, q) -> one score per token
(B, T).

A new alignment is a class with `__init__(width, size, query)`, query being q or None, and one entry in `ALIGNMENTS`.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn


class Additive(nn.Module):
    """vᵀ tanh(W₁ h + b), with a query vᵀ tanh(W₁ h + W₂ q + b) (Bahdanau et al. 2015). size: rows of W₁ and W₂."""

    def __init__(self, width: int, size: int, query: int | None = None) -> None:
        super().__init__()
        self.hidden = nn.Linear(width, size)
        self.query = None if query is None else nn.Linear(query, size, bias=False)
        self.score = nn.Linear(size, 1, bias=False)

    def forward(self, hidden: Tensor, query: Tensor | None = None) -> Tensor:
        scores: Tensor = self.score(torch.tanh(_mixed(self.hidden(hidden), self.query, query)))
        return scores.squeeze(-1)


class ScaledDot(nn.Module):
    """hᵀq / √m. Where the model reads no query, q is learned and starts from N(0, 1): a smaller start collapses to
    uniform attention (Tutek & Šnajder 2020, appendix C). A query of another width than m is first mapped to it. size is
    not used."""

    def __init__(self, width: int, size: int, query: int | None = None) -> None:
        super().__init__()
        if query is None:
            self.query = nn.Parameter(torch.randn(width))
        self.mapped = None if query in (None, width) else nn.Linear(int(query or 0), width, bias=False)

    def forward(self, hidden: Tensor, query: Tensor | None = None) -> Tensor:
        scale = math.sqrt(hidden.shape[-1])
        if query is None:
            return hidden @ self.query / scale
        asked = query if self.mapped is None else self.mapped(query)
        return torch.as_tensor(hidden @ asked.unsqueeze(-1)).squeeze(-1) / scale


class Deep(nn.Module):
    """D(W_h h), with a query D(W_h h + W_q q), and D(x) = W⁽²⁾ ReLU(W⁽¹⁾ ReLU(x)) (Wen et al. 2022, eq. 3
    and 4; they do not say how many layers they stack: here two). size: rows of W_h, W_q and W⁽¹⁾."""

    def __init__(self, width: int, size: int, query: int | None = None) -> None:
        super().__init__()
        self.hidden = nn.Linear(width, size)
        self.query = None if query is None else nn.Linear(query, size, bias=False)
        self.stack = nn.Sequential(nn.ReLU(), nn.Linear(size, size), nn.ReLU(), nn.Linear(size, 1, bias=False))

    def forward(self, hidden: Tensor, query: Tensor | None = None) -> Tensor:
        scores: Tensor = self.stack(_mixed(self.hidden(hidden), self.query, query))
        return scores.squeeze(-1)


class Uniform(nn.Module):
    """The same score for every token: attention says nothing. Nothing else is used."""

    def __init__(self, width: int, size: int, query: int | None = None) -> None:
        super().__init__()

    def forward(self, hidden: Tensor, query: Tensor | None = None) -> Tensor:
        return hidden[..., 0] * 0.0


def _mixed(hidden: Tensor, layer: nn.Module | None, query: Tensor | None) -> Tensor:
    """(B, T, s) with what the layer makes of the query added to every token."""
    return hidden if layer is None else hidden + layer(query).unsqueeze(1)


#: name -> (width of the hidden states, attention size, width of the query's state) -> alignment
ALIGNMENTS: dict[str, type[nn.Module]] = {
    "additive": Additive,
    "dot": ScaledDot,
    "deep": Deep,
    "uniform": Uniform,
}
