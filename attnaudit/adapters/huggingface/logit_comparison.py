"""Comparison of logits that are computed in two ways."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

#: Largest difference in logits that rounding in float32 explains, for absolute logits up to 1.
TOLERANCE = 1e-4


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
    try:
        logits = compute()
    # A model that cannot be run in part may fail with any exception.
    except Exception:
        return False
    return close(logits, expected)
