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
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from attnaudit.arrays import Integers
from attnaudit.engine.batches.attention_view import Extent
from attnaudit.measures import AttentionView
from attnaudit.measures.erasure_curves import TIED
from attnaudit.seeding import keyed_generator

#: Seed of the random coefficients, one per attention row, in the hash of a token's weights.
HASH_SEED = 20
#: Where the upper half of a 64-bit integer is, if it is read as two 32-bit integers.
UPPER_HALF = 1 if sys.byteorder == "little" else 0


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
        extent: Which weights are permuted. Two tokens count as equal if all of their permuted weights are equal.
        count: R, the number of random permutations. If the permutations of a text give at most this many different
            attentions, all of them are listed.
    """
    real = view.batch.real_tokens.cpu().numpy()
    rows, width = real.shape
    distinct = np.array([number_of_orders(size) for size in real.sum(1).tolist()])
    untied = _untied(view, extent) & (distinct > count)
    keys, movable = np.zeros((rows, width), dtype=np.int64), real.copy()
    if not untied.all():
        keys[~untied], movable[~untied] = _keys_of(view, extent, ~untied)
    index = np.empty((rows, count, width), dtype=np.int64)
    differs = np.zeros((rows, count), dtype=bool)
    published = np.broadcast_to(np.arange(count), (rows, count)).copy()
    used = 1
    for b in range(rows):
        places = real[b].nonzero()[0]
        # Without special tokens between them, the real tokens are a slice, which is faster to fill than places.
        first, stop = (int(places[0]), int(places[-1]) + 1) if len(places) else (0, 0)
        is_slice = stop - first == len(places)
        generator = keyed_generator(view.seed, "permutation", view.instances[b].id)
        order = random_orders(generator, count, len(places), first if is_slice else 0)
        if not is_slice:
            order = places[order]
        if not untied[b]:
            tokens = movable[b].nonzero()[0]
            own, counts = _numbered(keys[b, tokens])
            labels = np.zeros(width, dtype=np.int64)
            labels[tokens] = own
            moved = order if len(tokens) == len(places) else order[movable[b][order]].reshape(count, len(tokens))
            distinct[b] = number_of_arrangements(counts)
        if distinct[b] > count:
            if is_slice:
                index[b, :, :first], index[b, :, stop:] = np.arange(first), np.arange(stop, width)
                index[b, :, first:stop] = order
            else:
                index[b] = np.arange(width)
                index[b][:, places] = order
            if not untied[b]:
                differs[b] = _differ(labels[moved], own)
            used = count
            continue
        index[b] = np.arange(width)
        every = arrangements(tuple(counts.tolist()))
        size = len(every)
        index[b, :size][:, tokens] = tokens[_orders(own, every)]
        differs[b, :size] = (every != own).any(1)
        number = {row.tobytes(): k for k, row in enumerate(every)}
        published[b] = [number[row.tobytes()] for row in labels[moved]]
        used = max(used, size)
    firsts = real.argmax(1)
    same = untied[:, None] & (index[np.arange(rows), :, firsts] == firsts[:, None])
    differs |= untied[:, None] & ~same
    differs[same] = (index[same] != np.arange(width)).any(1)
    return Rearrangements(
        index=torch.from_numpy(index[:, :used]).to(view.device),
        differs=torch.from_numpy(differs[:, :used]).to(view.device),
        published=torch.from_numpy(published).to(view.device),
        distinct=torch.from_numpy(distinct).to(view.device),
    )


def _untied(view: AttentionView, extent: Extent) -> NDArray[np.bool_]:
    """Return a mask (B,), True for instances in which no two real tokens have equal weights.

    It may be False for some of these instances. Most texts have no ties, and this takes less time than `weight_keys`.
    """
    real = view.batch.real_tokens[:, None]
    if extent != "reading" or not view.scope.single_row:
        return np.zeros(len(real), dtype=bool)
    weights = np.where(real.cpu().numpy(), view.head_patterns.cpu().numpy(), -1.0)
    weights.sort(axis=2)
    tolerance = np.maximum(TIED * weights[:, :, -1:], np.finfo(np.float64).tiny)
    apart: NDArray[np.bool_] = (np.diff(weights, axis=2) > tolerance) | (weights[:, :, 1:] < 0)
    movable = (view.attendable == real).all(2)[:, 0].cpu().numpy()
    some_row: NDArray[np.bool_] = np.any(np.all(apart, axis=2), axis=1)
    untied: NDArray[np.bool_] = some_row & movable
    return untied


def _keys_of(view: AttentionView, extent: Extent, chosen: NDArray[np.bool_]) -> tuple[Integers, NDArray[np.bool_]]:
    """Return the result of `weight_keys` for the instances that are True in a mask (B,)."""
    rows = slice(None) if chosen.all() else torch.from_numpy(chosen.nonzero()[0]).to(view.device)
    keys, movable = weight_keys(view, extent, rows)
    return keys.cpu().numpy(), movable.cpu().numpy()


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


def random_orders(generator: np.random.Generator, count: int, size: int, first: int = 0) -> NDArray[np.integer]:
    """Return the orders that sort each row of `generator.random((count, size))`, as an argsort does.

    numpy makes each of these numbers from the upper 53 bits of a random integer. For short rows, the upper bits of the
    integers and their positions are packed into 32-bit integers, because sorting these is faster than an argsort. In
    the few rows in which the upper bits are not enough, the draws are sorted by all 53 bits.

    Args:
        generator: A generator whose numbers come from 64-bit integers, such as one with Philox.
        count: The number of rows.
        size: The number of draws in each row.
        first: The position of the first draw of a row.

    Returns:
        (count, size) positions of the draws from the smallest to the largest.
    """
    bits = (first + size).bit_length()
    if size < 2 or bits > 10:
        return first + np.argsort(generator.random((count, size)), axis=1)
    drawn = generator.bit_generator.random_raw((count, size))
    lowest, positions = (1 << bits) - 1, np.arange(first, first + size, dtype=np.uint32)
    keys = drawn.view(np.uint32)[:, UPPER_HALF::2].copy()
    keys &= np.uint32(2**32 - 1 - lowest)
    keys |= positions
    keys.sort(axis=1)
    # Two neighbours with the same upper bits differ by at most `lowest`.
    in_a_row = keys.reshape(-1)
    if (in_a_row[1:] - in_a_row[:-1]).min() <= lowest:
        unclear = ((keys[:, 1:] ^ keys[:, :-1]) <= lowest).any(1)
        every_bit = drawn[unclear] & np.uint64(2**64 - 2**11) | positions
        every_bit.sort(axis=1)
        keys[unclear] = every_bit
    keys &= np.uint32(lowest)
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


@functools.lru_cache(maxsize=4096)
def number_of_orders(size: int) -> float:
    """Return the number of orders of different values, `size`!. It is inf if it is larger than 2^1000."""
    return number_of_arrangements(np.ones(size, dtype=np.int64))


@functools.lru_cache(maxsize=128)
def arrangements(counts: tuple[int, ...]) -> NDArray[np.int64]:
    """Return all different sequences of n values, some of which may be equal.

    Args:
        counts: How often each of the values 0, 1, ... occurs.

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


def weight_keys(view: AttentionView, extent: Extent, rows: Tensor | slice = slice(None)) -> tuple[Tensor, Tensor]:
    """Return a key for each token. Two tokens have the same key if they have the same weight in every permuted row.

    Args:
        view: B instances.
        extent: Which rows are permuted.
        rows: The instances to use, all by default.

    Returns:
        (B, T) keys, int64, and a (B, T) mask, True at the tokens whose weights can be moved: real tokens to which at
        least one permuted row may attend. All keys of an instance are 0 if the weights within each row are equal,
        because then no permutation changes anything.
    """
    keys = torch.zeros_like(view.batch.real_tokens[rows], dtype=torch.int64)
    movable, varied = torch.zeros_like(keys, dtype=torch.bool), torch.zeros_like(keys[:, :1], dtype=torch.bool)
    random = torch.Generator().manual_seed(HASH_SEED)
    for weights, attendable, factors in _permuted_rows(view, extent, random):
        attendable = attendable[rows]
        ranks = tied_ranks(weights[rows], attendable)
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
        extent: Which rows are permuted.
        random: Generator of the factors.

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
