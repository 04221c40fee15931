"""Alignments: functions that give each token an attention score.

An alignment maps hidden states (B, T, m) to scores (B, T). In models that read a query it also takes the query's
state (B, q). To add one, write a class with `__init__(width, size, query)`, where `query` is q or None, and give it
an entry in `ALIGNMENTS`.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn


class Additive(nn.Module):
    """Additive alignment: the score vᵀ tanh(W₁ h + b), or vᵀ tanh(W₁ h + W₂ q + b) with a query.

    Here h is a hidden state and q the query's state (Bahdanau et al. 2015).

    Args:
        width: Features of one hidden state (m).
        size: Rows of W₁ and W₂.
        query: Features of the query's state (q); None for models that read no query.
    """

    def __init__(self, width: int, size: int, query: int | None = None) -> None:
        super().__init__()
        self.hidden = nn.Linear(width, size)
        self.query = None if query is None else nn.Linear(query, size, bias=False)
        self.score = nn.Linear(size, 1, bias=False)

    def forward(self, hidden: Tensor, query: Tensor | None = None) -> Tensor:
        scores: Tensor = self.score(torch.tanh(_add_query(self.hidden(hidden), self.query, query)))
        return scores.squeeze(-1)


class ScaledDot(nn.Module):
    """Scaled dot-product alignment: the score hᵀq / √m.

    In a model that reads no query, q is a learned parameter that is initialised from N(0, 1). With smaller initial
    values, training collapses to uniform attention (Tutek & Šnajder 2020, appendix C). In a model that reads a query,
    q is the query's state; if it does not have m features, a linear layer without bias maps it to m features.

    Args:
        width: Features of one hidden state (m).
        size: Not used.
        query: Features of the query's state; None for models that read no query.
    """

    def __init__(self, width: int, size: int, query: int | None = None) -> None:
        super().__init__()
        if query is None:
            self.query = nn.Parameter(torch.randn(width))
        self.mapped = None if query in (None, width) else nn.Linear(int(query or 0), width, bias=False)

    def forward(self, hidden: Tensor, query: Tensor | None = None) -> Tensor:
        scale = math.sqrt(hidden.shape[-1])
        if query is None:
            return hidden @ self.query / scale
        query_state = query if self.mapped is None else self.mapped(query)
        return torch.as_tensor(hidden @ query_state.unsqueeze(-1)).squeeze(-1) / scale


class Deep(nn.Module):
    """Deep alignment: the score D(W_h h), or D(W_h h + W_q q) with a query, where D(x) = W⁽²⁾ ReLU(W⁽¹⁾ ReLU(x)).

    These are eq. 3 and 4 of Wen et al. 2022. The paper does not give the number of layers in D; here there are two.

    Args:
        width: Features of one hidden state (m).
        size: Rows of W_h, W_q and W⁽¹⁾.
        query: Features of the query's state (q); None for models that read no query.
    """

    def __init__(self, width: int, size: int, query: int | None = None) -> None:
        super().__init__()
        self.hidden = nn.Linear(width, size)
        self.query = None if query is None else nn.Linear(query, size, bias=False)
        self.stack = nn.Sequential(nn.ReLU(), nn.Linear(size, size), nn.ReLU(), nn.Linear(size, 1, bias=False))

    def forward(self, hidden: Tensor, query: Tensor | None = None) -> Tensor:
        scores: Tensor = self.stack(_add_query(self.hidden(hidden), self.query, query))
        return scores.squeeze(-1)


class Uniform(nn.Module):
    """Uniform alignment: the score 0 for every token, so that all weights are equal. It has no parameters."""

    def __init__(self, width: int, size: int, query: int | None = None) -> None:
        super().__init__()

    def forward(self, hidden: Tensor, query: Tensor | None = None) -> Tensor:
        return hidden[..., 0] * 0.0


def _add_query(hidden: Tensor, layer: nn.Module | None, query: Tensor | None) -> Tensor:
    """Add the layer's output for the query (B, s) to every token of `hidden` (B, T, s), if there is a layer."""
    return hidden if layer is None else hidden + layer(query).unsqueeze(1)


#: name -> alignment class
ALIGNMENTS: dict[str, type[nn.Module]] = {
    "additive": Additive,
    "dot": ScaledDot,
    "deep": Deep,
    "uniform": Uniform,
}
