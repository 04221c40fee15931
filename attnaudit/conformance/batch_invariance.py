"""What must move no row: the same input again, padding on either side, batch mates and their order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from attnaudit.adapters.protocol import TEXT, Inputs, Trace
from attnaudit.conformance.contract import (
    BrokenContractError,
    contract,
    require_close,
    require_same_logits,
)
from attnaudit.conformance.sample_texts import Examples, at_tokens, per_token

#: Padding tokens that are added.
MORE = 3


@contract(basic=True)
def check_evaluation_mode(e: Examples) -> str:
    """Every module is in evaluation mode, and the same input twice gives the same logits."""
    training = [type(m).__name__ for module in e.adapter.modules for m in module.modules() if m.training]
    if training:
        raise BrokenContractError(f"{training[0]} is in training mode after eval(). Do not override train() or eval().")
    require_same_logits(
        e.run(e.inputs).logits,
        e.trace.logits,
        "the same input twice gives logits that differ",
        "Something is random in evaluation: use nn.Dropout rather than functional dropout, and name every module in "
        "modules.",
    )
    return "same input, same output"


def widened(inputs: Inputs, *, left: int, right: int) -> Inputs:
    """The same rows with more padding in every stream."""

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


def _require_unmoved(e: Examples, inputs: Inputs, trace: Trace, rows: list[int], what: str, mend: str) -> None:
    """Row i of the trace is row rows[i] of the examples: the same logits, and the same weights at its tokens."""
    require_same_logits(trace.logits, e.trace.logits[rows], f"{what} move the logits", mend)
    for site in e.sites:
        for found, expected in enumerate(rows):
            require_close(
                at_tokens(trace.attention[site.key], inputs, site, found),
                at_tokens(e.trace.attention[site.key], e.inputs, site, expected),
                f"{what} move the attention at '{site.key}', though not the logits,",
                "Show each weight at the positions of its query and key in the padded inputs.",
            )


def _pad(e: Examples, *, left: int, right: int, what: str, mend: str) -> str:
    most = e.capabilities.max_tokens
    if most is not None and e.inputs.ids[TEXT].shape[1] + MORE > most:
        widths = e.inputs.mask[TEXT].sum(1).tolist()
        short = [one for one, width in zip(e.instances, widths, strict=True) if width + MORE <= most]
        if not short:
            return f"no example leaves room for padding below {most} tokens"
        e = Examples(e.adapter, short, e.thorough)
    wide = widened(e.inputs, left=left, right=right)
    _require_unmoved(e, wide, e.run(wide), list(range(len(e.instances))), what, mend)
    lengths = e.inputs.mask[TEXT].sum(1)
    return f"padding changes nothing (lengths {int(lengths.min())} to {int(lengths.max())})"


@contract()
def check_padding(e: Examples) -> str:
    """More padding on the right moves nothing (on the left, where collate pads there)."""
    return _pad(
        e,
        left=MORE if e.padded_left else 0,
        right=0 if e.padded_left else MORE,
        what=f"{MORE} more padding tokens",
        mend="Let the encoder and the attention see the mask: pack recurrent inputs, and mask scores with -inf.",
    )


@contract("left_padding")
def check_left_padding(e: Examples) -> str:
    """Padding on the left moves nothing, where the adapter says that it takes it."""
    return _pad(
        e,
        left=MORE,
        right=0,
        what=f"{MORE} padding tokens on the left",
        mend="Count positions from the first token of the mask, read the decision at a token of the mask, or say "
        "left_padding=False.",
    )


@contract()
def check_batch_mates(e: Examples) -> str:
    """A row is the same alone, in a batch, and in a batch of another order."""
    for b, one in enumerate(e.instances):
        alone = e.adapter.collate([one])
        _require_unmoved(
            e,
            alone,
            e.run(alone),
            [b],
            "batch mates",
            "An instance alone and in a batch must be the same: look for batch normalisation in training mode, a mask "
            "that is not used, or a sort that is not undone.",
        )
    order = list(range(len(e.instances)))[::-1]
    backwards = e.adapter.collate([e.instances[b] for b in order])
    trace = e.run(backwards)
    _require_unmoved(e, backwards, trace, order, "rows in another order", "Undo any sort of the rows.")
    return "alone, in a batch, in any order: the same"
