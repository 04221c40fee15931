"""Discordant and tied pairs of many rows at once: pair by pair within blocks, and by a table of blocks across them.

Shapes: R rows, T positions; the real ones come first. b: positions of a block, K blocks of a row.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

#: A row of at most so many positions is one block.
ONE_BLOCK = 32
#: Positions of a block -> the longest row that is cut into such blocks.
BLOCKS = {8: 128, 16: 1024, 32: 4096}
#: Blocks whose pairs are compared at once: they stay near the processor.
BLOCKS_AT_ONCE = 2**13


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
    order_x, same_x = _ordered(x, real)
    order_y, same_y = _ordered(y, real)
    rank_x, rank_y = ((~same).cumsum(1) - 1 for same in (same_x, same_y))
    same_x, same_y = same_x & real, same_y & real
    at_y = torch.empty_like(order_y).scatter_(1, order_y, place.expand_as(order_y))
    # By x, equal values of x by y: then a tie in x is no inversion. The place in the order of y tells the token.
    bits = max(1, (x.shape[1] - 1).bit_length())
    token = _sorted((rank_x << bits) + at_y.gather(1, order_x)) & ((1 << bits) - 1)
    y_by_x = rank_y.gather(1, token)
    if weights is None:
        along_x = along_y = None
        every = lengths.double() * (lengths - 1) / 2
    else:
        one = weights.double()
        along_y = one.gather(1, order_y)
        along_x = along_y.gather(1, token)
        every = (one.sum(1).square() - one.square().sum(1)) / 2
    tied_x, cubes_x = _tied(same_x, along_x)
    tied_y, cubes_y = _tied(same_y, along_y)
    tied_both, _ = _tied(same_x & _repeats(y_by_x) if bool(same_x.any()) else same_x, along_x)
    return Pairs(every, tied_x, tied_y, tied_both, _inversions(y_by_x, along_x), cubes_x, cubes_y)


def _ordered(values: Tensor, real: Tensor) -> tuple[Tensor, Tensor]:
    """(R, T) which values come one after another in ascending order, padding last, and where one repeats the one
    before it. numpy sorts many rows several times as fast as torch does on a CPU."""
    values = torch.where(real, values.double(), torch.inf)
    if values.device.type == "cpu":
        endless = bool(((values == torch.inf) & real).any())  # must not be mixed with the padding
        order = torch.from_numpy(np.argsort(values.numpy(), axis=1, kind="stable" if endless else None))
    else:
        order = values.argsort(dim=1, stable=True)
    return order, _repeats(values.gather(1, order))


def _sorted(values: Tensor) -> Tensor:
    if values.device.type == "cpu":
        return torch.from_numpy(np.sort(values.numpy(), axis=1))
    return values.sort(1).values


def _repeats(ordered: Tensor) -> Tensor:
    """(R, T) True where a value equals the one before it."""
    first = torch.zeros_like(ordered[:, :1], dtype=torch.bool)
    return torch.cat([first, ordered[:, 1:] == ordered[:, :-1]], dim=1)


def _tied(repeats: Tensor, weight: Tensor | None) -> tuple[Tensor, Tensor]:
    """Weight of the pairs within runs of repeats, and Σ t(t-1)(t-2) over the runs of t."""
    if not bool(repeats.any()):
        nothing = torch.zeros(len(repeats), dtype=torch.float64, device=repeats.device)
        return nothing, nothing
    place = torch.arange(repeats.shape[1], device=repeats.device).expand_as(repeats)
    start = torch.where(repeats, 0, place).cummax(1).values
    number = (place - start).double()
    if weight is None:
        inside = number
    else:
        before = weight.cumsum(1) - weight
        inside = (before - before.gather(1, start)) * weight * repeats
    return inside.sum(1), 3 * (number * (number - 1)).sum(1)


def _inversions(values: Tensor, weight: Tensor | None) -> Tensor:
    """values (R, T) in 0..T-1 -> (R,) weight of the pairs of which the first is greater.

    Both within a block of b neighbouring positions: pair by pair. In different blocks of positions and of values (b
    neighbours in their ascending order): by a table of K × K blocks. In one block of values, but different ones of
    positions: pair by pair again, in the order of the values.
    """
    rows, width = values.shape
    if width <= ONE_BLOCK:
        return _within(values, weight).double()
    size = next((size for size, most in BLOCKS.items() if width <= most), 64)
    blocks = -(-width // size)
    behind = blocks * size - width
    values = torch.nn.functional.pad(values, (0, behind), value=width)
    bits = (blocks * size - 1).bit_length()
    place = torch.arange(blocks * size, device=values.device)
    upwards = _sorted((values << bits) + place) & ((1 << bits) - 1)  # positions, by value
    block = upwards // size
    pairs = torch.cat([values.view(-1, size), block.view(-1, size)])
    cell = block * blocks + place // size
    if weight is None:
        found = _within(pairs, None)
        filled = torch.ones((), device=values.device).expand_as(cell)
    else:
        weight = torch.nn.functional.pad(weight, (0, behind))
        filled = weight.gather(1, upwards)
        found = _within(pairs, torch.cat([weight.view(-1, size), filled.view(-1, size)]))
    table = filled.new_zeros(rows, blocks * blocks).scatter_add_(1, cell, filled).view(rows, blocks, blocks)
    before = table.cumsum(1) - table  # (R, K, K) in earlier blocks of positions
    greater = before.sum(2, keepdim=True) - before.cumsum(2)
    near = found.view(2, rows, blocks).sum((0, 2), dtype=torch.float64)
    return near + (table * greater).sum((1, 2), dtype=torch.float64)


def _within(values: Tensor, weight: Tensor | None) -> Tensor:
    """(N, b) -> (N,) weight of the pairs of which the first is greater, each pair compared."""
    # Positions first, so that memory is read along the blocks. A difference of whole numbers, cut to 0 and 1, says
    # which is greater.
    count, size = values.shape
    across = values.T.to(torch.float32 if weight is None else torch.float64).contiguous()
    along = None if weight is None else weight.T.contiguous()
    found = across.new_zeros(count)
    room = across.new_empty(size - 1, min(count, BLOCKS_AT_ONCE))
    for start in range(0, count, BLOCKS_AT_ONCE):
        part = slice(start, start + BLOCKS_AT_ONCE)
        sums, some = found[part], across[:, part]
        for i in range(size - 1):
            greater = room[: size - 1 - i, : len(sums)]
            torch.sub(some[i], some[i + 1 :], out=greater).clamp_(0, 1)
            if along is None:
                sums += greater.sum(0)
            else:
                sums.addcmul_(along[i, part], greater.mul_(along[i + 1 :, part]).sum(0))
    return found
