"""Padding and deletion on ids, shared by adapters."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from attnaudit.adapters.protocol import Inputs
from attnaudit.errors import AdapterError


def pad(
    rows: Sequence[Sequence[int | bool] | NDArray[Any]], *, value: int | bool, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Ragged rows -> ((B, T) padded on the right with `value`, (B, T) mask that is True on entries).

    T is at least 1, so that an empty row is still a row. Raises AdapterError for ids that are no whole numbers.
    """
    kind = torch.bool if isinstance(value, bool) else torch.long
    width = max(1, max((len(row) for row in rows), default=1))
    padded = torch.full((len(rows), width), value, dtype=kind)
    mask = torch.zeros((len(rows), width), dtype=torch.bool)
    for b, row in enumerate(rows):
        found = torch.tensor(row, dtype=None if len(row) else kind)
        if found.is_floating_point():
            raise AdapterError(f"token ids are {found.dtype}, such as {found[0].item():g}: give whole numbers.")
        padded[b, : len(row)] = found.to(kind)
        mask[b, : len(row)] = True
    if device.type == "cuda":  # from pinned memory a copy overlaps with what the device is doing
        padded, mask = padded.pin_memory(), mask.pin_memory()
    return padded.to(device, non_blocking=True), mask.to(device, non_blocking=True)


def delete_positions(
    inputs: Inputs, stream: str, drop: Sequence[tuple[int, int]], *, pad_id: int, per_token: Collection[str] = ()
) -> Inputs:
    """One variant per (row, position): the row without that position, as `keep_positions`."""
    device = inputs.ids[stream].device
    rows = torch.tensor([r for r, _ in drop], dtype=torch.long, device=device)
    gone = torch.tensor([p for _, p in drop], dtype=torch.long, device=device)
    keep = torch.ones((len(drop), inputs.ids[stream].shape[1]), dtype=torch.bool, device=device)
    keep[torch.arange(len(drop), device=device), gone] = False
    return keep_positions(inputs, stream, rows, keep, pad_id=pad_id, per_token=per_token)


def keep_positions(
    inputs: Inputs, stream: str, rows: Tensor, keep: Tensor, *, pad_id: int, per_token: Collection[str] = ()
) -> Inputs:
    """One variant per entry of rows (V,): that row with only the positions that keep (V, T) marks, moved up in their
    order and padded on the right.

    Words move with their tokens, and so do the extra entries named in per_token, which are (B, T) of this stream; they
    are zero on padding. Tokens (strings) are not carried: variants are run, not shown. Padding on either side of the
    source is fine.
    """
    keep = keep & inputs.mask[stream][rows]
    # Stable sort brings kept positions to the front in their order.
    order = (~keep).to(torch.uint8).sort(dim=1, stable=True).indices
    width = max(1, int(keep.sum(1).max())) if len(rows) else 1
    order, kept = order[:, :width], keep.gather(1, order)[:, :width]
    ids = inputs.ids[stream][rows].gather(1, order).masked_fill(~kept, pad_id)
    special = inputs.special[stream][rows].gather(1, order) & kept

    def moved(values: Tensor, padding: int) -> Tensor:
        return values[rows].gather(1, order).masked_fill(~kept, padding)

    words = {name: moved(value, -1) for name, value in inputs.words.items() if name == stream}
    extra = {name: moved(value, 0) for name, value in inputs.extra.items() if name in per_token}
    return _variants(inputs, stream, rows, ids, kept, special, words, extra)


def substitute_positions(inputs: Inputs, stream: str, rows: Tensor, replaced: Tensor, *, mask_id: int) -> Inputs:
    """One variant per entry of rows (V,): that row with `mask_id` at the positions that replaced (V, T) marks; nothing
    moves. Padding is left alone, strings are not carried."""
    mask, special = inputs.mask[stream][rows], inputs.special[stream][rows]
    ids = inputs.ids[stream][rows].masked_fill(replaced & mask, mask_id)
    words = {name: value[rows] for name, value in inputs.words.items() if name == stream}
    return _variants(inputs, stream, rows, ids, mask, special, words, {})


def _variants(
    inputs: Inputs,
    stream: str,
    rows: Tensor,
    ids: Tensor,
    mask: Tensor,
    special: Tensor,
    words: dict[str, Tensor],
    extra: dict[str, Tensor],
) -> Inputs:
    def rest(values: Mapping[str, Tensor], without: Collection[str] = (stream,)) -> dict[str, Tensor]:
        return {name: value[rows] for name, value in values.items() if name not in without}

    return Inputs(
        ids={stream: ids, **rest(inputs.ids)},
        mask={stream: mask, **rest(inputs.mask)},
        special={stream: special, **rest(inputs.special)},
        words={**words, **rest(inputs.words)},
        extra={**extra, **rest(inputs.extra, tuple(extra))},
    )


def repeated(inputs: Inputs, times: int) -> Inputs:
    """Each row so many times, one after another: row b becomes rows b·times to (b+1)·times - 1. Strings stay behind."""

    def rows(values: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {name: value.repeat_interleave(times, dim=0) for name, value in values.items()}

    return Inputs(
        ids=rows(inputs.ids),
        mask=rows(inputs.mask),
        special=rows(inputs.special),
        words=rows(inputs.words),
        extra=rows(inputs.extra),
    )
