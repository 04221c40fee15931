"""Functions that all adapters use to pad batches and to remove or replace tokens in them.

Shapes: B rows, T tokens, V variants.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from attnaudit.adapters.protocol import TEXT, Inputs
from attnaudit.arrays import Integers
from attnaudit.errors import AdapterError


def pad(
    rows: Sequence[Sequence[int | bool] | NDArray[Any]], *, value: int | bool, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Pad rows of different lengths on the right.

    Args:
        rows: One sequence of integers or flags per row.
        value: Value of the padding. The padded rows are boolean if this value is a bool, and int64 otherwise.
        device: Device of the returned tensors.

    Returns:
        (B, T) padded rows and (B, T) mask, False on padding. T is at least 1, even if all rows are empty.

    Raises:
        AdapterError: A row contains floating point numbers.
    """
    counts = np.array([len(row) for row in rows], dtype=np.int64)
    entries = np.array(list(chain.from_iterable(rows)))
    if entries.dtype.kind not in "bui" and len(entries):
        _refuse_fractions(rows)
        entries = np.array([int(entry) for entry in entries])
    (padded,), mask = pad_flat(counts, [(entries, value)], device=device)
    return padded, mask


def pad_flat(
    counts: Integers, fields: Sequence[tuple[NDArray[Any], int | bool]], *, device: torch.device
) -> tuple[list[Tensor], Tensor]:
    """Pad fields whose rows follow each other in flat arrays. Fields of the same type move to the device together.

    Args:
        counts: (B,) number of entries of each row.
        fields: For each field, its entries (N,) in all rows, and the value of its padding. As in `pad`, this value
            determines the type of the field.
        device: Device of the returned tensors.

    Returns:
        The padded fields (B, T), and the mask (B, T), which is False on padding.
    """
    present = np.arange(max(1, int(counts.max(initial=0)))) < counts[:, None]
    with_mask = [*fields, (np.ones(int(counts.sum()), dtype=np.bool_), False)]
    padded: dict[int, Tensor] = {}
    for is_flag, dtype in ((False, np.int64), (True, np.bool_)):
        group = [number for number, (_, value) in enumerate(with_mask) if isinstance(value, bool) == is_flag]
        values: NDArray[Any] = np.empty((len(group), *present.shape), dtype=dtype)
        for place, number in enumerate(group):
            entries, value = with_mask[number]
            values[place] = value
            values[place][present] = entries
        padded.update(zip(group, _to_device(torch.from_numpy(values), device), strict=True))
    *others, mask = (padded[number] for number in range(len(with_mask)))
    return others, mask


def _refuse_fractions(rows: Sequence[Sequence[int | bool] | NDArray[Any]]) -> None:
    """Raise AdapterError if a row contains floating point numbers."""
    for entries in (torch.tensor(row) for row in rows if len(row)):
        if entries.is_floating_point():
            raise AdapterError(f"token ids are {entries.dtype}, such as {entries[0].item():g}. Give whole numbers.")


def select_rows(
    inputs: Inputs, rows: Sequence[int], *, per_token: Collection[str] = (), left: Collection[str] = ()
) -> Inputs:
    """Return some rows of a batch, with only as much padding as they need.

    Args:
        inputs: The batch.
        rows: The indices of the rows.
        per_token: Names of the entries of `Inputs.extra` with one value per token of the text, shape (B, T).
        left: The streams that are padded on the left. All other streams are padded on the right.
    """
    index = torch.tensor(list(rows), dtype=torch.long, device=inputs.ids[TEXT].device)

    def part(stream: str, mask: Tensor) -> slice:
        width = max(1, int(mask[index].sum(1).max()))
        return slice(mask.shape[1] - width, None) if stream in left else slice(width)

    parts = {stream: part(stream, mask) for stream, mask in inputs.mask.items()}

    def selected(values: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {stream: value[:, parts[stream]][index] for stream, value in values.items()}

    extra = {n: value[:, parts[TEXT]] if n in per_token else value for n, value in inputs.extra.items()}
    return Inputs(
        ids=selected(inputs.ids),
        mask=selected(inputs.mask),
        special=selected(inputs.special),
        tokens={stream: [strings[row] for row in rows] for stream, strings in inputs.tokens.items()},
        words=selected(inputs.words),
        passages=selected(inputs.passages),
        boxes={stream: [boxes[row] for row in rows] for stream, boxes in inputs.boxes.items()},
        times={stream: [times[row] for row in rows] for stream, times in inputs.times.items()},
        tables=inputs.tables,
        extra={name: value[index] for name, value in extra.items()},
    )


def moved(inputs: Inputs, device: torch.device) -> Inputs:
    """Return a batch on a device. Tensors of the same type are copied together, because each copy has a delay.

    Args:
        inputs: The batch, without `Inputs.tables`.
        device: The device.
    """
    groups: dict[str, Mapping[str, Tensor]] = {
        name: getattr(inputs, name) for name in ("ids", "mask", "special", "words", "passages", "extra")
    }
    names = [(group, key) for group, values in groups.items() for key in values]
    tensors = [groups[group][key] for group, key in names]
    if all(tensor.device == device for tensor in tensors):
        return inputs
    found: dict[str, dict[str, Tensor]] = {group: {} for group in groups}
    for (group, key), tensor in zip(names, copied(tensors, device), strict=True):
        found[group][key] = tensor
    return replace(
        inputs,
        ids=found["ids"],
        mask=found["mask"],
        special=found["special"],
        words=found["words"],
        passages=found["passages"],
        extra=found["extra"],
    )


def copied(tensors: Sequence[Tensor], device: torch.device) -> list[Tensor]:
    """Copy tensors to a device, with one copy for all tensors of the same type that are on the same device."""
    kinds = [(tensor.dtype, tensor.device) for tensor in tensors]
    found: dict[int, Tensor] = {}
    for kind in dict.fromkeys(kinds):
        group = [tensor for tensor, its_kind in zip(tensors, kinds, strict=True) if its_kind == kind]
        together = group[0] if len(group) == 1 else torch.cat([tensor.reshape(-1) for tensor in group])
        parts = torch.split(_to_device(together, device).reshape(-1), [tensor.numel() for tensor in group])
        numbers = [number for number, its_kind in enumerate(kinds) if its_kind == kind]
        found.update(zip(numbers, parts, strict=True))
    return [found[number].view(tensor.shape) for number, tensor in enumerate(tensors)]


def _to_device(tensor: Tensor, device: torch.device) -> Tensor:
    if device.type == "cuda" and not tensor.is_cuda:  # Copies from pinned memory overlap with computation.
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.cpu() if device.type == "cpu" else tensor.to(device)


def delete_positions(
    inputs: Inputs, stream: str, drop: Sequence[tuple[int, int]], *, pad_id: int, per_token: Collection[str] = ()
) -> Inputs:
    """Return copies of rows, each without one position.

    Args:
        inputs: The batch.
        stream: The stream that loses tokens.
        drop: One (row, position) per copy: the row to copy, and the position to remove.
        pad_id: Id that fills the padding.
        per_token: Names of the entries of `Inputs.extra` whose shape is (B, T). See `keep_positions`.
    """
    device = inputs.ids[stream].device
    rows = torch.tensor([row for row, _ in drop], dtype=torch.long, device=device)
    positions = torch.tensor([position for _, position in drop], dtype=torch.long, device=device)
    keep = torch.ones((len(drop), inputs.ids[stream].shape[1]), dtype=torch.bool, device=device)
    keep[torch.arange(len(drop), device=device), positions] = False
    return keep_positions(inputs, stream, rows, keep, pad_id=pad_id, per_token=per_token)


def keep_positions(
    inputs: Inputs, stream: str, rows: Tensor, keep: Tensor, *, pad_id: int, per_token: Collection[str] = ()
) -> Inputs:
    """Return copies of rows, each with only some of its positions.

    The copies are padded on the right, even if `inputs` is padded on the left. Tokens keep their order and their word
    index. The result has no entries in `Inputs.tokens`, `boxes` and `times`, because the copies are never shown.

    Args:
        inputs: The batch.
        stream: The stream that loses tokens.
        rows: (V,) index of the row that each variant is made from.
        keep: (V, T) True at positions to keep.
        pad_id: Id that fills the padding.
        per_token: Names of the entries of `Inputs.extra` with one value per token of this stream, shape (B, T). Their
            values move with the tokens, and are zero on padding. All other entries are copied unchanged.
    """
    order, kept = kept_positions(keep & inputs.mask[stream][rows])
    ids = inputs.ids[stream][rows].gather(1, order).masked_fill(~kept, pad_id)
    special = inputs.special[stream][rows].gather(1, order) & kept

    def move(values: Tensor, padding: int) -> Tensor:
        return values[rows].gather(1, order).masked_fill(~kept, padding)

    words = {name: move(value, -1) for name, value in inputs.words.items() if name == stream}
    passages = {name: move(value, -1) for name, value in inputs.passages.items() if name == stream}
    extra = {name: move(value, 0) for name, value in inputs.extra.items() if name in per_token}
    return _variants(inputs, stream, rows, ids, kept, special, words, passages, extra)


def kept_positions(keep: Tensor) -> tuple[Tensor, Tensor]:
    """Return where the tokens of copies with only some positions come from.

    Args:
        keep: (V, T) True at positions to keep.

    Returns:
        Two (V, W) tensors, where W is the largest number of positions that a copy keeps, but at least 1: the position
        in the row that each token of a copy comes from, and a mask that is False at the padding of the copies.
    """
    # A stable sort moves the kept positions to the front and preserves their order.
    order = (~keep).to(torch.uint8).sort(dim=1, stable=True).indices
    width = max(1, int(keep.sum(1).max())) if len(keep) else 1
    return order[:, :width], keep.gather(1, order)[:, :width]


def substitute_positions(inputs: Inputs, stream: str, rows: Tensor, replaced: Tensor, *, mask_id: int) -> Inputs:
    """Return copies of rows in which some tokens are replaced by the mask token.

    All other tokens keep their positions, and padding is never replaced. The result has no entries in `Inputs.tokens`,
    `boxes` and `times`.

    Args:
        inputs: The batch.
        stream: The stream whose tokens are replaced.
        rows: (V,) index of the row that each variant is made from.
        replaced: (V, T) True at positions to replace.
        mask_id: Id of the mask token.
    """
    mask, special = inputs.mask[stream][rows], inputs.special[stream][rows]
    ids = inputs.ids[stream][rows].masked_fill(replaced & mask, mask_id)
    words = {name: value[rows] for name, value in inputs.words.items() if name == stream}
    passages = {name: value[rows] for name, value in inputs.passages.items() if name == stream}
    return _variants(inputs, stream, rows, ids, mask, special, words, passages, {})


def without_shared_padding(inputs: Inputs, stream: str, *, per_token: Collection[str] = ()) -> Inputs:
    """Return a batch without the positions at the end of a stream that are padding in every row.

    Args:
        inputs: The batch, without entries in `Inputs.tokens`, `boxes` and `times`.
        stream: The stream to shorten.
        per_token: Names of the entries of `Inputs.extra` with one value per token of this stream, shape (B, T). Other
            entries are left unchanged.
    """
    used = inputs.mask[stream].any(0).nonzero()
    width = 1 + int(used.max()) if len(used) else 1
    if width == inputs.mask[stream].shape[1]:
        return inputs

    def shorten(values: Mapping[str, Tensor], names: Collection[str] = (stream,)) -> dict[str, Tensor]:
        return {name: value[:, :width] if name in names else value for name, value in values.items()}

    return replace(
        inputs,
        ids=shorten(inputs.ids),
        mask=shorten(inputs.mask),
        special=shorten(inputs.special),
        words=shorten(inputs.words),
        passages=shorten(inputs.passages),
        extra=shorten(inputs.extra, per_token),
    )


def _variants(
    inputs: Inputs,
    stream: str,
    rows: Tensor,
    ids: Tensor,
    mask: Tensor,
    special: Tensor,
    words: dict[str, Tensor],
    passages: dict[str, Tensor],
    extra: dict[str, Tensor],
) -> Inputs:
    """Build a batch from the changed entries of one stream and the unchanged entries of the other streams."""

    def unchanged(values: Mapping[str, Tensor], changed: Collection[str] = (stream,)) -> dict[str, Tensor]:
        return {name: value[rows] for name, value in values.items() if name not in changed}

    return Inputs(
        tables=inputs.tables,
        ids={stream: ids, **unchanged(inputs.ids)},
        mask={stream: mask, **unchanged(inputs.mask)},
        special={stream: special, **unchanged(inputs.special)},
        words={**words, **unchanged(inputs.words)},
        passages={**passages, **unchanged(inputs.passages)},
        extra={**extra, **unchanged(inputs.extra, tuple(extra))},
    )


def repeated(inputs: Inputs, times: int) -> Inputs:
    """Repeat each row of a batch. Row b becomes the rows from b·times to (b+1)·times - 1.

    The result has no entries in `Inputs.tokens`, `boxes` and `times`.
    """

    def repeat(values: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {name: value.repeat_interleave(times, dim=0) for name, value in values.items()}

    return Inputs(
        tables=inputs.tables,
        ids=repeat(inputs.ids),
        mask=repeat(inputs.mask),
        special=repeat(inputs.special),
        words=repeat(inputs.words),
        passages=repeat(inputs.passages),
        extra=repeat(inputs.extra),
    )
