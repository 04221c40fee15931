"""The outputs for texts in which units are masked one by one, or all at once."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitMasks:
    """The class probabilities of a batch of B instances with masked units, float64.

    They are NaN for instances with a single unit, and at positions where no unit starts. T is the number of tokens
    (padded), and C the number of classes.

    Attributes:
        without: (B, T, C) only one unit is masked.
        alone: (B, T, C) all units except one are masked.
        nothing: (B, C) all units are masked.
    """

    without: Tensor
    alone: Tensor
    nothing: Tensor
