"""Rank agreement: Kendall's τ-b with its p-value, Shieh's weighted τ, and the share of nearly tied pairs."""

from __future__ import annotations

import math
from functools import cache
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor

from attnaudit.metrics.discordance import Pairs, count_pairs
from attnaudit.metrics.padded_rows import compact, length_chunks, padded_rows

#: Assumed number of tensor elements that counting needs per token, without and with weights. They make chunks small
#: enough for the processor's cache.
COUNTING_COST, WEIGHTED_COST = 64, 128
#: Largest number of tokens for which the p-value is always exact if there are no ties, as in scipy.
EXACT_LIMIT = 33


class Kendall(NamedTuple):
    """Kendall's τ-b of each row, with its p-value.

    Attributes:
        tau: (...) τ-b.
        p_value: (...) two-sided p-value.
    """

    tau: Tensor
    p_value: Tensor


def kendall(x: Tensor, y: Tensor, mask: Tensor | None = None) -> Kendall:
    """Return Kendall's τ-b and its p-value for each row.

    It is faster than calling `kendall_tau_b` and `kendall_p_value` separately. See these two functions for details.
    Arguments, undefined rows and errors are the same as for `kendall_tau_b`.

    Examples:
        >>> result = kendall(torch.tensor([[1.0, 2, 3, 4]]), torch.tensor([[1.0, 2, 4, 3]]))
        >>> round(result.tau.item(), 4), round(result.p_value.item(), 4)
        (0.6667, 0.3333)
    """
    pairs, lengths, leading = _count_rows(x, y, mask)
    return Kendall(_tau(pairs).reshape(leading), _p_value(pairs, lengths).reshape(leading))


def kendall_tau_b(x: Tensor, y: Tensor, mask: Tensor | None = None) -> Tensor:
    """Return Kendall's τ-b of each row over its real tokens.

    τ_b = (C - D) / √((P - T_x)(P - T_y)). Here C is the number of concordant pairs, D of discordant pairs, P of all
    pairs, T_x of pairs tied in x, and T_y of pairs tied in y. Values are compared in float64 without rounding. Source:
    Kendall 1945. Jain & Wallace 2019, §4.1, and Meister et al. 2021, §4, compute it per instance.

    Args:
        x: (..., T) values.
        y: (..., T) values.
        mask: (..., T) True at real tokens; None if every position is real.

    Returns:
        (...) values in [-1, 1]. A row is NaN if it has fewer than two real tokens, if all values of x are equal, if all
        values of y are equal, or if a real token has a NaN.

    Raises:
        ValueError: Shapes differ, or the mask is not boolean.

    Examples:
        >>> x = torch.tensor([[0.1, 0.2, 0.7, 0.0]])
        >>> y = torch.tensor([[0.3, 0.3, 0.4, 9.0]])
        >>> round(kendall_tau_b(x, y, torch.tensor([[True, True, True, False]])).item(), 4)
        0.8165
    """
    pairs, _, leading = _count_rows(x, y, mask)
    return _tau(pairs).reshape(leading)


def kendall_p_value(x: Tensor, y: Tensor, mask: Tensor | None = None) -> Tensor:
    """Return the two-sided p-value of `kendall_tau_b`. The null hypothesis is that x and y are independent.

    The method is the same as in `scipy.stats.kendalltau(method="auto")`. The p-value is exact if there are no ties and
    one of three conditions holds: n <= 33, at most one pair is discordant, or at most one pair is concordant. An exact
    p-value is computed from the distribution of the number of inversions of a random permutation. Any other p-value is
    a normal approximation with a variance that is corrected for ties.

    The p-value depends mostly on the number n of tokens. You can report the share of instances with a p-value of at
    most .05, but a gate should not use this share. Arguments, undefined rows and errors are the same as for
    `kendall_tau_b`.

    Examples:
        >>> x = torch.arange(5.0).unsqueeze(0)
        >>> round(kendall_p_value(x, x).item(), 6)  # 2 / 5!
        0.016667
    """
    return kendall(x, y, mask).p_value


def weighted_kendall_tau(x: Tensor, y: Tensor, weights: Tensor, mask: Tensor | None = None) -> Tensor:
    """Return Shieh's weighted τ of each row. The weight of a pair is the product of the weights of its two tokens.

    τ_w = Σ_{i<j} w_i w_j sgn(x_i - x_j) sgn(y_i - y_j) / Σ_{i<j} w_i w_j. Tied pairs add 0 to the numerator, but their
    weight counts in the denominator. Without ties, the result equals that of `scipy.stats.weightedtau(x, y, rank=False,
    weigher=lambda r: w[r], additive=False)`. Sources: Shieh 1998; Wen, Subbalakshmi & Yang 2022, §3.2.

    Args:
        x: (..., T) values.
        y: (..., T) values.
        weights: (..., T) weights of at least 0.
        mask: (..., T) True at real tokens; None if every position is real.

    Returns:
        (...) values in [-1, 1]. A row is NaN if fewer than two real tokens have weight, if all tokens with weight have
        the same x, if all have the same y, or if a real token has a NaN.

    Raises:
        ValueError: Shapes differ, the mask is not boolean, or a weight is negative.

    Examples:
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
    for index, width in length_chunks(lengths, lambda length: WEIGHTED_COST * length):
        x_part, y_part, weight_part = (value[index, :width] for value in (left, right, weight))
        pairs = count_pairs(x_part, y_part, lengths[index], weight_part)
        defined = pairs.every > 0
        if bool((pairs.tied_x + pairs.tied_y).any()):
            defined &= _varies(x_part, weight_part) & _varies(y_part, weight_part)
        tau[index] = torch.where(defined, (pairs.difference / pairs.every).clamp(-1.0, 1.0), torch.nan)
    return tau.reshape(rows.leading)


def near_tied_pairs(x: Tensor, mask: Tensor | None = None, tolerance: float = 1e-6) -> Tensor:
    """Return the share of the pairs in each row that are nearly tied: their values differ by at most `tolerance`.

    Pairs with equal values are included. Float32 rounding can create or break ties between nearly equal values at
    random, so reports show this share next to τ.

    Args:
        x: (..., T) values.
        mask: (..., T) True at real tokens; None if every position is real.
        tolerance: Largest difference between the two values of a nearly tied pair, at least 0.

    Returns:
        (...) shares in [0, 1]. A row is NaN if it has fewer than two real tokens, or if a real token has a NaN.

    Raises:
        ValueError: The mask is not boolean, or the tolerance is negative.

    Examples:
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
    """Return a mask (B,), True for rows in which some tensor has a NaN at a real token."""
    return torch.stack([(value.isnan() & mask).any(-1) for value in values]).any(0)


def _varies(values: Tensor, weight: Tensor) -> Tensor:
    """Return a mask (R,), True for rows in which the values with nonzero weight are not all equal."""
    heavy = weight > 0
    highest = torch.where(heavy, values, -torch.inf).amax(-1)
    lowest = torch.where(heavy, values, torch.inf).amin(-1)
    return (heavy.sum(-1) > 1) & (highest > lowest)


def _count_rows(x: Tensor, y: Tensor, mask: Tensor | None) -> tuple[Pairs, Tensor, torch.Size]:
    """Count the pairs of each row.

    Returns:
        The counts; (B,) number of real tokens, 0 for rows with a NaN at a real token; and the leading shape of `x`.
    """
    rows = padded_rows(mask, x=x, y=y)
    _, lengths, (left, right) = compact(rows.mask, *rows.values)
    lengths = torch.where(_holds_nan(rows.values, rows.mask), 0, lengths)
    counted = left.new_zeros(len(Pairs._fields), len(lengths))
    for index, width in length_chunks(lengths, lambda length: COUNTING_COST * length):
        counted[:, index] = torch.stack(count_pairs(left[index, :width], right[index, :width], lengths[index]))
    return Pairs(*counted), lengths, rows.leading


def _tau(pairs: Pairs) -> Tensor:
    """Return τ-b (R,), given the counts of pairs; NaN where all values of x or all values of y are tied."""
    defined = (pairs.tied_x < pairs.every) & (pairs.tied_y < pairs.every)
    scale_x, scale_y = (pairs.every - pairs.tied_x).sqrt(), (pairs.every - pairs.tied_y).sqrt()
    return torch.where(defined, (pairs.difference / scale_x / scale_y).clamp(-1.0, 1.0), torch.nan)


def _p_value(pairs: Pairs, lengths: Tensor) -> Tensor:
    """Return the p-value (R,), given the counts of pairs and the numbers of real tokens (R,).

    See `kendall_p_value` for the cases in which it is exact.
    """
    defined = (pairs.tied_x < pairs.every) & (pairs.tied_y < pairs.every)
    n = lengths.double()
    ordered_pairs = n * (n - 1)
    # Ties reduce the variance by Σ t(t-1)(2t+5) = 2·Σ t(t-1)(t-2) + 9·Σ t(t-1) over the groups of t tied values.
    reduction = 2 * (pairs.cubes_x + pairs.cubes_y) + 18 * (pairs.tied_x + pairs.tied_y)
    variance = (ordered_pairs * (2 * n + 5) - reduction) / 18
    variance = variance + 2 * pairs.tied_x * pairs.tied_y / ordered_pairs
    variance = variance + pairs.cubes_x * pairs.cubes_y / (9 * ordered_pairs * (n - 2).clamp(min=1))
    p_value = torch.special.erfc(pairs.difference.abs() / variance.sqrt() / math.sqrt(2))

    departures = torch.minimum(pairs.discordant, pairs.every - pairs.discordant)
    untied = (pairs.tied_x == 0) & (pairs.tied_y == 0)
    exact = defined & untied & ((lengths <= EXACT_LIMIT) | (departures <= 1))
    arguments = zip(lengths[exact].tolist(), departures[exact].long().tolist(), strict=True)
    p_value[exact] = p_value.new_tensor([_exact_p_value(*values) for values in arguments])
    return torch.where(defined, p_value, torch.nan)


@cache
def _exact_p_value(length: int, inversions: int) -> float:
    """Return twice the probability that a random permutation has at most `inversions` inversions, limited to 1."""
    if length > EXACT_LIMIT:  # at most one inversion: the identity, and swaps of neighbours
        permutations = 1 if inversions == 0 else length
    else:
        permutations = _permutations_up_to(length)[inversions]
    return min(1.0, 2 * permutations / math.factorial(length))


@cache
def _permutations_up_to(length: int) -> list[int]:
    """Return a list whose entry k is the number of permutations of `length` items with at most k inversions."""
    counts = [1]
    for size in range(2, length + 1):
        highest = size * (size - 1) // 2
        counts = [sum(counts[max(0, c - size + 1) : c + 1]) for c in range(highest + 1)]
    return list(accumulate(counts))
