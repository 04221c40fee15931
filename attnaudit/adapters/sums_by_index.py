"""Sums of values by index, whose rounding is the same in every run."""

from __future__ import annotations

from torch import Tensor


def added_at(sums: Tensor, index: Tensor, values: Tensor) -> Tensor:
    """Return sums to which values are added.

    On a GPU, `index_add` adds in an order that changes from run to run, and so do its rounding errors. This function
    always adds in the same order.

    Args:
        sums: (S, ...) sums.
        index: (N,) for each value, the sum that it is added to.
        values: (N, ...) values.
    """
    if sums.is_cuda:
        return sums.index_put((index,), values, accumulate=True)
    return sums.index_add(0, index, values)
