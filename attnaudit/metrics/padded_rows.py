"""Helpers for padded rows: the arguments of most metrics, values (..., T) with a boolean mask of the real tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

#: Largest number of elements in a temporary float64 tensor. Such a tensor needs 16 MiB.
ELEMENTS_PER_CHUNK = 2**21


class Rows(NamedTuple):
    """The tensors of one metric call, flattened to B rows.

    Attributes:
        values: Float64 tensors, each (B, T).
        mask: (B, T) True at real tokens.
        leading: The shape of the original tensors without the last dimension. A metric reshapes its result (B,) to this
            shape.
    """

    values: tuple[Tensor, ...]
    mask: Tensor
    leading: torch.Size


def padded_rows(mask: Tensor | None, **values: Tensor) -> Rows:
    """Flatten tensors of one shape (..., T) to float64 tensors (B, T).

    Args:
        mask: Boolean tensor that broadcasts to the shape of the values; None if every position is real.
        values: The tensors. Their names appear in error messages.

    Raises:
        ValueError: Shapes differ, a tensor has no dimension, or the mask is not boolean.
    """
    named = list(values.items())
    first_name, first = named[0]
    if first.dim() == 0:
        raise ValueError(f"{first_name}: expected a tensor of shape (..., T) but got a single number")
    for name, value in named[1:]:
        if value.shape != first.shape:
            raise ValueError(
                f"{name}: expected the shape of {first_name}, {tuple(first.shape)}, but got {tuple(value.shape)}"
            )
    flat_mask = broadcast_mask(mask, first).reshape(-1, first.shape[-1])
    flat = tuple(value.to(torch.float64).reshape(-1, first.shape[-1]) for value in values.values())
    return Rows(flat, flat_mask, first.shape[:-1])


def broadcast_mask(mask: Tensor | None, like: Tensor) -> Tensor:
    """Expand a mask to the shape of `like`. If the mask is None, return a mask that is True everywhere.

    Raises:
        ValueError: The mask is not boolean, or does not broadcast.
    """
    if mask is None:
        return torch.ones(like.shape, dtype=torch.bool, device=like.device)
    if mask.dtype != torch.bool:
        raise ValueError(f"mask: expected a boolean tensor, True at real tokens, but got {mask.dtype}")
    try:
        return mask.to(like.device).expand(like.shape)
    except RuntimeError:
        raise ValueError(
            f"mask: expected a shape that broadcasts to {tuple(like.shape)} but got {tuple(mask.shape)}"
        ) from None


def distributions(values: Tensor, mask: Tensor, name: str) -> Tensor:
    """Normalise rows of weights over the mask.

    Args:
        values: (B, T) weights of at least 0.
        mask: (B, T) True at real tokens.
        name: Name of the weights, for the message.

    Returns:
        (B, T) distributions, 0 outside the mask. A row is NaN if its weights inside the mask sum to 0 or contain NaN.

    Raises:
        ValueError: A weight is negative.
    """
    inside = torch.where(mask, values, 0.0)
    if bool((inside < 0).any()):
        raise ValueError(f"{name}: expected weights of at least 0 but got {float(inside.min())}")
    total = inside.sum(-1, keepdim=True)
    return torch.where(total > 0, inside / total, torch.nan)


def compact(mask: Tensor, *values: Tensor) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
    """Move the real tokens of every row to the front, without changing their order.

    Args:
        mask: (B, T) True at real tokens.
        values: Tensors (B, T) to move.

    Returns:
        (B, T) original positions of the moved tokens, (B,) numbers of real tokens, and the moved values. Padding
        follows the real tokens.
    """
    lengths = mask.sum(-1)
    place = torch.arange(mask.shape[-1], device=mask.device)
    if torch.equal(mask, place < lengths[..., None]):
        return place.expand(mask.shape), lengths, values
    before = mask.cumsum(-1)
    target = torch.where(mask, before - 1, lengths[..., None] + place - before)
    positions = torch.empty_like(target).scatter_(-1, target, place.expand(mask.shape))
    return positions, lengths, tuple(value.gather(-1, positions) for value in values)


def length_chunks(lengths: Tensor, cost: Callable[[int], int]) -> Iterator[tuple[Tensor, int]]:
    """Split rows into chunks of similar length whose temporary tensors stay small.

    Rows of length 0 are left out, because every metric is undefined for them.

    Args:
        lengths: (B,) number of real tokens.
        cost: Length of a row -> number of elements that its temporary tensors need.

    Yields:
        The row indices of a chunk, and the length of its longest row. The temporary tensors of a chunk whose rows are
        padded to this length need at most `ELEMENTS_PER_CHUNK` elements. A single row that needs more elements is a
        chunk of its own.
    """
    order = torch.argsort(lengths, stable=True)
    ordered: list[int] = lengths[order].tolist()
    start = next((i for i, length in enumerate(ordered) if length > 0), len(ordered))
    while start < len(ordered):
        end = start + 1
        while end < len(ordered) and (end + 1 - start) * cost(ordered[end]) <= ELEMENTS_PER_CHUNK:
            end += 1
        yield order[start:end], ordered[end - 1]
        start = end
