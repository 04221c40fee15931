"""Contexts of bags with erased units, if the state and the weight of each unit depend on its own vector alone.

A masked unit is replaced by the baseline vector. Let g be the weight of a unit before normalisation, and h its state.
The context of a bag of n units, k of which are masked, is then (Σ g h + k g' h') / (Σ g + k g'). The sums are over the
other n - k units, and g' and h' belong to the baseline vector. The model therefore runs once, on the bag with the
baseline vector as an additional unit. If nearly all units are masked, or nearly none, the time for a context grows with
the number of features, but not with the number of units. If a unit is deleted, the same holds without the terms of the
baseline vector.

All sums are in float64. The contexts of two variants of a large bag differ by little, and the rounding errors of a sum
in float32 would be as large as their difference.

Shapes: B bags, T units (padded), V variants, H heads, m features of a state.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from attnaudit.adapters.sums_by_index import added_at

#: Sums over at most this many kept units, or over all units except this many, are computed from these units alone.
FEW = 8
#: If less than this share of the weight is left after units are subtracted, the remaining units are summed instead,
#: because the rounding errors of the difference would be too large.
LEAST_LEFT = 1e-5
#: The total weight at which the weights of single units may have been rounded to 0, relative to the smallest normal
#: number.
VANISHED = 1e6


@dataclass
class BagWithBaseline:
    """Bags with the baseline vector as an additional unit, which is the last one.

    Attributes:
        states: (B, T + 1, m) states.
        weights: (B, H, T + 1) weights.
        real: (B, T) True at the positions of units of the bag.
    """

    states: Tensor
    weights: Tensor
    real: Tensor

    @cached_property
    def products(self) -> Tensor:
        """(B, T + 1, H, 1 + m) the result of `weighted_states`."""
        return weighted_states(self.states, self.weights)


def weighted_states(states: Tensor, weights: Tensor) -> Tensor:
    """Return the weight of each unit, followed by the weight times the state (B, T, H, 1 + m), in float64.

    Args:
        states: (B, T, m) states.
        weights: (B, H, T) weights.
    """
    wide = weights.double().transpose(1, 2)[..., None]
    return torch.cat([wide, wide * states.double()[:, :, None]], dim=-1)


def contexts_with_single_masks(
    bags: BagWithBaseline, row: int, units: Tensor, *, alone: bool, held: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return the contexts of a bag in which either one unit or all units except one are masked.

    Args:
        bags: The bags.
        row: The index of the bag.
        units: (V,) the unit of each variant.
        alone: Whether all units except this one are masked. If not, only this one is masked.
        held: (H, T) weights that stay as they are while units are masked; None to use the weights of the model.

    Returns:
        The same as `masked_contexts`.
    """
    if held is None:
        unit, baseline = bags.products[row, units], bags.products[row, -1]
        real = int(bags.real[row].sum())
        own, other = (unit, (real - 1) * baseline) if alone else (bags.products[row, :-1].sum(0) - unit, baseline)
        sums = own + other
        left, total = own[..., 0], bags.products[row, :-1, :, 0].sum(0)
        vanished = ~(sums[..., 0] > torch.finfo(bags.weights.dtype).tiny * VANISHED).all(1)
        if not alone:
            vanished |= (left < LEAST_LEFT * total).any(1)
        return (sums[..., 1:] / sums[..., :1]).to(bags.states.dtype), vanished
    weights, states = held.double().T[..., None], bags.states[row].double()  # (T, H, 1), (T + 1, m)
    change = weights[units] * (states[units] - states[-1])[:, None]
    if alone:
        contexts = weights.sum(0) * states[-1] + change
    else:
        contexts = (weights * states[:-1, None]).sum(0) - change
    return contexts.to(bags.states.dtype), torch.zeros(len(units), dtype=torch.bool, device=units.device)


def masked_contexts(bags: BagWithBaseline, rows: Tensor, kept: Tensor, masked: Tensor) -> tuple[Tensor, Tensor]:
    """Return the contexts of bags with masked units.

    Args:
        bags: The bags.
        rows: (V,) the bag of each variant.
        kept: (V, T) True at the units that keep their vectors.
        masked: (V, T) True at the units that are masked. All other positions are padding.

    Returns:
        (V, H, m) contexts, in the data type of the states; and a mask (V,), True where the weights of a variant are so
        small that they may have been rounded to 0. The model must run on these variants.
    """
    sums = _sums_of_rows(bags.products[:, :-1], rows, kept, masked)
    sums += masked.sum(1)[:, None, None] * bags.products[rows, -1]
    return _normalised(sums, bags.states.dtype)


def contexts_without(
    products: Tensor, rows: Tensor, kept: Tensor, deleted: Tensor, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Return the contexts of bags without some of their units.

    Args:
        products: (B, T, H, 1 + m) the result of `weighted_states` for the whole bags.
        rows: (V,) the bag of each variant.
        kept: (V, T) True at the units that are kept.
        deleted: (V, T) True at the units that are deleted. All other positions are padding.
        dtype: The data type of the states and the weights.

    Returns:
        The same as `masked_contexts`.
    """
    return _normalised(_sums_of_rows(products, rows, kept, deleted), dtype)


def _normalised(sums: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return the contexts (V, H, m) and the mask (V,) of `masked_contexts`, given the sums (V, H, 1 + m)."""
    total = sums[..., :1]
    vanished = ~(total > torch.finfo(dtype).tiny * VANISHED).flatten(1).all(1)
    return (sums[..., 1:] / total).to(dtype), vanished


def _sums_of_rows(products: Tensor, rows: Tensor, kept: Tensor, erased: Tensor) -> Tensor:
    """Return the sums (V, H, 1 + m) of products (B, T, H, 1 + m) over the kept units (V, T) of bags (V,)."""
    sums = products.new_empty((len(rows), *products.shape[2:]))
    for row in sorted(set(rows.tolist())):
        these = (rows == row).nonzero()[:, 0]
        sums[these] = _sums(products[row], kept[these], erased[these])
    return sums


def _sums(products: Tensor, kept: Tensor, erased: Tensor) -> Tensor:
    """Return the sums (V, H, 1 + m) of products (T, H, 1 + m) over the kept units (V, T) of one bag."""
    flat = products.flatten(1)
    sums = flat.new_zeros((len(kept), flat.shape[1]))
    by_kept = kept.sum(1) <= FEW
    by_erased = ~by_kept & (erased.sum(1) <= FEW)
    for chosen, units in ((by_kept, kept), (by_erased, erased)):
        variants, places = (units & chosen[:, None]).nonzero(as_tuple=True)
        sums = added_at(sums, variants, flat[places])
    sums[by_erased] = flat.sum(0) - sums[by_erased]
    shape = (len(kept), *products.shape[1:])
    all_weight, left = products[..., 0].sum(0), sums.reshape(shape)[..., 0]
    by_erased &= (left >= LEAST_LEFT * all_weight).all(1)
    others = (~by_kept & ~by_erased).nonzero()[:, 0]
    if len(others):
        sums[others] = kept[others].to(flat.dtype) @ flat
    return sums.reshape(shape)
