"""Discordant and tied pairs of many rows at once in O(T log T), by counting inversions bit by bit.

Shapes: R rows, T positions; the real ones come first.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Pairs(NamedTuple):
    """Each (R,) float64: weight of all pairs, of those tied in x, in y and in both, and of the discordant ones. cubes_x
    and cubes_y: Σ t(t-1)(t-2) over the groups of t tied values, for the variance of tau (not weighted)."""

    every: Tensor
    tied_x: Tensor
    tied_y: Tensor
    tied_both: Tensor
    discordant: Tensor
    cubes_x: Tensor
    cubes_y: Tensor

    @property
    def difference(self) -> Tensor:
        """Concordant less discordant."""
        return self.every - self.tied_x - self.tied_y + self.tied_both - 2 * self.discordant


def count_pairs(x: Tensor, y: Tensor, lengths: Tensor, weights: Tensor | None = None) -> Pairs:
    """Pairs of the first `lengths` (R,) values of x and y (R, T), each counted once, or with the product of its two
    weights (R, T), which must be 0 behind the real ones. Values must not be NaN.

    >>> found = count_pairs(torch.tensor([[1.0, 2, 3]]), torch.tensor([[1.0, 3, 2]]), torch.tensor([3]))
    >>> found.discordant.item(), found.difference.item()
    (1.0, 1.0)
    """
    place = torch.arange(x.shape[1], device=x.device)
    real = place < lengths[:, None]
    x, y = (torch.where(real, value.double(), torch.inf) for value in (x, y))
    by_y = y.sort(dim=1, stable=True)
    by_both = x.gather(1, by_y.indices).sort(dim=1, stable=True)
    order = by_y.indices.gather(1, by_both.indices)
    y_by_x = by_y.values.gather(1, by_both.indices)
    # Equal values of y in the order of x, so that a tie in either is no inversion.
    ranks = torch.empty_like(order).scatter_(
        1, y_by_x.sort(dim=1, stable=True).indices, place.expand_as(order).contiguous()
    )
    if weights is None:
        one = real.double()
        along_y = along_x = one
        every = lengths.double() * (lengths - 1) / 2
    else:
        one = weights.double()
        along_y, along_x = one.gather(1, by_y.indices), one.gather(1, order)
        every = (one.sum(1).square() - one.square().sum(1)) / 2
    same_x, same_y = _repeats(by_both.values), _repeats(by_y.values)
    tied_x, cubes_x = _tied(same_x, along_x, real)
    tied_y, cubes_y = _tied(same_y, along_y, real)
    tied_both, _ = _tied(same_x & _repeats(y_by_x), along_x, real)
    return Pairs(
        every, tied_x, tied_y, tied_both, _inversions(ranks, None if weights is None else along_x), cubes_x, cubes_y
    )


def _repeats(ordered: Tensor) -> Tensor:
    """(R, T) True where a value equals the one before it."""
    first = torch.zeros_like(ordered[:, :1], dtype=torch.bool)
    return torch.cat([first, ordered[:, 1:] == ordered[:, :-1]], dim=1)


def _tied(repeats: Tensor, weight: Tensor, real: Tensor) -> tuple[Tensor, Tensor]:
    """Weight of the pairs within runs of repeats, and Σ t(t-1)(t-2) over the runs of t."""
    if not bool((repeats & real).any()):
        nothing = torch.zeros(len(repeats), dtype=torch.float64, device=repeats.device)
        return nothing, nothing
    place = torch.arange(repeats.shape[1], device=repeats.device).expand_as(repeats)
    start = torch.where(repeats, 0, place).cummax(1).values
    before = weight.cumsum(1) - weight
    inside = (before - before.gather(1, start)) * weight * real
    number = ((place - start) * real).double()
    return inside.sum(1), 3 * (number * (number - 1)).sum(1)


def _inversions(ranks: Tensor, weight: Tensor | None) -> Tensor:
    """ranks (R, T), each row a permutation of 0..T-1 -> (R,) weight of the pairs that stand the wrong way round.

    From the highest bit down, ranks that agree in all higher bits stand together, in their first order; among them each
    rank with the bit unset has been passed by those before it that have it set.
    """
    width = ranks.shape[1]
    place = torch.arange(width, device=ranks.device)
    found = torch.zeros(len(ranks), dtype=torch.float64, device=ranks.device)
    for bit in reversed(range((width - 1).bit_length())):
        start = (place >> (bit + 1)) << (bit + 1)
        unset = (width - start).clamp(max=1 << bit)
        high = (ranks >> bit) & 1
        ones = high.cumsum(1) - high
        ones = ones - ones[:, start]
        if weight is None:
            found += (ones * (1 - high)).sum(1)
        else:
            heavy = high * weight
            ahead = heavy.cumsum(1) - heavy
            found += ((ahead - ahead[:, start]) * (weight - heavy)).sum(1)
        if bit == 0:
            break
        target = start + torch.where(high.bool(), unset + ones, place - start - ones)
        ranks = torch.empty_like(ranks).scatter_(1, target, ranks)
        weight = None if weight is None else torch.empty_like(weight).scatter_(1, target, weight)
    return found
