"""Checks of the methods that reuse hidden states of the whole input: `logits_without`, `logits_masked`, `influence`."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor

from attnaudit.adapters.optional_methods import FastPassAdapter, SharingAdapter
from attnaudit.adapters.protocol import TEXT
from attnaudit.conformance.contract import TOLERANCE, contract, require_close, require_same_logits
from attnaudit.conformance.sample_texts import Examples

ADVICE = (
    "If you pass lstm, it must be the layer whose concatenated forward and backward outputs are the encoder's states, "
    "without any further computation. If you pass reach, it must be the largest distance, in tokens, between a state "
    "and a token that it depends on; a recurrent encoder has no reach. Both arguments are optional. A custom adapter "
    "can declare shares_states=False and influences=False."
)


@contract("deletion", "shares_states")
def check_logits_without(e: Examples) -> str:
    """logits_without() gives the same logits as run() on the inputs that keep() returns."""
    examples = e if e.thorough else e.few
    rows, keep = _variants(examples.inputs.mask[TEXT], examples.inputs.special[TEXT], 12 if e.thorough else 4)
    if not len(rows):
        return "no instance has two tokens, so nothing was compared"
    adapter = cast(SharingAdapter, examples.adapter)
    with torch.no_grad():
        logits = adapter.logits_without(examples.inputs, adapter.share(examples.inputs), rows, keep)
    require_same_logits(
        logits,
        examples.run(examples.adapter.keep(examples.inputs, TEXT, rows, keep)).logits,
        "the logits of logits_without() and those of run() on the result of keep() differ",
        ADVICE,
    )
    if isinstance(adapter, FastPassAdapter):
        with adapter.fast_passes():
            trace = examples.run(examples.inputs)
        what = "the logits of run() inside and outside fast_passes() differ"
        require_same_logits(trace.logits, examples.trace.logits, what, ADVICE)
    return f"shared states give the same logits as run() on the shortened inputs ({len(rows)} variants)"


@contract("mask", "shares_masked")
def check_logits_masked(e: Examples) -> str:
    """logits_masked() and logits_with_single_masks() give the same logits as run() on the inputs that substitute()
    returns."""
    examples = e if e.thorough else e.few
    mask, special = examples.inputs.mask[TEXT], examples.inputs.special[TEXT]
    rows, keep = _variants(mask, special, 12 if e.thorough else 4)
    if not len(rows):
        return "no instance has two tokens, so nothing was compared"
    real = (mask & ~special)[rows]
    first = torch.zeros_like(real).scatter(1, real.int().argmax(1, keepdim=True), torch.ones_like(real))
    rows = rows.repeat(3)
    keep = torch.cat([keep, special[rows[: len(keep)]] | first, special[rows[: len(keep)]]])
    adapter = cast(SharingAdapter, examples.adapter)
    with torch.no_grad():
        keep = keep | special[rows]
        shared = adapter.share(examples.inputs)
        replaced = adapter.substitute(examples.inputs, TEXT, rows, mask[rows] & ~keep)
        of_whole = examples.trace.attention[e.sites[0].key].detach()[rows]
        logits = adapter.logits_masked(examples.inputs, shared, rows, keep)
        with_weights = adapter.logits_masked(examples.inputs, shared, rows, keep, of_whole[:, :, 0])
    require_same_logits(
        logits,
        examples.run(replaced).logits,
        "the logits of logits_masked() and those of run() on the result of substitute() differ",
        f"Declare independent=False if the encoder or attention of a bag mixes units. {ADVICE} A custom adapter can "
        "declare shares_masked=False.",
        whole=examples.trace.logits,
    )
    require_same_logits(
        with_weights,
        examples.run(replaced, intervene=lambda _site, _live, _allowed: of_whole).logits,
        "with given attention weights, the logits of logits_masked() and those of run() differ",
        "Use the given weights instead of those that the attention computes.",
        whole=examples.trace.logits,
    )
    if e.capabilities.single_masks:
        _require_single_masks(examples, rows[:1], real[0])
    return f"shared states give the same logits as run() on the masked inputs ({len(rows)} variants)"


def _require_single_masks(e: Examples, row: Tensor, real: Tensor) -> None:
    """Compare `logits_with_single_masks` with run(), for three real tokens (T,) of a row (1,)."""
    adapter = cast(SharingAdapter, e.adapter)
    places = real.nonzero()[:, 0]
    units = places[torch.linspace(0, len(places) - 1, 3, device=places.device).long()]
    this = torch.arange(len(real), device=units.device) == units[:, None]
    for alone in (False, True):
        replaced = (~this if alone else this) & real
        with torch.no_grad():
            shared = adapter.share(e.inputs)
            logits = adapter.logits_with_single_masks(e.inputs, shared, int(row), units, alone=alone, held=False)
            variants = adapter.substitute(e.inputs, TEXT, row.expand(3), replaced)
        require_same_logits(
            logits,
            e.run(variants).logits,
            "the logits of logits_with_single_masks() and those of run() on the result of substitute() differ",
            "A custom adapter can declare single_masks=False.",
            whole=e.trace.logits,
        )


@contract("differentiable", "influences")
def check_influence(e: Examples) -> str:
    """influence() gives the same numbers as autograd: for each hidden state and each embedding, the norm of the
    gradient of the state's norm with respect to the embedding."""
    few = e.few
    leaves, width = few.leaves(), few.inputs.mask[TEXT].shape[1]
    adapter = cast(SharingAdapter, few.adapter)
    with torch.no_grad():
        influences = adapter.influence(few.inputs, adapter.share(few.inputs), slice(0, width))
    with few.differentiating():
        trace = few.adapter.run(few.inputs, embeddings=leaves, hidden=True)
        # Without a mask on its output, an encoder has states on padding, but no audit reads them.
        norms = trace.hidden[few.sites[-1].key].norm(dim=-1) * few.inputs.mask[TEXT]
        positions = range(width) if e.thorough else sorted({0, width // 2, width - 1})
        slopes = [torch.autograd.grad(norms[:, p].sum(), leaves[TEXT], retain_graph=True)[0] for p in positions]
    expected = torch.stack(slopes, dim=1).norm(dim=-1)
    size = expected.max().item()
    require_close(
        influences[:, list(positions)],
        expected,
        "the values of influence() and the gradients of run() differ",
        ADVICE,
        tolerance=TOLERANCE * max(size, 1e-6),
    )
    return f"influences equal the gradients of run() ({len(positions)} positions)"


def _variants(mask: Tensor, special: Tensor, each: int) -> tuple[Tensor, Tensor]:
    """Return variants of the instances that have at least two real tokens.

    Args:
        mask: (B, T) True on tokens that are not padding.
        special: (B, T) True on special tokens.
        each: The number of variants of each instance. The first three variants are the instance without its first real
            token, the instance without its last real token, and the whole instance. The others are random subsets of
            its tokens.

    Returns:
        (V,) index of the row that each variant is made from; and (V, T) mask, True at the positions that it keeps.
    """
    real, variants = mask & ~special, []
    generator = torch.Generator().manual_seed(0)
    for row in (real.sum(1) >= 2).nonzero()[:, 0].tolist():
        places = real[row].nonzero()[:, 0].tolist()
        for number in range(each):
            keep = mask[row].clone()
            if number < 2:
                keep[places[-number]] = False
            elif number > 2:
                keep &= (torch.rand(len(keep), generator=generator) < 0.7).to(keep.device)
                keep[places[number % len(places)]] = True
            variants.append((row, keep))
    rows = torch.tensor([row for row, _ in variants], dtype=torch.long, device=mask.device)
    return rows, torch.stack([keep for _, keep in variants]) if variants else mask[:0]
