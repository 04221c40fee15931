"""The order of the tokens in a batch, and the tokens that remain when some tokens are removed.

Shapes: B instances, T tokens (padded), V variants, W tokens of the longest variant, d features.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class OrderedTokens:
    """The order of the tokens in a batch. The padding may be at any position.

    Attributes:
        order: (B, T) positions of each row's tokens, in order, followed by the positions of its padding.
        lengths: (B,) number of tokens in each row.
    """

    order: Tensor
    lengths: Tensor

    def kept(self, rows: Tensor, keep: Tensor) -> Tensor:
        """Return a mask (V, T) over the ordered tokens of each variant, True on the tokens that it keeps.

        Args:
            rows: (V,) index of the row that each variant is made from.
            keep: (V, T) True at positions to keep.
        """
        ranks = torch.arange(keep.shape[1], device=keep.device)
        return keep.gather(1, self.order[rows]) & (ranks < self.lengths[rows, None])

    def positions(self, rows: Tensor, keep: Tensor) -> tuple[Tensor, Tensor]:
        """Return the positions of the tokens that each variant keeps.

        Args:
            rows: (V,) index of the row that each variant is made from.
            keep: (V, T) True at positions to keep.

        Returns:
            (V, W) positions of the kept tokens, in order, followed by arbitrary positions; and a (V, W) mask, True on
            the positions of kept tokens.
        """
        ranks, real = pack(self.kept(rows, keep))
        return self.order[rows].gather(1, ranks), real


def in_order(mask: Tensor) -> tuple[Tensor, Tensor]:
    """Return the `order` (B, T) and `lengths` (B,) of `OrderedTokens` for a mask (B, T) that is True on tokens."""
    return (~mask).to(torch.uint8).sort(dim=1, stable=True).indices, mask.sum(1)


def select_positions(values: Tensor, positions: Tensor) -> Tensor:
    """Select entries of each row.

    The result is the same as that of `torch.gather`, but the backward pass is much faster, because whole entries are
    copied instead of single numbers.

    Args:
        values: (B, T, d) entries.
        positions: (B, W) positions to select.

    Returns:
        (B, W, d) selected entries.
    """
    rows = torch.arange(len(values), device=values.device).unsqueeze(1) * values.shape[1]
    selected = values.reshape(-1, values.shape[-1]).index_select(0, (positions + rows).flatten())
    return selected.view(*positions.shape, values.shape[-1])


class _Reordering(torch.autograd.Function):
    """Reorder the entries of the first dimension.

    The backward pass of `index_select` adds the gradients of one entry after the other to zeros. Here, each entry is
    selected exactly once, so the backward pass selects the gradients in the inverse order.
    """

    @staticmethod
    def forward(ctx: Any, values: Tensor, order: Tensor, inverse: Tensor) -> Tensor:
        ctx.save_for_backward(order, inverse)
        return values.index_select(0, order)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        order, inverse = ctx.saved_tensors
        return reordered(gradients[0], inverse, order), None, None


def reordered(values: Tensor, order: Tensor, inverse: Tensor) -> Tensor:
    """Return `values[order]`, with a fast backward pass.

    Args:
        values: (N, ...) entries.
        order: (N,) a permutation of the indices of the entries.
        inverse: (N,) the inverse permutation.
    """
    if not torch.is_grad_enabled():
        return values.index_select(0, order)
    return cast(Tensor, _Reordering.apply(values, order, inverse))  # type: ignore[no-untyped-call]


def pack(kept: Tensor) -> tuple[Tensor, Tensor]:
    """Move the kept entries of each row to the front.

    Args:
        kept: (V, T) mask, True on entries to keep.

    Returns:
        (V, W) indices of the kept entries, in order, followed by indices of other entries; and a (V, W) mask, True on
        the indices of kept entries. W is the largest number of kept entries in a row, and at least 1.
    """
    lengths = kept.sum(1)
    width = max(1, int(lengths.max())) if len(kept) else 1
    order = (~kept).to(torch.uint8).sort(dim=1, stable=True).indices[:, :width]
    return order, torch.arange(width, device=kept.device) < lengths[:, None]
