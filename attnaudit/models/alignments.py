"""Alignments: functions that give each token an attention score.

An alignment maps hidden states (B, T, m) to scores (B, T). In models that read a query, it also receives the state of
the query (B, q). To add an alignment, write a subclass of `nn.Module` with `__init__(width, size, query)` and add it to
`ALIGNMENTS`. The argument `query` is q, or None in models that read no query.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn


class Additive(nn.Module):
    """Additive alignment: the score vᵀ tanh(W₁ h + b), or vᵀ tanh(W₁ h + W₂ q + b) with a query.

    Here h is a hidden state and q is the state of the query (Bahdanau et al. 2015).

    Args:
        width: Number of features of a hidden state (m).
        size: Number of rows of W₁ and W₂.
        query: Number of features of the query's state (q); None for models that read no query.
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

    In a model that reads no query, q is a learned parameter with initial values from N(0, 1). With smaller initial
    values, training collapses to uniform attention (Tutek & Šnajder 2020, appendix C). In a model that reads a query, q
    is the state of the query. If the query's state does not have m features, a linear layer without bias maps it to m
    features.

    Args:
        width: Number of features of a hidden state (m).
        size: Not used.
        query: Number of features of the query's state; None for models that read no query.
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


class SmallDot(ScaledDot):
    """Scaled dot-product alignment as in the published code of Jain & Wallace 2019.

    It differs from `ScaledDot` only in a model that reads no query: q starts from U(-1/√m, 1/√m), the default of a
    linear layer in PyTorch, not from N(0, 1).

    Args:
        width: Number of features of a hidden state (m).
        size: Not used.
        query: Number of features of the query's state; None for models that read no query.
    """

    def __init__(self, width: int, size: int, query: int | None = None) -> None:
        super().__init__(width, size, query)
        if query is None:
            nn.init.uniform_(self.query, -1 / math.sqrt(width), 1 / math.sqrt(width))


class UnscaledDot(ScaledDot):
    """Dot-product alignment without a scale: the score hᵀq, where the vector q is as in `ScaledDot`.

    The reproduction of Tutek & Šnajder 2020 uses it (docs/reproduction.md says why).

    Args:
        width: Number of features of a hidden state (m).
        size: Not used.
        query: Number of features of the query's state; None for models that read no query.
    """

    def forward(self, hidden: Tensor, query: Tensor | None = None) -> Tensor:
        return super().forward(hidden, query) * math.sqrt(hidden.shape[-1])


class Deep(nn.Module):
    """Deep alignment: the score D(W_h h), or D(W_h h + W_q q) with a query, where D(x) = W⁽²⁾ ReLU(W⁽¹⁾ ReLU(x)).

    These are eq. 3 and 4 of Wen et al. 2022, for a hidden state h and the state q of the query. The paper does not give
    the number of layers in D. Here, D has two.

    Args:
        width: Number of features of a hidden state (m).
        size: Number of rows of W_h, W_q and W⁽¹⁾.
        query: Number of features of the query's state (q); None for models that read no query.
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
    """Uniform alignment: the score 0 for every token, so that all weights are equal.

    It has no parameters, and does not use its arguments.
    """

    def __init__(self, width: int, size: int, query: int | None = None) -> None:
        super().__init__()

    def forward(self, hidden: Tensor, query: Tensor | None = None) -> Tensor:
        return hidden[..., 0] * 0.0


def _add_query(hidden: Tensor, layer: nn.Module | None, query: Tensor | None) -> Tensor:
    """Add the layer's output (B, s) for the query to every token of `hidden` (B, T, s), if there is a layer."""
    return hidden if layer is None else hidden + layer(query).unsqueeze(1)


#: Name -> alignment class.
ALIGNMENTS: dict[str, type[nn.Module]] = {
    "additive": Additive,
    "dot": ScaledDot,
    "small_dot": SmallDot,
    "unscaled_dot": UnscaledDot,
    "deep": Deep,
    "uniform": Uniform,
}
