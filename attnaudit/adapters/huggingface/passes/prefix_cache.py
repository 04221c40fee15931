"""Compute logits of texts with some tokens removed, in causal models, from cached keys and values of the whole text.

A variant is a text with some tokens removed. The tokens before the first removed token have the same keys and values as
in the whole text, so the model does not run on them again. From there on, the removed tokens stay in the input, but
attention to them is masked, and position ids do not count them. Variants that lack different tokens can therefore run
in one batch. An adapter uses these functions only if probing the model has shown that they give the same logits as
deletion.

Shapes: B rows, T tokens, V variants, C classes, H heads, d features of a head.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from attnaudit.adapters.huggingface.attention.recorder import Recorder
from attnaudit.adapters.huggingface.passes.runner import Runner
from attnaudit.adapters.protocol import TEXT, Inputs
from attnaudit.adapters.query_blocks import block_starts, queries_per_block

#: The names of the argument of forward() that takes cached keys and values. The first one is that of Transformers 5.24
#: and newer.
CACHE_ARGUMENTS = ("cache", "past_key_values")


def cache_argument(accepted: Collection[str]) -> str:
    """Return the argument that takes cached keys and values; "" if there is none.

    Args:
        accepted: The names of the arguments that forward() takes.
    """
    if "use_cache" not in accepted:
        return ""
    return next((name for name in CACHE_ARGUMENTS if name in accepted), "")


def _cache_argument(runner: Runner) -> str:
    return cache_argument(runner.builder.accepted_arguments)


@dataclass(frozen=True, slots=True)
class SharedStates:
    """The keys and values of a batch. Variants, which are rows with some tokens removed, can reuse them.

    Attributes:
        layers: One pair of keys and values (B, H, T, d) per layer; None if they cannot be reused.
    """

    layers: tuple[tuple[Tensor, Tensor], ...] | None


def share(runner: Runner, inputs: Inputs, *, in_blocks: bool = False) -> SharedStates:
    """Run the whole texts once and return their keys and values.

    In two cases, the keys and values cannot be reused, and `SharedStates.layers` is None. First, a text is padded on
    the left. Second, a token does not attend to all tokens before it, for example because a sliding window is shorter
    than the text.

    Args:
        runner: Runs the model.
        inputs: The batch.
        in_blocks: Whether to compute the attention in blocks of queries, so that the pass never holds all weights of a
            site.
    """
    from transformers import DynamicCache

    mask = inputs.mask[TEXT]
    if not bool(mask[:, 0].all()):
        return SharedStates(None)
    states, recorder = DynamicCache(), Recorder(runner.layout.calls, {TEXT: mask})
    if in_blocks:
        sites = [site.key for site in runner.layout.sites]
        recorder = runner.recorder(inputs, sites=sites, blocks=sites)
    arguments = {**runner.builder.arguments(inputs), _cache_argument(runner): states, "use_cache": True}
    runner.call(arguments, mask, recorder)
    size = queries_per_block(len(mask), 1, mask.shape[1])
    positions = torch.arange(mask.shape[1], device=mask.device)
    for first in block_starts(mask.shape[1], size):
        block = slice(first, first + size)
        causal = positions <= positions[block, None]
        expected = (causal & mask[:, block, None] & mask[:, None, :])[:, None]
        found = [allowed[:, :, block] for allowed in recorder.allowed.values()]
        found += [call.allowed(block.start, block.stop) for call in recorder.calls_in_blocks.values()]
        if not all(bool((allowed == expected).all()) for allowed in found):
            return SharedStates(None)
    return SharedStates(tuple((layer.keys, layer.values) for layer in states.layers))


def variant_cost(inputs: Inputs, shared: SharedStates, rows: Tensor, keep: Tensor) -> Tensor:
    """Return the number of tokens (V,) that the model runs on for each variant.

    The model runs on the tokens from the first removed token to the last kept token. If the keys and values of the
    whole text cannot be reused, it runs on all tokens that the variant keeps.
    """
    if shared.layers is None:
        return (inputs.mask[TEXT][rows] & keep).sum(1)
    start, stop = rerun_range(inputs, rows, keep)
    return stop - start


def rerun_range(inputs: Inputs, rows: Tensor, keep: Tensor) -> tuple[Tensor, Tensor]:
    """Return the start (V,) and stop (V,) of the positions that the model must run on again for each variant.

    The range begins at the first removed token and ends with the last kept token, where the logits are read. If no kept
    token comes after a removed token, the range contains only the last kept token.
    """
    mask = inputs.mask[TEXT][rows]
    kept = mask & keep
    missing = mask & ~kept
    size = mask.shape[1]
    first_missing = torch.where(missing.any(1), missing.int().argmax(1), size)
    last_kept = size - 1 - kept.flip(1).int().argmax(1)
    return torch.minimum(first_missing, last_kept), last_kept + 1


def logits_without(runner: Runner, inputs: Inputs, shared: SharedStates, rows: Tensor, keep: Tensor) -> Tensor:
    """Return the logits (V, C) of the variants (see `SharingAdapter.logits_without`).

    The model runs on the whole variants if the keys and values of the whole text cannot be reused, if reusing them
    would save no tokens, or if a variant ends with the padding token. Many classifiers skip this token, and the token
    that they then read may be among those that do not run again.
    """
    starts, stops = rerun_range(inputs, rows, keep)
    start, stop = int(starts.min()), int(stops.max())
    kept = inputs.mask[TEXT][rows] & keep
    ends_in_padding = bool((inputs.ids[TEXT][rows, stops - 1] == runner.builder.pad_id).any())
    if shared.layers is None or ends_in_padding or stop - start >= int(kept.sum(1).max()):
        return runner.logits(runner.builder.keep(inputs, TEXT, rows, keep))
    part = slice(start, stop)
    arguments: dict[str, Any] = {
        "input_ids": inputs.ids[TEXT][rows, part].masked_fill(~kept[:, part], runner.builder.pad_id),
        "attention_mask": kept[:, :stop].long(),
        _cache_argument(runner): _prefix_cache(shared.layers, rows, start),
        "use_cache": True,
        "return_dict": True,
    }
    if "position_ids" in runner.builder.accepted_arguments:
        positions = kept.long().cumsum(1) - 1
        arguments["position_ids"] = positions[:, part].clamp_min(0) + runner.builder.position_offset
    return runner.call(arguments, kept[:, part])


def _prefix_cache(layers: tuple[tuple[Tensor, Tensor], ...], rows: Tensor, length: int) -> Any:
    """Return a Transformers cache of the keys and values that the first `length` tokens have in the given rows.

    The cache does not change when the model runs with it.

    Args:
        layers: Keys and values (B, H, T, d) of each layer.
        rows: (V,) index of the row that each variant is made from.
        length: Number of tokens.
    """
    from transformers.cache_utils import Cache

    return Cache(layers=[_prefix_layer()(keys, values, rows, length) for keys, values in layers])


@cache
def _prefix_layer() -> Any:
    """Return the class of the layers of `_prefix_cache`. The function exists because Transformers is imported late."""
    from transformers.cache_utils import DynamicLayer

    class PrefixLayer(DynamicLayer):  # type: ignore[misc]
        def __init__(self, keys: Tensor, values: Tensor, rows: Tensor, length: int) -> None:
            super().__init__()
            self.lazy_initialization(keys, values)
            self.keys, self.values = keys, values
            self.rows, self.length = rows, length

        def update(self, keys: Tensor, values: Tensor, *_args: Any, **_rest: Any) -> tuple[Tensor, Tensor]:
            prefix_keys, prefix_values = (
                cached[self.rows.to(cached.device), :, : self.length] for cached in (self.keys, self.values)
            )
            return torch.cat([prefix_keys, keys], dim=-2), torch.cat([prefix_values, values], dim=-2)

        def get_seq_length(self) -> int:
            return self.length

    return PrefixLayer
