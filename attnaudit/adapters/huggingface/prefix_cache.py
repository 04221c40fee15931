"""Texts that lack tokens, from the keys and values of the prefix that they share with the whole text: causal models.

What comes before the first token that is gone is the same for every variant, and is not run again. The rest is run in
place: tokens that are gone stay where they are, hidden from attention, and positions are counted without them, so that
variants that lack different tokens share a pass. Used only where it gives what deletion gives.
Shapes: B rows, T tokens, V variants, C classes, H heads.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from attnaudit.adapters.huggingface import probe
from attnaudit.adapters.huggingface.recorder import Recorder
from attnaudit.adapters.protocol import TEXT, Inputs

if TYPE_CHECKING:
    from attnaudit.adapters.huggingface.transformer_adapter import HuggingFaceAdapter


@dataclass(frozen=True, slots=True)
class SharedStates:
    """layers: keys and values (B, H, T, d) of each layer. None: the batch cannot be resumed."""

    layers: tuple[tuple[Tensor, Tensor], ...] | None


def share(adapter: HuggingFaceAdapter, inputs: Inputs) -> SharedStates:
    """Keys and values of one pass over the whole texts. None of them where a token sees anything else than all that is
    before it, as under a sliding window shorter than the text, or where texts are padded on the left."""
    from transformers import DynamicCache

    mask = inputs.mask[TEXT]
    if not bool(mask[:, 0].all()):
        return SharedStates(None)
    cache, seen = DynamicCache(), Recorder(adapter.layout.places, {TEXT: mask})
    adapter.called_with({**adapter.arguments(inputs), "past_key_values": cache, "use_cache": True}, mask, seen)
    before = torch.ones(mask.shape[1], mask.shape[1], dtype=torch.bool, device=mask.device).tril()
    expected = (before & mask[:, :, None] & mask[:, None, :])[:, None]
    if not all(bool((allowed == expected).all()) for allowed in seen.allowed.values()):
        return SharedStates(None)
    return SharedStates(tuple((layer.keys, layer.values) for layer in cache.layers))


def width(inputs: Inputs, shared: SharedStates, rows: Tensor, keep: Tensor) -> Tensor:
    """(V,) how many tokens of each variant come after what it shares: from the first that is gone to the last kept."""
    if shared.layers is None:
        return (inputs.mask[TEXT][rows] & keep).sum(1)
    start, stop = _rest(inputs, rows, keep)
    return stop - start


def _rest(inputs: Inputs, rows: Tensor, keep: Tensor) -> tuple[Tensor, Tensor]:
    """(V,) and (V,): where each variant stops being the whole text, and where it ends. The logits are read off its last
    token, which is run in any case."""
    mask = inputs.mask[TEXT][rows]
    kept = mask & keep
    gone = mask & ~kept
    size = mask.shape[1]
    first = torch.where(gone.any(1), gone.int().argmax(1), size)
    last = size - 1 - kept.flip(1).int().argmax(1)
    return torch.minimum(first, last), last + 1


def logits_without(
    adapter: HuggingFaceAdapter, inputs: Inputs, shared: SharedStates, rows: Tensor, keep: Tensor
) -> Tensor:
    """As SharingAdapter.resume."""
    starts, stops = _rest(inputs, rows, keep)
    start, stop = int(starts.min()), int(stops.max())
    kept = inputs.mask[TEXT][rows] & keep
    if shared.layers is None or stop - start >= int(kept.sum(1).max()):
        return adapter.logits(adapter.keep(inputs, TEXT, rows, keep))
    part = slice(start, stop)
    ids = inputs.ids[TEXT][rows, part].masked_fill(~kept[:, part], adapter.parts.pad_id)
    given: dict[str, Any] = {
        "input_ids": ids,
        "attention_mask": kept[:, :stop].long(),
        "past_key_values": _shared(shared.layers, rows, start),
        "use_cache": True,
        "return_dict": True,
    }
    if adapter.accepts("position_ids"):
        counted = kept.long().cumsum(1) - 1
        given["position_ids"] = counted[:, part].clamp_min(0) + adapter.parts.offset
    return adapter.called_with(given, kept[:, part])


def _shared(layers: tuple[tuple[Tensor, Tensor], ...], rows: Tensor, start: int) -> Any:
    """The rows' keys and values before `start`, which layers read and do not add to."""
    from transformers.cache_utils import Cache, DynamicLayer

    class Prefix(DynamicLayer):  # type: ignore[misc]
        def __init__(self, keys: Tensor, values: Tensor) -> None:
            super().__init__()
            self.lazy_initialization(keys, values)
            self.keys, self.values = keys, values

        def update(self, keys: Tensor, values: Tensor, *_args: Any, **_rest: Any) -> tuple[Tensor, Tensor]:
            own = [held[rows, :, :start] for held in (self.keys, self.values)]
            return torch.cat([own[0], keys], dim=-2), torch.cat([own[1], values], dim=-2)

        def get_seq_length(self) -> int:
            return start

    return Cache(layers=[Prefix(keys, values) for keys, values in layers])


def proved(adapter: HuggingFaceAdapter) -> bool:
    """Whether made-up texts without each of their tokens, and without some, give what deletion gives."""
    if adapter.parts.decoding is not None or not adapter.layout.causal or adapter.pads_left:
        return False
    if not (adapter.accepts("past_key_values") and adapter.accepts("use_cache")):
        return False
    inputs = probe.made_up(adapter)
    real = inputs.real()
    rows, gone = real.nonzero(as_tuple=True)
    keep = inputs.mask[TEXT][rows]
    keep[torch.arange(len(rows)), gone] = False
    several = inputs.mask[TEXT][:1].clone()
    several[0, real[0].nonzero()[1::2, 0]] = False
    rows, keep = torch.cat([rows, rows.new_zeros(1)]), torch.cat([keep, several])
    starts, _ = _rest(inputs, rows, keep)
    with torch.no_grad():
        expected = adapter.logits(adapter.keep(inputs, TEXT, rows, keep))

        def in_place() -> Tensor:
            found = torch.full_like(expected, torch.nan)
            shared = share(adapter, inputs)
            if shared.layers is None:
                return found
            # One pass for each place to start from: together they would all start at the first.
            for start in set(starts.tolist()):
                same = starts == start
                found[same] = logits_without(adapter, inputs, shared, rows[same], keep[same])
            return found

        return probe.agrees(in_place, expected)
