"""Rank agreement: Kendall's tau-b with its p-value, Shieh's weighted tau, and how many pairs are nearly tied."""

from __future__ import annotations

import math
from functools import cache
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor

from attnaudit.metrics.rows import ELEMENTS_PER_CHUNK, compact, length_chunks, padded_rows

PAIRWISE_LIMIT = 256  # longer rows go to scipy's O(n log n) routine, one by one
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
    rows = padded_rows(mask, x=x, y=y)
    _, lengths, (left, right) = compact(rows.mask, *rows.values)
    tau = torch.full(lengths.shape, torch.nan, dtype=torch.float64, device=left.device)
    p_value = tau.clone()
    lengths = torch.where(_holds_nan(rows.values, rows.mask), 0, lengths)

    short = torch.where(lengths <= PAIRWISE_LIMIT, lengths, 0)
    for index, width in length_chunks(short, lambda length: length * length):
        tau[index], p_value[index] = _pairwise(left[index, :width], right[index, :width], lengths[index])

    for row in torch.nonzero(lengths > PAIRWISE_LIMIT).flatten().tolist():
        from scipy.stats import kendalltau

        length = int(lengths[row])
        result = kendalltau(left[row, :length].cpu().numpy(), right[row, :length].cpu().numpy())
        tau[row], p_value[row] = float(result.statistic), float(result.pvalue)
    return Kendall(tau.reshape(rows.leading), p_value.reshape(rows.leading))


def kendall_tau_b(x: Tensor, y: Tensor, mask: Tensor | None = None) -> Tensor:
    """Kendall's tau-b of each row over its real tokens.

    tau_b = (C - D) / sqrt((P - T_x)(P - T_y)) with C concordant and D discordant pairs, P all pairs, T_x and T_y the
    pairs tied in x and in y. Differences are taken in float64; nothing is rounded.

    Shapes: x, y (..., T); mask (..., T) boolean, True at real tokens, every position if None; result (...), in [-1, 1].
    NaN (undefined) for fewer than two real tokens, when either side is all tied, or when a real value is NaN.
    Rows of up to 256 tokens are compared pairwise in chunks of bounded memory, longer ones in O(n log n) by scipy.
    Raises ValueError for shapes that differ or a mask that is not boolean.
    Source: Kendall 1945; used per instance by Jain & Wallace 2019 §4.1 and Meister et al. 2021 §4.

    >>> x = torch.tensor([[0.1, 0.2, 0.7, 0.0]])
    >>> y = torch.tensor([[0.3, 0.3, 0.4, 9.0]])
    >>> round(kendall_tau_b(x, y, torch.tensor([[True, True, True, False]])).item(), 4)
    0.8165
    """
    return kendall(x, y, mask).tau


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
    invalid = _holds_nan(rows.values, rows.mask)
    # NaN compares false both ways, so padding has the sign 0 against everything.
    left = torch.where(rows.mask, rows.values[0], torch.nan)
    right = torch.where(rows.mask, rows.values[1], torch.nan)
    weight = torch.where(rows.mask, rows.values[2], 0.0)
    if bool((weight < 0).any()):
        raise ValueError(f"weights: expected weights of at least 0 but got {float(weight.min())}")
    count, width = left.shape
    agreement, moved_x, moved_y, total = (torch.zeros(count, dtype=torch.float64, device=left.device) for _ in range(4))
    block = max(1, ELEMENTS_PER_CHUNK // max(1, count * width))
    for start in range(0, width, block):
        part = slice(start, start + block)
        pair = weight[:, part, None] * weight[:, None, :]
        sign_x = _sign(left[:, part, None], left[:, None, :])
        sign_y = _sign(right[:, part, None], right[:, None, :])
        agreement += (pair * sign_x * sign_y).sum((1, 2))
        moved_x += (pair * sign_x.abs()).sum((1, 2))
        moved_y += (pair * sign_y.abs()).sum((1, 2))
        own = torch.arange(start, min(start + block, width), device=left.device)
        pair[:, own - start, own] = 0.0
        total += pair.sum((1, 2))
    defined = (moved_x > 0) & (moved_y > 0) & ~invalid
    tau = torch.where(defined, (agreement / total).clamp(-1.0, 1.0), torch.nan)
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


def _sign(a: Tensor, b: Tensor) -> Tensor:
    return (a > b).to(torch.float64) - (a < b).to(torch.float64)


def _tie_sizes(x: Tensor, real: Tensor, lengths: Tensor) -> Tensor:
    """For each real token the number of real tokens with its value, itself included; 1 for padding."""
    ordered = torch.where(real, x, torch.inf).sort(-1).values
    above = torch.searchsorted(ordered, ordered, right=True).minimum(lengths[:, None])
    below = torch.searchsorted(ordered, ordered, right=False)
    return torch.where(real, above - below, 1)


def _pairwise(x: Tensor, y: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """Tau-b and p of rows whose real tokens come first; memory O(rows · width²)."""
    real = torch.arange(x.shape[-1], device=x.device) < lengths[:, None]
    padded_x, padded_y = torch.where(real, x, torch.nan), torch.where(real, y, torch.nan)
    # Each untied pair has x_i > x_j in one of its two orders only. NaN padding compares false.
    higher = padded_x[:, :, None] > padded_x[:, None, :]
    concordant = (higher & (padded_y[:, :, None] > padded_y[:, None, :])).flatten(1).count_nonzero(-1)
    discordant = (higher & (padded_y[:, :, None] < padded_y[:, None, :])).flatten(1).count_nonzero(-1)
    difference = (concordant - discordant).to(torch.float64)

    pairs = lengths * (lengths - 1) // 2
    ties_x, ties_y = _tie_sizes(x, real, lengths), _tie_sizes(y, real, lengths)
    tied_x, tied_y = (ties_x - 1).sum(-1) // 2, (ties_y - 1).sum(-1) // 2
    defined = (tied_x < pairs) & (tied_y < pairs)
    spread = ((pairs - tied_x).double().sqrt(), (pairs - tied_y).double().sqrt())
    tau = torch.where(defined, (difference / spread[0] / spread[1]).clamp(-1.0, 1.0), torch.nan)

    n = lengths.double()
    ordered_pairs = n * (n - 1)

    def moments(ties: Tensor) -> tuple[Tensor, Tensor]:
        size = ties.double()
        return ((size - 1) * (size - 2)).sum(-1), ((size - 1) * (2 * size + 5)).sum(-1)

    (x0, x1), (y0, y1) = moments(ties_x), moments(ties_y)
    variance = (ordered_pairs * (2 * n + 5) - x1 - y1) / 18
    variance = variance + 2 * tied_x * tied_y / ordered_pairs + x0 * y0 / (9 * ordered_pairs * (n - 2).clamp(min=1))
    p_value = torch.special.erfc(difference.abs() / variance.sqrt() / math.sqrt(2))

    departures = torch.minimum(discordant, pairs - discordant)
    exact = defined & (tied_x == 0) & (tied_y == 0) & ((lengths <= EXACT_LIMIT) | (departures <= 1))
    for row in torch.nonzero(exact).flatten().tolist():
        p_value[row] = _exact_p_value(int(lengths[row]), int(departures[row]))
    return tau, torch.where(defined, p_value, torch.nan)


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
