"""Projections: functions that turn attention scores into weights.

A projection maps scores (B, T) to weights (B, T) that sum to one. `project` applies a projection to the allowed tokens
only. All other tokens get the weight zero. "sparsemax", "sparsegen" and "entmax" need the package entmax, which `pip
install "attnaudit[entmax]"` installs.

To add a projection, write a subclass of `nn.Module` and add it to `PROJECTIONS`. Its `forward(scores)` must map the
last dimension onto the simplex and give scores of -inf the weight zero. A projection with a parameter derives from
`Parametric`.

Every projection must be differentiable once. First derivatives are enough for training and for all measures. Second
derivatives of "entmax" are wrong, because the package computes the gradient without an autograd graph. Never
differentiate through this gradient.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn

from attnaudit.errors import ModelError


def _require_entmax(projection_name: str) -> Any:
    """Import the optional package entmax.

    Raises:
        ModelError: The package is not installed. The message says how to install it.
    """
    try:
        import entmax
    except ImportError as error:
        raise ModelError(
            f"The projection '{projection_name}' needs the package entmax, which is not installed. "
            'Install it: pip install "attnaudit[entmax]"'
        ) from error
    return entmax


class Softmax(nn.Module):
    """Softmax: the weights exp(a_i) / Σ_j exp(a_j) for scores a."""

    def forward(self, scores: Tensor) -> Tensor:
        return scores.softmax(dim=-1)


class Sparsemax(nn.Module):
    """Sparsemax: the Euclidean projection of the scores onto the simplex (Martins & Astudillo 2016).

    Raises:
        ModelError: The package entmax is not installed.
    """

    def __init__(self) -> None:
        super().__init__()
        self._sparsemax = _require_entmax("sparsemax").sparsemax

    def forward(self, scores: Tensor) -> Tensor:
        return cast(Tensor, self._sparsemax(scores, dim=-1))


class Parametric(nn.Module):
    """The base class of projections with a parameter.

    Attributes:
        usual: Default value of the parameter.
        expected: The valid values of the parameter in words, for error messages.

    Args:
        parameter: Value of the parameter; None for the default.

    Raises:
        ModelError: The value is not valid for the projection.
    """

    usual: ClassVar[float]
    expected: ClassVar[str]

    def __init__(self, parameter: float | None = None) -> None:
        super().__init__()
        self.parameter = self.usual if parameter is None else parameter
        if not (math.isfinite(self.parameter) and self.takes(self.parameter)):
            raise ModelError(
                f"projection_parameter is {self.parameter:g}: expected {self.expected}. The default is {self.usual:g}."
            )

    def takes(self, parameter: float) -> bool:
        """Return whether a finite value is valid for the parameter."""
        raise NotImplementedError


class Sparsegen(Parametric):
    """Sparsegen: the weights p on the simplex that minimise ‖p - a‖² - λ‖p‖² for scores a.

    They are equal to sparsemax(a / (1 - λ)). A larger λ gives sparser weights; λ = 0 is sparsemax. Sources: Laha et al.
    2018; Meister et al. 2021, eq. 3.

    Raises:
        ModelError: λ is 1 or more, or the package entmax is not installed.
    """

    usual = 0.5
    expected = "a λ below 1 (0 is sparsemax)"

    def __init__(self, parameter: float | None = None) -> None:
        super().__init__(parameter)
        self._sparsemax = _require_entmax("sparsegen").sparsemax

    def takes(self, parameter: float) -> bool:
        return parameter < 1

    def forward(self, scores: Tensor) -> Tensor:
        return cast(Tensor, self._sparsemax(scores / (1 - self.parameter), dim=-1))


class Entmax(Parametric):
    """α-entmax (Peters et al. 2019), which lies between softmax (α = 1) and sparsemax (α = 2).

    It is computed exactly for α = 1.5 and α = 2, and by bisection for other values.

    Raises:
        ModelError: α is not above 1 and at most 2, or the package entmax is not installed.
    """

    usual = 1.5
    expected = "an α above 1 (towards softmax) and at most 2 (sparsemax)"

    def __init__(self, parameter: float | None = None) -> None:
        super().__init__(parameter)
        entmax = _require_entmax("entmax")
        exact = {1.5: entmax.entmax15, 2: entmax.sparsemax}
        self._entmax = exact.get(self.parameter) or partial(entmax.entmax_bisect, alpha=self.parameter)

    def takes(self, parameter: float) -> bool:
        return 1 < parameter <= 2

    def forward(self, scores: Tensor) -> Tensor:
        return cast(Tensor, self._entmax(scores, dim=-1))


class Gumbel(Parametric):
    """Gumbel softmax: the weights softmax(a / τ) for scores a and a temperature τ (Jang et al. 2017).

    In training mode, Gumbel noise is added to the scores. The default τ = 0.8 is that of Wen et al. 2022.

    Raises:
        ModelError: τ is not above 0.
    """

    usual = 0.8
    expected = "a temperature above 0"

    def takes(self, parameter: float) -> bool:
        return parameter > 0

    def forward(self, scores: Tensor) -> Tensor:
        if self.training:
            scores = scores - torch.empty_like(scores).exponential_().log()
        return (scores / self.parameter).softmax(dim=-1)


def project(projection: nn.Module, scores: Tensor, allowed: Tensor) -> Tensor:
    """Apply a projection to the allowed tokens of each row.

    Args:
        projection: The module to apply.
        scores: (B, T) attention scores.
        allowed: (B, T) mask, True on tokens that may receive attention.

    Returns:
        (B, T) weights, exactly zero on tokens that are not allowed. In a row without any allowed token, all weights are
        zero, and gradients contain no NaN.
    """
    nothing = ~allowed.any(dim=-1, keepdim=True)
    masked_scores = scores.masked_fill(~allowed & ~nothing, float("-inf"))
    weights: Tensor = projection(masked_scores)
    return weights * allowed


#: Name -> projection class.
PROJECTIONS: dict[str, type[nn.Module]] = {
    "softmax": Softmax,
    "sparsemax": Sparsemax,
    "sparsegen": Sparsegen,
    "entmax": Entmax,
    "gumbel": Gumbel,
}


def projection(name: str, parameter: float | None = None) -> nn.Module:
    """Build a projection.

    Args:
        name: A name in `PROJECTIONS`.
        parameter: Value of its parameter; None for the default.

    Raises:
        ModelError: The value is not valid, the projection has no parameter, or it needs the package entmax, which is
            not installed.
    """
    projection_class = PROJECTIONS[name]
    if parameter is None:
        return projection_class()
    if not issubclass(projection_class, Parametric):
        parametric = ", ".join(other for other, item in PROJECTIONS.items() if issubclass(item, Parametric))
        raise ModelError(
            f"projection_parameter is {parameter:g}, but the projection '{name}' has no parameter. Remove "
            f"--projection-parameter, or use --projection with one of {parametric}."
        )
    return projection_class(parameter)
