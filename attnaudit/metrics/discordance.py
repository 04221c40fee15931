"""Counts of discordant and tied pairs, for many rows at once.

A row is divided into blocks of neighbouring positions. Pairs within a block are compared one by one. Most pairs from
different blocks are counted together: a table shows how many values each block has in each range of values.

Shapes: R rows, T positions (real positions come first), b positions per block, K blocks per row.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

#: A row with at most this many positions is a single block.
ONE_BLOCK = 32
#: Positions per block -> length of the longest row with blocks of this size. Longer rows have blocks of 64.
BLOCKS = {8: 128, 16: 1024, 32: 4096}
#: Number of blocks whose pairs are compared at once. The number is chosen such that the blocks fit in the processor's
#: cache.
BLOCKS_AT_ONCE = 2**13


class Pairs(NamedTuple):
    """Numbers of pairs in each of R rows. Every attribute is a tensor (R,) in float64.

    If there are weights, each number is a sum of the weights of pairs. The weight of a pair is the product of the
    weights of its two elements.

    Attributes:
        every: All pairs.
        tied_x: Pairs tied in x.
        tied_y: Pairs tied in y.
        tied_both: Pairs tied in both x and y.
        discordant: Pairs that x and y order differently.
        cubes_x: Σ t(t-1)(t-2) over the groups of t values tied in x, for the variance of τ. It is never weighted.
        cubes_y: The same for y.
    """

    every: Tensor
    tied_x: Tensor
    tied_y: Tensor
    tied_both: Tensor
    discordant: Tensor
    cubes_x: Tensor
    cubes_y: Tensor

    @property
    def difference(self) -> Tensor:
        """Number (or weight) of the concordant pairs, minus the number (or weight) of the discordant pairs."""
        return self.every - self.tied_x - self.tied_y + self.tied_both - 2 * self.discordant


def count_pairs(x: Tensor, y: Tensor, lengths: Tensor, weights: Tensor | None = None) -> Pairs:
    """Count the pairs of every row.

    Args:
        x: (R, T) values without NaN.
        y: (R, T) values without NaN.
        lengths: (R,) number of real positions. They come first in each row.
        weights: (R, T) weights, 0 after the real positions. If None, every pair has weight 1.

    Examples:
        >>> pairs = count_pairs(torch.tensor([[1.0, 2, 3]]), torch.tensor([[1.0, 3, 2]]), torch.tensor([3]))
        >>> pairs.discordant.item(), pairs.difference.item()
        (1.0, 1.0)
    """
    position = torch.arange(x.shape[1], device=x.device)
    real = position < lengths[:, None]
    order_x, repeats_x = _ordered(x, real)
    order_y, repeats_y = _ordered(y, real)
    same_x, same_y = repeats_x & real, repeats_y & real
    ties_in_x, ties_in_y = bool(same_x.any()), bool(same_y.any())
    rank_in_y = torch.empty_like(order_y).scatter_(1, order_y, position.expand_as(order_y))
    token = rank_in_y.gather(1, order_x)
    if ties_in_x:
        # The values are sorted by x, and equal values of x by y, so a tie in x is not an inversion. Each sorting key
        # contains the token's position in the order of y, so the key identifies the token.
        bits = max(1, (x.shape[1] - 1).bit_length())
        token = _sorted((_ranks(repeats_x) << bits) + token) & ((1 << bits) - 1)
    # Padding must not be inverted. It follows the real values, and all of it has the same rank.
    y_by_x = _ranks(repeats_y).gather(1, token) if ties_in_y else token.minimum(lengths[:, None])
    if weights is None:
        along_x = along_y = None
        every = lengths.double() * (lengths - 1) / 2
    else:
        weights = weights.double()
        along_y = weights.gather(1, order_y)
        along_x = along_y.gather(1, token)
        every = (weights.sum(1).square() - weights.square().sum(1)) / 2
    tied_x, cubes_x = _tied(same_x, along_x)
    tied_y, cubes_y = _tied(same_y, along_y)
    tied_both, _ = _tied(same_x & _repeats(y_by_x) if ties_in_x else same_x, along_x)
    return Pairs(every, tied_x, tied_y, tied_both, _inversions(y_by_x, along_x), cubes_x, cubes_y)


def _ordered(values: Tensor, real: Tensor) -> tuple[Tensor, Tensor]:
    """Sort every row in ascending order, with padding at the end.

    Returns:
        (R, T) positions in ascending order of their values; and an (R, T) mask of the sorted values, True where a value
        equals the value before it.
    """
    values, whole = values.double(), bool(real.all())
    if not whole:
        values = torch.where(real, values, torch.inf)
    if values.device.type == "cpu":
        # On a CPU, numpy sorts many rows several times as fast as torch. Real values that are infinite tie with the
        # padding, so a stable sort must keep them before the padding.
        infinite = not whole and bool(((values == torch.inf) & real).any())
        order = torch.from_numpy(np.argsort(values.numpy(), axis=1, kind="stable" if infinite else None))
    else:
        order = values.argsort(dim=1, stable=True)
    return order, _repeats(values.gather(1, order))


def _sorted(values: Tensor) -> Tensor:
    """Sort every row in ascending order. On a CPU, use numpy, which is faster."""
    if values.device.type == "cpu":
        return torch.from_numpy(np.sort(values.numpy(), axis=1))
    return values.sort(1).values


def _ranks(repeats: Tensor) -> Tensor:
    """Return the ranks (R, T) of sorted values, counted from 0. Equal values have the same rank.

    Args:
        repeats: (R, T) True where a value equals the value before it.
    """
    return (~repeats).cumsum(1) - 1


def _repeats(ordered: Tensor) -> Tensor:
    """Return an (R, T) mask, True where a value equals the value before it."""
    first = torch.zeros_like(ordered[:, :1], dtype=torch.bool)
    return torch.cat([first, ordered[:, 1:] == ordered[:, :-1]], dim=1)


def _tied(repeats: Tensor, weight: Tensor | None) -> tuple[Tensor, Tensor]:
    """Count the pairs of equal values in sorted rows.

    Args:
        repeats: (R, T) True where a value equals the value before it.
        weight: (R, T) weights in the order of the sorted values. If None, every pair has weight 1.

    Returns:
        (R,) total weight of the pairs of equal values; and (R,) Σ t(t-1)(t-2) over the groups of t equal values.
    """
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
    """Return the total weight (R,) of the inversions: the pairs whose first value is greater than the second.

    Every value belongs to a position block (b neighbouring positions) and to a value block (b neighbouring ranks).
    There are three kinds of pairs:

    - Pairs in the same position block are compared one by one.
    - Pairs in the same value block, but in different position blocks, are also compared one by one: the values of the
      value block are sorted, and their position blocks are compared.
    - All other pairs are counted from a K × K table. An entry is the number of values, or their total weight, that one
      position block has in one value block.

    Args:
        values: (R, T) ranks in 0..T-1.
        weight: (R, T) weights. The weight of a pair is the product of the weights of its elements. If None, every pair
            has weight 1.
    """
    rows, width = values.shape
    if width <= ONE_BLOCK:
        return _inversions_within(values, weight).double()
    size = next((size for size, most in BLOCKS.items() if width <= most), 64)
    blocks = -(-width // size)
    padding = blocks * size - width
    values = torch.nn.functional.pad(values, (0, padding), value=width)
    bits = (blocks * size - 1).bit_length()
    if 2 * bits < 32:  # Short keys are sorted twice as fast.
        values = values.int()
    position = torch.arange(blocks * size, device=values.device, dtype=values.dtype)
    by_value = _sorted((values << bits) + position) & ((1 << bits) - 1)  # positions in the order of their values
    block = by_value >> (size.bit_length() - 1)
    pairs = torch.cat([values.view(-1, size), block.view(-1, size)])
    cell = block.long() * blocks + position // size
    if weight is None:
        near = _inversions_within(pairs, None)
        filled = torch.ones((), device=values.device).expand_as(cell)
    else:
        weight = torch.nn.functional.pad(weight, (0, padding))
        filled = weight.gather(1, by_value.long())
        near = _inversions_within(pairs, torch.cat([weight.view(-1, size), filled.view(-1, size)]))
    table = filled.new_zeros(rows, blocks * blocks).scatter_add_(1, cell, filled).view(rows, blocks, blocks)
    before = table.cumsum(1) - table  # (R, K, K) counts in earlier blocks of positions
    greater = before.sum(2, keepdim=True) - before.cumsum(2)
    near = near.view(2, rows, blocks).sum((0, 2), dtype=torch.float64)
    return near + (table * greater).sum((1, 2), dtype=torch.float64)


def _inversions_within(values: Tensor, weight: Tensor | None) -> Tensor:
    """Return the total weight (N,) of the inversions in each row (N, b), by comparing every pair.

    Args:
        values: (N, b) whole numbers.
        weight: (N, b) weights. The weight of a pair is the product of the weights of its elements. If None, every pair
            has weight 1.
    """
    # Positions are the first dimension, so that memory is read along the blocks. The difference of two whole numbers,
    # clamped to [0, 1], is 1 if the first number is greater, and 0 otherwise.
    count, size = values.shape
    across = values.T.to(torch.float32 if weight is None else torch.float64).contiguous()
    along = None if weight is None else weight.T.contiguous()
    total = across.new_zeros(count)
    buffer = across.new_empty(size - 1, min(count, BLOCKS_AT_ONCE))
    for start in range(0, count, BLOCKS_AT_ONCE):
        part = slice(start, start + BLOCKS_AT_ONCE)
        sums, ranks = total[part], across[:, part]
        for i in range(size - 1):
            greater = buffer[: size - 1 - i, : len(sums)]
            torch.sub(ranks[i], ranks[i + 1 :], out=greater).clamp_(0, 1)
            if along is None:
                sums += greater.sum(0)
            else:
                sums.addcmul_(along[i, part], greater.mul_(along[i + 1 :, part]).sum(0))
    return total
