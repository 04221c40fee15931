"""Comparison of logits that are computed in two ways, and attempts to run a model in a faster way."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

from torch import Tensor

#: Largest difference in logits that rounding in float32 explains, for absolute logits up to 1.
TOLERANCE = 1e-4

R = TypeVar("R")
_LOGGER = logging.getLogger(__name__)


def largest_difference(a: Tensor, b: Tensor) -> float:
    """Return the largest absolute difference between two tensors."""
    return float((a.float() - b.float()).abs().max())


def close(logits: Tensor, expected: Tensor) -> bool:
    """Return whether logits agree with the expected logits.

    They may differ by at most `TOLERANCE`. If the largest absolute expected logit exceeds 1, `TOLERANCE` is multiplied
    by it.
    """
    return largest_difference(logits, expected) <= TOLERANCE * max(1.0, float(expected.abs().max()))


def gives(compute: Callable[[], Tensor], expected: Tensor) -> bool:
    """Return whether `compute` returns the expected logits. The result is False if `compute` raises an exception."""
    logits = attempt(compute)
    return logits is not None and close(logits, expected)


def attempt(compute: Callable[[], R]) -> R | None:
    """Return the result of a faster way to run a model, or None if the model cannot be run in this way.

    The model is then run in the slower way. Its own code may fail with any exception, which is logged at the level
    DEBUG.
    """
    try:
        return compute()
    except Exception:
        _LOGGER.debug("A faster way to run the model failed; the slower way is used.", exc_info=True)
        return None
