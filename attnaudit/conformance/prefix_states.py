"""The faster forms of models that read a text in order."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor

from attnaudit.adapters.protocol import TEXT, SharingAdapter
from attnaudit.conformance.contract import TOLERANCE, contract, require_close, require_same_logits
from attnaudit.conformance.sample_texts import Examples

MEND = (
    "Name in lstm the one layer whose outputs, forwards then backwards, are the encoder's states with nothing added, "
    "or in reach how many tokens away a state may depend on; or leave them out. An adapter of one's own may say "
    "shares_states=False and influences=False."
)


@contract("deletion", "shares_states")
def check_logits_without(e: Examples) -> str:
    """logits_without() gives the logits of run() on what keep() leaves."""
    examples = e if e.thorough else e.few
    rows, keep = _variants(examples.inputs.mask[TEXT], examples.inputs.special[TEXT], 12 if e.thorough else 4)
    if not len(rows):
        return "no instance with two tokens to try on"
    adapter = cast(SharingAdapter, examples.adapter)
    with torch.no_grad():
        found = adapter.logits_without(examples.inputs, adapter.share(examples.inputs), rows, keep)
    require_same_logits(
        found,
        examples.run(examples.adapter.keep(examples.inputs, TEXT, rows, keep)).logits,
        "logits_without() and run() on what keep() leaves differ",
        MEND,
    )
    return f"states that are shared give the logits of shorter inputs ({len(rows)} variants)"


@contract("differentiable", "influences")
def check_influence(e: Examples) -> str:
    """influence() gives the gradients of the norms of hidden states."""
    few = e.few
    leaves, width = few.leaves(), few.inputs.mask[TEXT].shape[1]
    adapter = cast(SharingAdapter, few.adapter)
    with torch.no_grad():
        found = adapter.influence(few.inputs, adapter.share(few.inputs), slice(0, width))
    with few.differentiating():
        trace = few.adapter.run(few.inputs, embeddings=leaves, hidden=True)
        norms = trace.hidden[few.sites[-1].key].norm(dim=-1)
        places = range(width) if e.thorough else sorted({0, width // 2, width - 1})
        slopes = [torch.autograd.grad(norms[:, p].sum(), leaves[TEXT], retain_graph=True)[0] for p in places]
    expected = torch.stack(slopes, dim=1).norm(dim=-1)
    size = expected.max().item()
    require_close(
        found[:, list(places)],
        expected,
        "influence() and the gradients of run() differ",
        MEND,
        tolerance=TOLERANCE * max(size, 1e-6),
    )
    return f"influences are the gradients of the states' norms ({len(places)} positions)"


def _variants(mask: Tensor, special: Tensor, each: int) -> tuple[Tensor, Tensor]:
    """Rows (V,) with two real tokens or more, and what stays (V, T): all but the first, all but the last, all, and
    some drawn at random."""
    real, found = mask & ~special, []
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
            found.append((row, keep))
    rows = torch.tensor([row for row, _ in found], dtype=torch.long, device=mask.device)
    return rows, torch.stack([keep for _, keep in found]) if found else mask[:0]
