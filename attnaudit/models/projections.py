"""Projections: scores (B, T) and allowed (B, T) -> weights (B, T) that sum to one, exactly zero where not allowed.

A new projection is a module whose `forward(scores)` maps the last dimension onto the simplex, with -inf given zero,
and one entry in `PROJECTIONS`. One with a parameter derives from `Parametric`.

All are differentiable once, which is all that training and the measures ask for. Second derivatives of "entmax" are
wrong (its gradient is written by hand, without a graph of its own): do not differentiate through its gradient.
"""

from __future__ import annotations

import math
from typing import ClassVar, cast

import torch
from entmax import entmax15, entmax_bisect, sparsemax
from torch import Tensor, nn

from attnaudit.errors import ModelError


class Softmax(nn.Module):
    """exp(a) / Σ exp(a)."""

    def forward(self, scores: Tensor) -> Tensor:
        return scores.softmax(dim=-1)


class Sparsemax(nn.Module):
    """The Euclidean projection onto the simplex (Martins & Astudillo 2016)."""

    def forward(self, scores: Tensor) -> Tensor:
        return cast(Tensor, sparsemax(scores, dim=-1))


class Parametric(nn.Module):
    """Base of the projections with a parameter. usual: its value where none is given. expected: which values it takes,
    for messages. Raises ModelError for any other."""

    usual: ClassVar[float]
    expected: ClassVar[str]

    def __init__(self, parameter: float | None = None) -> None:
        super().__init__()
        self.parameter = self.usual if parameter is None else parameter
        if not (math.isfinite(self.parameter) and self.takes(self.parameter)):
            raise ModelError(
                f"projection_parameter is {self.parameter:g}: expected {self.expected}; {self.usual:g} is usual."
            )

    def takes(self, parameter: float) -> bool:
        """Whether the parameter may have this finite value."""
        raise NotImplementedError


class Sparsegen(Parametric):
    """argmin_p ‖p - a‖² - λ‖p‖² over the simplex, which is sparsemax(a / (1 - λ)) (Laha et al. 2018; Meister et al.
    2021, eq. 3). The larger λ, the sparser; 0 is sparsemax."""

    usual = 0.5
    expected = "a λ below 1 (0 is sparsemax)"

    def takes(self, parameter: float) -> bool:
        return parameter < 1

    def forward(self, scores: Tensor) -> Tensor:
        return cast(Tensor, sparsemax(scores / (1 - self.parameter), dim=-1))


class Entmax(Parametric):
    """α-entmax (Peters et al. 2019): between softmax (α = 1) and sparsemax (α = 2); exact for α = 1.5 and 2, by
    bisection otherwise."""

    usual = 1.5
    expected = "an α above 1 (towards softmax) and at most 2 (sparsemax)"

    def takes(self, parameter: float) -> bool:
        return 1 < parameter <= 2

    def forward(self, scores: Tensor) -> Tensor:
        if self.parameter == 1.5:
            return cast(Tensor, entmax15(scores, dim=-1))
        if self.parameter == 2:
            return cast(Tensor, sparsemax(scores, dim=-1))
        return cast(Tensor, entmax_bisect(scores, alpha=self.parameter, dim=-1))


class Gumbel(Parametric):
    """softmax(a / τ) with temperature τ; in training Gumbel noise is added to the scores (Jang et al. 2017; Wen et al.
    2022: τ = 0.8)."""

    usual = 0.8
    expected = "a temperature above 0"

    def takes(self, parameter: float) -> bool:
        return parameter > 0

    def forward(self, scores: Tensor) -> Tensor:
        if self.training:
            scores = scores - torch.empty_like(scores).exponential_().log()
        return (scores / self.parameter).softmax(dim=-1)


def project(projection: nn.Module, scores: Tensor, allowed: Tensor) -> Tensor:
    """`projection` over the allowed tokens. A row in which nothing is allowed gets zeros, without a NaN gradient."""
    nothing = ~allowed.any(dim=-1, keepdim=True)
    open_scores = scores.masked_fill(~allowed & ~nothing, float("-inf"))
    weights: Tensor = projection(open_scores)
    return weights * allowed


#: name -> projection
PROJECTIONS: dict[str, type[nn.Module]] = {
    "softmax": Softmax,
    "sparsemax": Sparsemax,
    "sparsegen": Sparsegen,
    "entmax": Entmax,
    "gumbel": Gumbel,
}


def projection(name: str, parameter: float | None = None) -> nn.Module:
    """A new projection of that name in PROJECTIONS. parameter: None for the usual one. Raises ModelError for a value
    that it does not take, and for the parameter of one that has none."""
    kind = PROJECTIONS[name]
    if parameter is None:
        return kind()
    if not issubclass(kind, Parametric):
        taking = ", ".join(other for other, one in PROJECTIONS.items() if issubclass(one, Parametric))
        raise ModelError(
            f"projection_parameter is {parameter:g}, but the projection '{name}' has none: leave "
            f"--projection-parameter out, or give --projection one of {taking}."
        )
    return kind(parameter)
