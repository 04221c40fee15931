"""Rank agreement: Kendall's tau-b with its p-value, Shieh's weighted tau, and how many pairs are nearly tied."""

from __future__ import annotations

import math
from functools import cache
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor

from attnaudit.metrics.discordance import Pairs, count_pairs
from attnaudit.metrics.padded_rows import compact, length_chunks, padded_rows

COUNTING_COST = 128  # elements that counting holds for each token, so that a chunk stays near the processor
EXACT_LIMIT = 33  # scipy's own limit for the exact null distribution


class Kendall(NamedTuple):
    """Tau-b and its two-sided p-value, each of the rows' leading shape."""

    tau: Tensor
    p_value: Tensor


def kendall(x: Tensor, y: Tensor, mask: Tensor | None = None) -> Kendall:
    """Kendall's tau-b and its p-value in one pass; see `kendall_tau_b` and `kendall_p_value`.

    >>> result = kendall(torch.tensor([[1.0, 2, 3, 4]]), torch.tensor([[1.0, 2, 4, 3]]))
    >>> round(result.tau.item(), 4), round(result.p_value.item(), 4)
    (0.6667, 0.3333)
    """
    found, lengths, leading = _counted(x, y, mask)
    return Kendall(_tau(found).reshape(leading), _p_value(found, lengths).reshape(leading))


def kendall_tau_b(x: Tensor, y: Tensor, mask: Tensor | None = None) -> Tensor:
    """Kendall's tau-b of each row over its real tokens.

    tau_b = (C - D) / sqrt((P - T_x)(P - T_y)) with C concordant and D discordant pairs, P all pairs, T_x and T_y the
    pairs tied in x and in y. Differences are taken in float64; nothing is rounded.

    Shapes: x, y (..., T); mask (..., T) boolean, True at real tokens, every position if None; result (...), in [-1, 1].
    NaN (undefined) for fewer than two real tokens, when either side is all tied, or when a real value is NaN.
    Rows of about one length are counted together, in bounded memory.
    Raises ValueError for shapes that differ or a mask that is not boolean.
    Source: Kendall 1945; used per instance by Jain & Wallace 2019 §4.1 and Meister et al. 2021 §4.

    >>> x = torch.tensor([[0.1, 0.2, 0.7, 0.0]])
    >>> y = torch.tensor([[0.3, 0.3, 0.4, 9.0]])
    >>> round(kendall_tau_b(x, y, torch.tensor([[True, True, True, False]])).item(), 4)
    0.8165
    """
    found, _, leading = _counted(x, y, mask)
    return _tau(found).reshape(leading)


def kendall_p_value(x: Tensor, y: Tensor, mask: Tensor | None = None) -> Tensor:
    """Two-sided p-value of `kendall_tau_b` against independence, as `scipy.stats.kendalltau` with method "auto".

    Exact (the inversions of a random permutation) without ties when n <= 33 or at most one pair departs from perfect
    order; otherwise the normal approximation with the variance corrected for ties. It mostly measures n: report the
    fraction at or below .05, never gate on it. Shapes, undefined rows and errors as in `kendall_tau_b`.

    >>> x = torch.arange(5.0).unsqueeze(0)
    >>> round(kendall_p_value(x, x).item(), 6)  # 2 / 5!
    0.016667
    """
    return kendall(x, y, mask).p_value


def weighted_kendall_tau(x: Tensor, y: Tensor, weights: Tensor, mask: Tensor | None = None) -> Tensor:
    """Shieh's weighted tau of each row: every pair counts with the product of its two weights.

    tau_w = sum_{i<j} w_i w_j sgn(x_i - x_j) sgn(y_i - y_j) / sum_{i<j} w_i w_j. Ties add nothing above and stay below.
    Without ties this is `scipy.stats.weightedtau(x, y, rank=False, weigher=lambda r: w[r], additive=False)`.

    Shapes: x, y, weights (..., T), weights at least 0; mask (..., T) boolean; result (...), in [-1, 1].
    NaN (undefined) when no two real tokens have weight, when all pairs with weight are tied in x or in y, or when a
    real value is NaN. Raises ValueError for shapes that differ, a mask that is not boolean, or a negative weight.
    Source: Shieh 1998; Wen, Subbalakshmi & Yang 2022 §3.2.

    >>> information, attention = torch.tensor([3.0, 1.0, 2.0]), torch.tensor([0.7, 0.2, 0.1])
    >>> round(weighted_kendall_tau(information, attention, attention).item(), 4)
    0.8261
    """
    rows = padded_rows(mask, x=x, y=y, weights=weights)
    _, lengths, (left, right, weight) = compact(rows.mask, *rows.values)
    lengths = torch.where(_holds_nan(rows.values, rows.mask), 0, lengths)
    weight = torch.where(torch.arange(weight.shape[-1], device=weight.device) < lengths[:, None], weight.double(), 0.0)
    if bool((weight < 0).any()):
        raise ValueError(f"weights: expected weights of at least 0 but got {float(weight.min())}")
    tau = torch.full(lengths.shape, torch.nan, dtype=torch.float64, device=left.device)
    for index, width in length_chunks(lengths, lambda length: COUNTING_COST * length):
        some = [value[index, :width] for value in (left, right, weight)]
        pairs = count_pairs(some[0], some[1], lengths[index], some[2])
        defined = pairs.every > 0
        if bool((pairs.tied_x + pairs.tied_y).any()):
            defined &= _varies(some[0], some[2]) & _varies(some[1], some[2])
        tau[index] = torch.where(defined, (pairs.difference / pairs.every).clamp(-1.0, 1.0), torch.nan)
    return tau.reshape(rows.leading)


def near_tied_pairs(x: Tensor, mask: Tensor | None = None, tolerance: float = 1e-6) -> Tensor:
    """The fraction of each row's pairs whose values lie within `tolerance` of each other, exact ties included.

    Rounding in float32 can break or make such ties at random, so an agreement is reported with their share.

    Shapes: x (..., T); mask (..., T) boolean; result (...), in [0, 1]. NaN for fewer than two real tokens or a real
    NaN. Raises ValueError for a mask that is not boolean or a negative tolerance.

    >>> near_tied_pairs(torch.tensor([[0.5, 0.5 + 1e-9, 0.1]], dtype=torch.float64)).item()
    0.3333333333333333
    """
    if not tolerance >= 0:
        raise ValueError(f"tolerance: expected a number of at least 0 but got {tolerance}")
    rows = padded_rows(mask, x=x)
    invalid = _holds_nan(rows.values, rows.mask)
    lengths = rows.mask.sum(-1)
    ordered = torch.where(rows.mask, rows.values[0], torch.inf).sort(-1).values
    reach = torch.searchsorted(ordered, ordered + tolerance, right=True).minimum(lengths[:, None])
    place = torch.arange(1, ordered.shape[-1] + 1, device=ordered.device)
    near = (reach - place).clamp(min=0).sum(-1).to(torch.float64)
    pairs = lengths * (lengths - 1) / 2
    share = torch.where((lengths >= 2) & ~invalid, near / pairs.clamp(min=1), torch.nan)
    return share.reshape(rows.leading)


def _holds_nan(values: tuple[Tensor, ...], mask: Tensor) -> Tensor:
    return torch.stack([(value.isnan() & mask).any(-1) for value in values]).any(0)


def _varies(values: Tensor, weight: Tensor) -> Tensor:
    """(R,) whether two values with weight differ."""
    heavy = weight > 0
    highest = torch.where(heavy, values, -torch.inf).amax(-1)
    lowest = torch.where(heavy, values, torch.inf).amin(-1)
    return (heavy.sum(-1) > 1) & (highest > lowest)


def _counted(x: Tensor, y: Tensor, mask: Tensor | None) -> tuple[Pairs, Tensor, torch.Size]:
    """The pairs and the lengths of all rows, and their leading shape. A row with NaN has length 0."""
    rows = padded_rows(mask, x=x, y=y)
    _, lengths, (left, right) = compact(rows.mask, *rows.values)
    lengths = torch.where(_holds_nan(rows.values, rows.mask), 0, lengths)
    found = left.new_zeros(len(Pairs._fields), len(lengths))
    for index, width in length_chunks(lengths, lambda length: COUNTING_COST * length):
        found[:, index] = torch.stack(count_pairs(left[index, :width], right[index, :width], lengths[index]))
    return Pairs(*found), lengths, rows.leading


def _tau(found: Pairs) -> Tensor:
    defined = (found.tied_x < found.every) & (found.tied_y < found.every)
    spread = ((found.every - found.tied_x).sqrt(), (found.every - found.tied_y).sqrt())
    return torch.where(defined, (found.difference / spread[0] / spread[1]).clamp(-1.0, 1.0), torch.nan)


def _p_value(found: Pairs, lengths: Tensor) -> Tensor:
    defined = (found.tied_x < found.every) & (found.tied_y < found.every)
    n = lengths.double()
    ordered_pairs = n * (n - 1)
    # Over groups of t tied values: Σ t(t-1)(2t+5) = 2·Σ t(t-1)(t-2) + 9·Σ t(t-1).
    spent = 2 * (found.cubes_x + found.cubes_y) + 18 * (found.tied_x + found.tied_y)
    variance = (ordered_pairs * (2 * n + 5) - spent) / 18
    variance = variance + 2 * found.tied_x * found.tied_y / ordered_pairs
    variance = variance + found.cubes_x * found.cubes_y / (9 * ordered_pairs * (n - 2).clamp(min=1))
    p_value = torch.special.erfc(found.difference.abs() / variance.sqrt() / math.sqrt(2))

    departures = torch.minimum(found.discordant, found.every - found.discordant)
    untied = (found.tied_x == 0) & (found.tied_y == 0)
    exact = defined & untied & ((lengths <= EXACT_LIMIT) | (departures <= 1))
    pairs = zip(lengths[exact].tolist(), departures[exact].long().tolist(), strict=True)
    p_value[exact] = p_value.new_tensor([_exact_p_value(*one) for one in pairs])
    return torch.where(defined, p_value, torch.nan)


@cache
def _exact_p_value(length: int, inversions: int) -> float:
    """Twice the chance that a random permutation has at most that many inversions, at most 1."""
    if length > EXACT_LIMIT:  # at most one inversion: the identity, and the exchanges of two neighbours
        permutations = 1 if inversions == 0 else length
    else:
        permutations = _permutations_up_to(length)[inversions]
    return min(1.0, 2 * permutations / math.factorial(length))


@cache
def _permutations_up_to(length: int) -> list[int]:
    """For each number of inversions how many permutations of `length` items have at most that many."""
    counts = [1]
    for size in range(2, length + 1):
        highest = size * (size - 1) // 2
        counts = [sum(counts[max(0, c - size + 1) : c + 1]) for c in range(highest + 1)]
    return list(accumulate(counts))
