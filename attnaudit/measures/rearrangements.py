"""Permute the attention weights of a text at random, or list its rearrangements.

Some permutations change nothing: the identity, and permutations that only exchange equal weights. A *rearrangement* is
a permuted attention that differs from the attention of the model. If a text has few rearrangements, all of them are
listed. Otherwise, random permutations are drawn, and those that change nothing are left out.

Shapes: B instances, T tokens (padded), R random permutations, and V variants of the attention with which the model
    runs.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from attnaudit.arrays import Floats, Integers
from attnaudit.engine.attention_view import Extent
from attnaudit.measures import AttentionView
from attnaudit.measures.erasure_curves import TIED
from attnaudit.seeding import keyed_generator

#: Seed of the random coefficients, one per attention row, in the hash of a token's weights.
HASH_SEED = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Rearrangements:
    """The variants of a batch: permuted attention weights with which the model is run.

    Attributes:
        index: (B, V, T) permutations of the positions. Special tokens and padding stay in place.
        differs: (B, V) True at the variants that are rearrangements. A mean over these variants is the expected value
            over all rearrangements of the text: exact if all of them are listed, otherwise an estimate.
        published: (B, R) for each of the R random permutations, the index of the variant that equals it. As in the
            published code of Jain & Wallace 2019, the permutations include those that change nothing.
        distinct: (B,) number of different attentions that all permutations of a text give, float64. It includes the
            attention of the model.
    """

    index: Tensor
    differs: Tensor
    published: Tensor
    distinct: Tensor


def rearrangements(view: AttentionView, extent: Extent, count: int) -> Rearrangements:
    """Draw permutations of the real tokens, or list all rearrangements.

    The draws depend only on the seed and the id of the instance.

    Args:
        view: B instances.
        extent: which weights are permuted. Two tokens count as equal if all of their permuted weights are equal.
        count: R, the number of random permutations. If the permutations of a text give at most this many different
            attentions, all of them are listed.
    """
    real = view.batch.real_tokens.cpu().numpy()
    keys, movable = (tensor.cpu().numpy() for tensor in weight_keys(view, extent))
    rows, width = real.shape
    index = np.broadcast_to(np.arange(width), (rows, count, width)).copy()
    differs = np.zeros((rows, count), dtype=bool)
    published = np.broadcast_to(np.arange(count), (rows, count)).copy()
    distinct, used = np.ones(rows), 1
    for b in range(rows):
        places, tokens = real[b].nonzero()[0], movable[b].nonzero()[0]
        draws = keyed_generator(view.seed, "permutation", view.instances[b].id).random((count, len(places)))
        order = ascending(draws)
        # Without special tokens between them, the real tokens are a slice, which is faster to fill than places.
        first, stop = (int(places[0]), int(places[-1]) + 1) if len(places) else (0, 0)
        is_slice = stop - first == len(places)
        order = order + first if is_slice else places[order]
        own, counts = _numbered(keys[b, tokens])
        labels = np.zeros(width, dtype=np.int64)
        labels[tokens] = own
        moved = order if len(tokens) == len(places) else order[movable[b][order]].reshape(count, len(tokens))
        # If all labels differ, the order of the labels changes exactly if that of the tokens does.
        drawn, unmoved = (moved, tokens) if len(counts) == len(tokens) else (labels[moved], own)
        distinct[b] = number_of_arrangements(counts)
        if distinct[b] > count:
            if is_slice:
                index[b, :, first:stop] = order
            else:
                index[b][:, places] = order
            differs[b] = _differ(drawn, unmoved)
            used = count
            continue
        every = arrangements(tuple(counts.tolist()))
        size = len(every)
        index[b, :size][:, tokens] = tokens[_orders(own, every)]
        differs[b, :size] = (every != own).any(1)
        number = {row.tobytes(): k for k, row in enumerate(every)}
        published[b] = [number[row.tobytes()] for row in labels[moved]]
        used = max(used, size)
    return Rearrangements(
        index=torch.from_numpy(index[:, :used]).to(view.device),
        differs=torch.from_numpy(differs[:, :used]).to(view.device),
        published=torch.from_numpy(published).to(view.device),
        distinct=torch.from_numpy(distinct).to(view.device),
    )


def _numbered(keys: Integers) -> tuple[Integers, Integers]:
    """Return the number of each key (n,), from the smallest key to the largest, and how often each number occurs (g,).

    Equal keys have the same number.
    """
    order = np.argsort(keys)
    ordered = keys[order]
    if len(keys) and bool((ordered[1:] > ordered[:-1]).all()):  # np.unique takes several times as long
        numbers = np.empty_like(order)
        numbers[order] = np.arange(len(keys))
        return numbers, np.ones_like(order)
    _, numbers, counts = np.unique(keys, return_inverse=True, return_counts=True)
    return numbers, counts


def _differ(orders: Integers, unmoved: Integers) -> NDArray[np.bool_]:
    """Return a mask (R,), True where an order (R, n) differs from the unmoved one (n,).

    Most orders differ in the first place already, so only the others are compared as a whole.
    """
    differs: NDArray[np.bool_] = (orders[:, :1] != unmoved[:1]).any(1)
    same = ~differs
    differs[same] = (orders[same] != unmoved).any(1)
    return differs


def ascending(draws: Floats) -> Integers:
    """Return the order that sorts each row of draws.

    The draws must be whole multiples of 2^-53 in [0, 1), as numpy's generators produce them. For short rows, each draw
    and its position are packed into one integer, because sorting integers is faster than an argsort.

    Args:
        draws: (R, n) random numbers.

    Returns:
        (R, n) positions of the draws from the smallest to the largest.
    """
    bits = max(1, (draws.shape[1] - 1).bit_length())
    if bits > 63 - 53:
        return np.argsort(draws, axis=1)
    keys: Integers = (draws * 2.0**53).astype(np.int64) << bits
    keys |= np.arange(draws.shape[1])
    keys.sort(axis=1)
    keys &= (1 << bits) - 1
    return keys


def number_of_arrangements(counts: Integers) -> float:
    """Return the number of different sequences of n values, some of which may be equal: n! / Π count!.

    Args:
        counts: (g,) how often each of the g different values occurs. They add up to n.

    Returns:
        The number, exact up to 2^53. It is 1 if there are no values.
    """
    number = math.factorial(int(counts.sum())) // math.prod(map(math.factorial, counts[counts > 1].tolist()))
    return math.inf if number > 2**1000 else float(number)


@functools.lru_cache(maxsize=128)
def arrangements(counts: tuple[int, ...]) -> NDArray[np.int64]:
    """Return all different sequences of n values, some of which may be equal.

    Args:
        counts: how often each of the values 0, 1, ... occurs.

    Returns:
        (K, n) sequences of the values 0, 1, ..., in lexicographic order.

    Examples:
        >>> arrangements((2, 1)).tolist()
        [[0, 0, 1], [0, 1, 0], [1, 0, 0]]
    """
    rows, left = np.zeros((1, 0), dtype=np.int64), np.array([counts], dtype=np.int64).reshape(1, -1)
    for _ in range(sum(counts)):
        parent, value = left.nonzero()
        rows, left = np.column_stack([rows[parent], value]), left[parent]
        left[np.arange(len(parent)), value] -= 1
    rows.setflags(write=False)
    return rows


def _orders(own: Integers, every: Integers) -> Integers:
    """Return (K, n) permutations that turn the sequence `own` (n,) into each of its arrangements `every` (K, n).

    The permutation for `own` itself is the identity.
    """
    orders = np.empty_like(every)
    np.put_along_axis(orders, every.argsort(axis=1, kind="stable"), own.argsort(kind="stable")[None], axis=1)
    return orders


# -- which tokens have equal weights -----------------------------------------------------------------------------------


def weight_keys(view: AttentionView, extent: Extent) -> tuple[Tensor, Tensor]:
    """Return a key for each token. Two tokens have the same key if they have the same weight in every permuted row.

    Args:
        view: B instances.
        extent: which rows are permuted.

    Returns:
        (B, T) keys, int64, and a (B, T) mask, True at the tokens whose weights can be moved: real tokens to which at
        least one permuted row may attend. All keys of an instance are 0 if the weights within each row are equal,
        because then no permutation changes anything.
    """
    keys = torch.zeros(view.batch.real_tokens.shape, dtype=torch.int64, device=view.device)
    movable, varied = torch.zeros_like(keys, dtype=torch.bool), torch.zeros_like(keys[:, :1], dtype=torch.bool)
    random = torch.Generator().manual_seed(HASH_SEED)
    for weights, attendable, factors in _permuted_rows(view, extent, random):
        ranks = tied_ranks(weights, attendable)
        keys += (ranks * factors).sum(1)
        movable |= attendable.any(1)
        highest = torch.where(attendable, ranks, 0).amax(2)
        lowest = torch.where(attendable, ranks, torch.iinfo(torch.int64).max).amin(2)
        varied |= (highest > lowest).any(1, keepdim=True)
    return torch.where(varied, keys, 0), movable


def _permuted_rows(
    view: AttentionView, extent: Extent, random: torch.Generator
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Yield the rows that are permuted, a few at a time.

    Args:
        view: B instances.
        extent: which rows are permuted.
        random: generator of the factors.

    Yields:
        (B, P, T) weights; a (B, 1 or P, T) mask of the weights that can be moved, which are those on real tokens; and
        random factors (P, 1), one for each row.
    """

    def factors(count: int) -> Tensor:
        return torch.randint(-(2**62), 2**62, (count, 1), generator=random).to(view.device)

    if extent == "reading" and view.scope.single_row:
        yield view.head_patterns, view.attendable, factors(view.head_patterns.shape[1])
        return
    where = extent.partition(".")[0]
    scope = view.scope if extent == "reading" else view.scope.widened(where, view.adapter.sites())
    real = view.batch.real_tokens[:, None, None, :]
    for site in scope.sites:
        queries = 1 if site.query is None else view.inputs.mask[site.query].shape[1]
        heads = scope.head_numbers(site)
        by_head = [factors(queries) for _ in heads]
        for first, weights, allowed in view.batch.clean_blocks(site):
            stop = first + weights.shape[2]
            in_scope = scope.row_mask(site, view.inputs, weights.shape[2], first=first)
            attendable = (allowed & real & in_scope).expand(weights.shape)
            for h, of_head in zip(heads, by_head, strict=True):
                yield weights[:, h], attendable[:, h], of_head[first:stop]


def tied_ranks(weights: Tensor, attendable: Tensor) -> Tensor:
    """Rank the attendable weights of each row. Weights that are equal up to rounding have the same rank.

    Args:
        weights: (B, P, T) non-negative weights.
        attendable: (B, 1 or P, T) True at the weights to rank.

    Returns:
        (B, P, T) ranks from 1, int64; 0 at the other weights.
    """
    weights = torch.where(attendable, weights.double(), -1.0)
    tolerance = (TIED * weights.amax(-1, keepdim=True)).clamp_min(torch.finfo(torch.float64).tiny)
    ordered, order = weights.sort(dim=-1, stable=True)
    place = torch.arange(ordered.shape[-1], device=weights.device).expand_as(ordered)
    begins = torch.ones_like(ordered, dtype=torch.bool)
    begins[..., 1:] = ordered.diff(dim=-1) > tolerance
    # A long chain of close neighbours is split where it gets wider than the tolerance.
    lowest = ordered.gather(-1, torch.where(begins, place, 0).cummax(-1).values)
    step = ((ordered - lowest) / tolerance).floor()
    begins[..., 1:] |= step.diff(dim=-1) != 0
    ranks = torch.zeros_like(order).scatter(-1, order, begins.cumsum(-1))
    return torch.where(attendable, ranks, 0)
