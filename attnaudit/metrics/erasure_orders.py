"""The best and the worst order in which the tokens of a short text can be erased."""

from __future__ import annotations

import torch
from torch import Tensor


def extreme_orders(falls: Tensor) -> tuple[float, float]:
    """Return the smallest and the largest AOPC over all orders of n tokens (Edin et al. 2025).

    The AOPC (area over the perturbation curve) of an order is the mean of f(S_k) over k = 1 to n - 1. Here, S_k is the
    set of its first k tokens, and f(S) is the fall of the output if the set S is erased. The set of all n tokens is
    left out, because every order ends with it. The extremes are found by dynamic programming over the sets: the best
    order of a set is the best order of a subset that lacks one token, followed by this token.

    Args:
        falls: (2^n,) falls f(S), with n >= 2. Token i belongs to set number k if bit i of k is 1. The entries of the
            empty set and of the set of all tokens are ignored.

    Returns:
        The smallest and the largest AOPC.

    Raises:
        ValueError: The number of falls is not 2^n with n >= 2.

    Examples:
        >>> extreme_orders(torch.tensor([0.0, 0.5, 0.25, 0.75]))
        (0.25, 0.5)
    """
    size = len(falls)
    count = size.bit_length() - 1
    if count < 2 or size != 2**count:
        raise ValueError(f"falls: expected 2^n numbers, one for each set of n >= 2 tokens, but got {size}")
    falls = falls.to(torch.float64)
    sets = torch.arange(size, device=falls.device)
    sizes = sum(((sets >> token) & 1 for token in range(count)), torch.zeros_like(sets))
    lowest, highest = torch.zeros_like(falls), torch.zeros_like(falls)
    for k in range(1, count):
        these = sets[sizes == k]
        has = torch.stack([(these >> token) & 1 == 1 for token in range(count)])
        before = torch.stack([these & ~(1 << token) for token in range(count)])
        lowest[these] = falls[these] + lowest[before].masked_fill(~has, torch.inf).amin(0)
        highest[these] = falls[these] + highest[before].masked_fill(~has, -torch.inf).amax(0)
    last = sizes == count - 1
    return float(lowest[last].min()) / (count - 1), float(highest[last].max()) / (count - 1)
