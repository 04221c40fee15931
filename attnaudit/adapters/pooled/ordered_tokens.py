"""The tokens of a batch in their order, without padding, and which of them a shorter variant keeps.

Shapes: B instances, T tokens (padded), V variants, W tokens of the longest variant.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Ordered:
    """order: (B, T) positions of the tokens in their order, then padding. lengths: (B,)."""

    order: Tensor
    lengths: Tensor

    def kept(self, rows: Tensor, keep: Tensor) -> Tensor:
        """rows (V,), keep (V, T) positions -> (V, T) which tokens stay, in their order and without padding."""
        places = torch.arange(keep.shape[1], device=keep.device)
        return keep.gather(1, self.order[rows]) & (places < self.lengths[rows, None])

    def positions(self, rows: Tensor, keep: Tensor) -> tuple[Tensor, Tensor]:
        """rows (V,), keep (V, T) positions -> (V, W) positions of the tokens that stay, moved up in their order, and
        which of them are tokens, not padding."""
        places, inside = moved_up(self.kept(rows, keep))
        return self.order[rows].gather(1, places), inside


def in_order(mask: Tensor) -> tuple[Tensor, Tensor]:
    """mask (B, T) -> order and lengths."""
    return (~mask).to(torch.uint8).sort(dim=1, stable=True).indices, mask.sum(1)


def at_places(values: Tensor, places: Tensor) -> Tensor:
    """values (B, T, d), places (B, W) -> (B, W, d): of each row, its entries there. As `gather`, which goes number by
    number where this copies whole entries; its gradient takes several times as long."""
    rows = torch.arange(len(values), device=values.device).unsqueeze(1) * values.shape[1]
    taken = values.reshape(-1, values.shape[-1]).index_select(0, (places + rows).flatten())
    return taken.view(*places.shape, values.shape[-1])


def moved_up(kept: Tensor) -> tuple[Tensor, Tensor]:
    """kept (V, T) -> (V, W) places of what is kept, then of what is not, and (V, W) which are kept. W is at least 1."""
    lengths = kept.sum(1)
    width = max(1, int(lengths.max())) if len(kept) else 1
    order = (~kept).to(torch.uint8).sort(dim=1, stable=True).indices[:, :width]
    return order, torch.arange(width, device=kept.device) < lengths[:, None]
