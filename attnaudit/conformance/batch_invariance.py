"""Checks that a row gives the same result in repeated passes, with more padding, and in other batches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from attnaudit.adapters.optional_methods import CpuEncodingAdapter, RowSelectingAdapter
from attnaudit.adapters.padding import moved
from attnaudit.adapters.protocol import TEXT, Inputs, Trace
from attnaudit.conformance.contract import (
    BrokenContractError,
    contract,
    require_close,
    require_same_logits,
)
from attnaudit.conformance.sample_texts import Examples, at_tokens, per_token

#: The number of padding tokens that the checks add.
EXTRA_PADDING = 3


@contract(basic=True)
def check_evaluation_mode(e: Examples) -> str:
    """Every module is in evaluation mode, and two passes over the same input give the same logits."""
    training = [type(m).__name__ for module in e.adapter.modules for m in module.modules() if m.training]
    if training:
        raise BrokenContractError(f"{training[0]} is in training mode after eval(). Do not override train() or eval().")
    require_same_logits(
        e.run(e.inputs).logits,
        e.trace.logits,
        "the logits of two passes over the same input differ",
        "A computation is random in evaluation mode. Use nn.Dropout instead of functional dropout, and list every "
        "module in the argument `modules`.",
    )
    return "repeated passes give the same logits"


def widened(inputs: Inputs, *, left: int, right: int) -> Inputs:
    """Return the same rows with more padding in every stream.

    Args:
        inputs: The rows to pad.
        left: The number of padding tokens to add before the first position.
        right: The number of padding tokens to add after the last position.
    """

    def widen(values: Mapping[str, Tensor], fill: Mapping[str, int]) -> dict[str, Tensor]:
        pad = torch.nn.functional.pad
        return {name: pad(value, (left, right), value=fill.get(name, 0)) for name, value in values.items()}

    tokenwise = per_token(inputs)
    padding = {name: ids[~inputs.mask[name]] for name, ids in inputs.ids.items()}
    return replace(
        inputs,
        ids=widen(inputs.ids, {name: int(ids[0]) if len(ids) else 0 for name, ids in padding.items()}),
        mask=widen(inputs.mask, {}),
        special=widen(inputs.special, {}),
        words=widen(inputs.words, dict.fromkeys(inputs.words, -1)),
        extra={**inputs.extra, **widen({name: inputs.extra[name] for name in tokenwise}, {})},
    )


def _require_same_rows(e: Examples, inputs: Inputs, trace: Trace, rows: list[int], what: str, advice: str) -> None:
    """Check that each row of a trace has the same logits and attention as its row in the trace of the examples.

    Args:
        e: The examples.
        inputs: The batch of `trace`.
        trace: The trace to compare.
        rows: For each row of `trace`, the index of the row of `e.trace` that must be equal to it.
        what: The change of the batch, for the error message, such as "other rows in the batch".
        advice: Sentences for the error message that say how to fix the adapter.
    """
    require_same_logits(trace.logits, e.trace.logits[rows], f"{what} change the logits", advice)
    for site in e.sites:
        for row, expected in enumerate(rows):
            require_close(
                at_tokens(trace.attention[site.key], inputs, site, row),
                at_tokens(e.trace.attention[site.key], e.inputs, site, expected),
                f"{what} do not change the logits, but change the attention at '{site.key}'",
                "Return each weight at the positions of its query and key in the padded inputs.",
            )


def _compare_with_padded(e: Examples, *, left: int, right: int, what: str, advice: str) -> str:
    limit = e.capabilities.max_tokens
    if limit is not None and e.inputs.ids[TEXT].shape[1] + EXTRA_PADDING > limit:
        widths = e.inputs.mask[TEXT].sum(1).tolist()
        short = [one for one, width in zip(e.instances, widths, strict=True) if width + EXTRA_PADDING <= limit]
        if not short:
            return f"not compared: with more padding, every example would exceed {limit} tokens"
        e = Examples(e.adapter, short, e.thorough)
    for one in (e, e.long):
        if one is not None and (limit is None or one.inputs.ids[TEXT].shape[1] + EXTRA_PADDING <= limit):
            wide = widened(one.inputs, left=left, right=right)
            _require_same_rows(one, wide, one.run(wide), list(range(len(one.instances))), what, advice)
    lengths = e.inputs.mask[TEXT].sum(1)
    return f"padding changes no row (lengths {int(lengths.min())} to {int(lengths.max())})"


@contract()
def check_padding(e: Examples) -> str:
    """More padding, on the side on which collate() pads, does not change the result of a row."""
    if TEXT in e.inputs.boxes and not e.capabilities.deletion and bool(e.inputs.mask[TEXT].all()):
        return "all pictures have the same number of parts, and none can be deleted, so batches have no padding"
    return _compare_with_padded(
        e,
        left=EXTRA_PADDING if e.padded_left else 0,
        right=0 if e.padded_left else EXTRA_PADDING,
        what=f"{EXTRA_PADDING} more padding tokens",
        advice="Use the mask in the encoder and the attention: pack the inputs of recurrent layers, and set masked "
        "scores to -inf.",
    )


@contract("left_padding")
def check_left_padding(e: Examples) -> str:
    """If the adapter declares left_padding, padding on the left does not change the result of a row."""
    return _compare_with_padded(
        e,
        left=EXTRA_PADDING,
        right=0,
        what=f"{EXTRA_PADDING} padding tokens on the left",
        advice="Count positions from the first unpadded token, compute the prediction from an unpadded token, or "
        "declare left_padding=False.",
    )


def _require_same_inputs(found: Inputs, collated: Inputs, method: str, fix: str) -> None:
    """Check that the batch that another method returns equals the batch that `collate` returns for the same rows."""
    if found.tokens != collated.tokens:
        raise BrokenContractError(f"{method}() and collate() return different `tokens` for the same rows. {fix}")
    for name in ("ids", "mask", "special", "words", "passages", "extra"):
        values, expected = getattr(found, name), getattr(collated, name)
        if values.keys() != expected.keys() or not all(torch.equal(values[key], expected[key]) for key in expected):
            raise BrokenContractError(f"{method}() and collate() return different `{name}` for the same rows. {fix}")


@contract()
def check_batch_mates(e: Examples) -> str:
    """A row gives the same result alone, in a batch, and in a batch with a different order."""
    for b, one in enumerate(e.instances):
        alone = e.adapter.collate([one])
        _require_same_rows(
            e,
            alone,
            e.run(alone),
            [b],
            "other rows in the batch",
            "Each instance must give the same result alone and in a batch. Look for batch normalisation in training "
            "mode, an unused mask, or sorted rows that are not put back in order.",
        )
    order = list(range(len(e.instances)))[::-1]
    reversed_inputs = e.adapter.collate([e.instances[b] for b in order])
    if isinstance(e.adapter, RowSelectingAdapter) and not e.inputs.tables:
        some = order[: max(1, len(order) // 2)]
        _require_same_inputs(
            e.adapter.select_rows(e.inputs, some),
            e.adapter.collate([e.instances[b] for b in some]),
            "select_rows",
            "If `extra` has entries with one value per token, name them in `per_token`, or override select_rows().",
        )
    if isinstance(e.adapter, CpuEncodingAdapter) and e.adapter.encodes_on_cpu:
        encoded, collated = e.adapter.encode_on_cpu(e.instances), e.adapter.collate(e.instances)
        device = collated.ids[TEXT].device
        if e.adapter.input_device != device:
            raise BrokenContractError(
                f"input_device is {e.adapter.input_device}, but collate() returns tensors on {device}."
            )
        _require_same_inputs(
            moved(encoded, e.adapter.input_device),
            collated,
            "encode_on_cpu",
            "Only the device may differ. Without encode_on_cpu(), an audit calls collate().",
        )
    trace = e.run(reversed_inputs)
    _require_same_rows(
        e, reversed_inputs, trace, order, "rows in another order", "Return the rows in the order of the inputs."
    )
    return "each row is the same alone, in a batch, and in another order"
