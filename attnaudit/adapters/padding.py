"""Padding and deletion on ids, shared by adapters."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from attnaudit.adapters.protocol import Inputs


def pad(rows: Sequence[Sequence[int | bool]], *, value: int | bool, device: torch.device) -> tuple[Tensor, Tensor]:
    """Ragged rows -> ((B, T) padded on the right with `value`, (B, T) mask that is True on entries).

    T is at least 1, so that an empty row is still a row.
    """
    kind = torch.bool if isinstance(value, bool) else torch.long
    width = max(1, max((len(row) for row in rows), default=1))
    padded = torch.full((len(rows), width), value, dtype=kind)
    mask = torch.zeros((len(rows), width), dtype=torch.bool)
    for b, row in enumerate(rows):
        padded[b, : len(row)] = torch.tensor(row, dtype=kind)
        mask[b, : len(row)] = True
    return padded.to(device, non_blocking=True), mask.to(device, non_blocking=True)


def delete_positions(inputs: Inputs, stream: str, drop: Sequence[tuple[int, int]], *, pad_id: int) -> Inputs:
    """One variant per (row, position): the row without that position, the rest moved up by one, padded on the right.

    Tokens (strings) are not carried: variants are run, not shown. Padding on either side of the source is fine.
    """
    device = inputs.ids[stream].device
    rows = torch.tensor([r for r, _ in drop], dtype=torch.long, device=device)
    gone = torch.tensor([p for _, p in drop], dtype=torch.long, device=device)
    mask = inputs.mask[stream][rows]
    keep = mask.clone()
    keep[torch.arange(len(drop), device=device), gone] = False
    # Stable sort brings kept positions to the front in their order.
    order = (~keep).to(torch.uint8).sort(dim=1, stable=True).indices
    width = max(1, int(keep.sum(1).max())) if len(drop) else 1
    order, kept = order[:, :width], keep.gather(1, order)[:, :width]
    ids = inputs.ids[stream][rows].gather(1, order).masked_fill(~kept, pad_id)
    special = inputs.special[stream][rows].gather(1, order) & kept

    def rest(values: dict[str, Tensor]) -> dict[str, Tensor]:
        return {name: value[rows] for name, value in values.items() if name != stream}

    return Inputs(
        ids={stream: ids, **rest(dict(inputs.ids))},
        mask={stream: kept, **rest(dict(inputs.mask))},
        special={stream: special, **rest(dict(inputs.special))},
        extra=rest(dict(inputs.extra)),
    )
