"""Projections: functions that turn attention scores into weights.

A projection maps scores (B, T) to weights (B, T) that sum to one. `project` applies one to the allowed tokens only;
all other tokens get exactly zero. To add one, write a module whose `forward(scores)` maps the last dimension onto the
simplex and gives zero to scores of -inf, and give it an entry in `PROJECTIONS`. A projection with a parameter derives
from `Parametric`. "sparsemax", "sparsegen" and "entmax" need the package entmax, which the extra of the same name
installs.

Every projection is differentiable once, which training and all measures need. Second derivatives of "entmax" are
wrong, because its gradient is written by hand without a graph: never differentiate through its gradient.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn

from attnaudit.errors import ModelError


def _require_entmax(projection_name: str) -> Any:
    """Import the optional package entmax. Raise ModelError, naming the extra, if it is not installed."""
    try:
        import entmax
    except ImportError as error:
        raise ModelError(
            f"The projection '{projection_name}' needs the package entmax, which is not installed. "
            'Install it: pip install "attnaudit[entmax]"'
        ) from error
    return entmax


class Softmax(nn.Module):
    """The weights exp(a) / Σ exp(a) of the scores a."""

    def forward(self, scores: Tensor) -> Tensor:
        return scores.softmax(dim=-1)


class Sparsemax(nn.Module):
    """The Euclidean projection onto the simplex (Martins & Astudillo 2016).

    Raises:
        ModelError: The package entmax is not installed.
    """

    def __init__(self) -> None:
        super().__init__()
        self._sparsemax = _require_entmax("sparsemax").sparsemax

    def forward(self, scores: Tensor) -> Tensor:
        return cast(Tensor, self._sparsemax(scores, dim=-1))


class Parametric(nn.Module):
    """Base of the projections that have a parameter.

    Attributes:
        usual: Default value of the parameter.
        expected: Accepted values of the parameter, in words, for error messages.

    Args:
        parameter: Value of the parameter; None for `usual`.

    Raises:
        ModelError: The projection does not accept this value.
    """

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
        """Return whether the parameter may have this finite value."""
        raise NotImplementedError


class Sparsegen(Parametric):
    """Sparsegen: argmin_p ‖p - a‖² - λ‖p‖² over the simplex, which equals sparsemax(a / (1 - λ)) of the scores a.

    Laha et al. 2018; Meister et al. 2021, eq. 3. The larger λ is, the sparser are the weights; λ = 0 is sparsemax.

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

    It is exact for α = 1.5 and α = 2; other values use bisection.

    Raises:
        ModelError: α is out of range, or the package entmax is not installed.
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
    """Gumbel softmax: softmax(a / τ) of the scores a, to which Gumbel noise is added in training mode.

    τ is the temperature.

    Jang et al. 2017; Wen et al. 2022 use τ = 0.8.
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
        (B, T) weights, exactly zero on tokens that are not allowed. A row without any allowed token gets only zeros,
        and its gradients contain no NaN.
    """
    nothing = ~allowed.any(dim=-1, keepdim=True)
    masked_scores = scores.masked_fill(~allowed & ~nothing, float("-inf"))
    weights: Tensor = projection(masked_scores)
    return weights * allowed


#: name -> projection class
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
        parameter: Its parameter; None for the default.

    Raises:
        ModelError: The projection does not accept this value or has no parameter, or it needs the package entmax,
            which is not installed.
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
