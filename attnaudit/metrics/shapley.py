"""Exact Shapley values of a game with few players."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def shapley_values(payoffs: Tensor) -> Tensor:
    """Return the Shapley value of each player (Shapley 1953).

    φ_i = Σ_{S without i} |S|! (n - |S| - 1)! / n! · (v(S ∪ i) - v(S)). This is the mean contribution of player i over
    all orders in which the players can join.

    Args:
        payoffs: (2^n, ...) payoff v(S) of each coalition, of one game or of several games. Player i belongs to
            coalition number k if bit i of k is 1.

    Returns:
        (n, ...) values, float64. They sum to v(all players) - v(no players).

    Raises:
        ValueError: The number of payoffs is not a power of two.

    Examples:
        >>> shapley_values(torch.tensor([0.0, 1.0, 2.0, 4.0])).tolist()
        [1.5, 2.5]
    """
    size = len(payoffs)
    players = size.bit_length() - 1
    if size != 2**players:
        raise ValueError(f"payoffs: expected 2^n numbers, one for each coalition of n players, but got {size}")
    payoffs = payoffs.to(torch.float64)
    coalitions = torch.arange(size, device=payoffs.device)
    sizes = sum(((coalitions >> player) & 1 for player in range(players)), torch.zeros_like(coalitions))
    share = torch.tensor(
        [1 / (players * math.comb(players - 1, k)) for k in range(players)], dtype=torch.float64, device=payoffs.device
    )
    values = []
    for player in range(players):
        before = coalitions[(coalitions >> player) & 1 == 0]
        values.append(torch.tensordot(share[sizes[before]], payoffs[before + (1 << player)] - payoffs[before], dims=1))
    return torch.stack(values) if values else payoffs[:0]
