"""Is what is recorded and replaced in truth the model's attention? Tried on made-up tokens before anything is audited.

Shapes: B rows, T tokens, V variants, H heads, Q queries, K keys.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from attnaudit.adapters.huggingface import query_replay
from attnaudit.adapters.huggingface.site_discovery import DECODER, hooks
from attnaudit.adapters.protocol import TEXT, Inputs, Site, Trace
from attnaudit.errors import AdapterError, ModelError
from attnaudit.instances import Instance

if TYPE_CHECKING:
    from attnaudit.adapters.huggingface.transformer_adapter import HuggingFaceAdapter

#: Largest difference in logits that rounding in float32 explains, for logits up to one.
TOLERANCE = 1e-4
#: Lengths in words. The first row is the longest; there are as many rows as no length in tokens is likely to be.
LENGTHS = (9, 4, 6)
#: Variants that a form of `replay` is tried with.
VARIANTS = 2


def single(inputs: Inputs, row: int) -> Inputs:
    """One row without its padding."""
    keep = inputs.mask[TEXT][row]

    def cut(values: Tensor) -> Tensor:
        return values[row : row + 1, keep] if values.shape[1:] == keep.shape else values[row : row + 1]

    return Inputs(
        ids={name: cut(v) for name, v in inputs.ids.items()},
        mask={name: cut(v) for name, v in inputs.mask.items()},
        special={name: cut(v) for name, v in inputs.special.items()},
        extra={name: cut(v) for name, v in inputs.extra.items()},
    )


def made_up(adapter: HuggingFaceAdapter) -> Inputs:
    """Rows of different lengths whose special tokens are where the tokenizer puts them, and whose other tokens are
    random. The same each time."""
    inputs = adapter.collate([Instance(id=f"made up {n}", text=" ".join("abcdefghi"[:n])) for n in LENGTHS])
    ids, real = inputs.ids[TEXT], inputs.real()
    if int(real[0].sum()) < 4:
        raise ModelError(
            f"The tokenizer makes {int(real[0].sum())} tokens of nine words. Save the tokenizer that the model was "
            "trained with into the folder."
        )
    known = set(adapter.tokenizer.all_special_ids) | {adapter.parts.pad_id}
    size = min(int(adapter.model.config.vocab_size), len(adapter.tokenizer))
    choice = torch.tensor([i for i in range(size) if i not in known])
    picked = torch.randint(len(choice), ids.shape, generator=torch.Generator().manual_seed(0))
    found = torch.where(real, choice[picked].to(ids), ids)
    return adapter.with_decoder(replace(inputs, ids={**inputs.ids, TEXT: found}))


def close(a: Tensor, b: Tensor) -> bool:
    """Whether logits agree: to 1e-4, and in proportion where they are larger than one."""
    return bool(gap(a, b) <= TOLERANCE * max(1.0, float(b.abs().max())))


def gap(a: Tensor, b: Tensor) -> float:
    """Largest difference."""
    return float((a.float() - b.float()).abs().max())


def reads_padding(adapter: HuggingFaceAdapter) -> bool:
    """Whether padding on the right moves the logits, where padding on the left does not."""
    inputs = made_up(adapter)
    with torch.no_grad():
        alone = adapter.logits(single(inputs, 1))[0]
        if close(adapter.logits(inputs)[1], alone) or adapter.parts.decoding is not None:
            return False
        return close(adapter.logits(turned(inputs))[1], alone)


def read_position(adapter: HuggingFaceAdapter) -> str:
    """Which of the last layer's outputs the logits depend on: those of the "first" token, of the "last", of "all", or
    "" where that is not known."""
    blocks = adapter.layout.blocks
    if not blocks:
        return ""
    inputs = made_up(adapter)
    seen: list[Tensor] = []

    def note(_module: nn.Module, _args: object, output: Any) -> Any:
        states = output if isinstance(output, Tensor) else output[0]
        seen.append(states.detach().requires_grad_(True))
        return seen[-1] if isinstance(output, Tensor) else (seen[-1], *output[1:])

    with hooks([blocks[-1].register_forward_hook(note)]), torch.enable_grad(), query_replay.frozen(adapter.model):
        logits = adapter.logits(inputs)
        (slope,) = torch.autograd.grad(logits.square().sum(), seen[-1:], allow_unused=True)
    mask = adapter.masks(inputs)[TEXT if adapter.parts.decoding is None else DECODER]
    if slope is not None and adapter.layout.places[-1].time_first:
        slope = slope.transpose(0, 1)
    if slope is None or slope.shape[:2] != mask.shape:
        return ""
    used = slope.abs().sum(-1) > 0
    place = torch.arange(mask.shape[1], device=mask.device)
    last = mask.shape[1] - 1 - mask.flip(1).int().argmax(1)
    if bool((used == (place == last[:, None])).all()):
        return "last"
    if bool((used == (place == 0)).all()):
        return "first"
    return "all" if bool(used[mask].all()) else ""


def prove(adapter: HuggingFaceAdapter) -> None:
    """Raises AdapterError unless the model's own attention, put back, changes nothing, another changes the logits, and
    gradients reach the embeddings and every weight."""
    inputs, name = made_up(adapter), type(adapter.model).__name__
    with torch.no_grad():
        plain = adapter.logits(inputs)
        trace = adapter.run(inputs)
        again = adapter.run(inputs, intervene=lambda site, _w, _a: trace.attention[site.key].clone())
        other = adapter.run(
            inputs,
            intervene=lambda _s, weights, allowed: uniform(weights, allowed),
        )
        alone = adapter.logits(single(inputs, 1))
    if not bool(plain.isfinite().all()):
        raise AdapterError(f"{name}: the logits are not finite. Look for damaged weights in the checkpoint.")
    if not close(alone[0], plain[1]):
        raise AdapterError(
            f"{name}: padding moves the logits by {gap(alone[0], plain[1]):.2g}, so what an instance gives would "
            "depend on its batch. The architecture is not audited."
        )
    for found, what in ((trace, "noting"), (again, "putting back")):
        if not close(found.logits, plain):
            raise AdapterError(
                f"{name}: {what} its own attention moves the logits by {gap(found.logits, plain):.2g}, so it is not "
                "what the model computes with. The architecture is not audited."
            )
    if torch.equal(other.logits, plain):
        raise AdapterError(
            f"{name}: uniform attention everywhere leaves the logits as they are, so what is replaced is not what the "
            "model computes with. The architecture is not audited."
        )
    _prove_rows(name, trace)
    _prove_gradients(adapter, inputs, name)


def uniform(weights: Tensor, allowed: Tensor) -> Tensor:
    """Every allowed key alike, in the shape of weights."""
    return (allowed / allowed.sum(-1, keepdim=True).clamp_min(1)).expand_as(weights).to(weights)


def _prove_rows(name: str, trace: Trace) -> None:
    """The weights are what the adapter says of them."""
    for key, weights in trace.attention.items():
        allowed = trace.allowed[key]
        off = ((weights.sum(-1) - 1) * allowed.any(-1)).max().item()
        if not off <= TOLERANCE or weights.min().item() < 0 or (weights * ~allowed).abs().max().item() > TOLERANCE:
            raise AdapterError(
                f"{name}: the weights at '{key}' are no distribution over the tokens that a query may attend to. The "
                "architecture is not audited."
            )


def _prove_gradients(adapter: HuggingFaceAdapter, inputs: Inputs, name: str) -> None:
    with torch.no_grad():
        leaf = adapter.embed(inputs)[TEXT].detach()
    leaf.requires_grad_(True)
    with torch.enable_grad(), query_replay.frozen(adapter.model):
        trace = adapter.run(inputs, embeddings={TEXT: leaf}, hidden=True)
        if not close(trace.logits.detach(), adapter.logits(inputs).detach()):
            raise AdapterError(
                f"{name}: putting its own embeddings back moves the logits, so gradients would be taken elsewhere. The "
                "architecture is not audited."
            )
        sites = list(trace.attention)
        found = torch.autograd.grad(trace.logits.square().sum(), [leaf, *trace.attention.values()], allow_unused=True)
    for key, slope in zip(["the embeddings", *sites], found, strict=True):
        if slope is None or not bool(slope.isfinite().all()) or not bool(slope.any()):
            raise AdapterError(
                f"{name}: no gradient of the logits reaches {key}. Attention that has no part in the output, or is not "
                "differentiable, is not audited."
            )
    for key, weights in trace.attention.items():
        states = trace.hidden.get(key)
        if states is None or tuple(states.shape[:2]) != (weights.shape[0], weights.shape[3]):
            raise AdapterError(
                f"{name}: the states behind the values at '{key}' are "
                f"{'not seen' if states is None else f'of shape {tuple(states.shape)}'}, expected (B, K, m) with "
                f"(B, K) = {(weights.shape[0], weights.shape[3])}. The architecture is not audited."
            )


def left_padding(adapter: HuggingFaceAdapter) -> bool:
    """Whether the same tokens padded on the left give the same logits, and with which first position."""
    if adapter.pads_left:
        return True
    if adapter.read == "first":
        # The model would read its decision off padding.
        return False
    inputs = made_up(adapter)
    with torch.no_grad():
        right = adapter.logits(inputs)
        for first in dict.fromkeys((adapter.parts.offset, 0)):
            adapter.first_position = first
            try:
                found = adapter.logits(adapter.with_decoder(turned(inputs)))
            except (RuntimeError, ValueError, IndexError):
                continue
            if close(found, right):
                return True
    return False


def turned(inputs: Inputs) -> Inputs:
    """The same rows with their padding on the left."""
    mask = inputs.mask[TEXT]
    width = mask.shape[1]
    place = torch.arange(width, device=mask.device)
    source = (place - (width - mask.sum(1, keepdim=True))) % width

    def rows(values: Tensor) -> Tensor:
        return values.gather(1, source) if values.dim() == 2 and values.shape == mask.shape else values

    return replace(
        inputs,
        ids={**inputs.ids, TEXT: rows(inputs.ids[TEXT])},
        mask={**inputs.mask, TEXT: rows(mask)},
        special={**inputs.special, TEXT: rows(inputs.special[TEXT])},
        words={name: rows(value) for name, value in inputs.words.items()},
        extra={name: rows(value) for name, value in inputs.extra.items()},
    )


def forms(adapter: HuggingFaceAdapter, site: Site) -> tuple[bool, bool]:
    """Whether the narrow and the wide form of `replay` give what the whole pass gives."""
    place = adapter.layout.places[adapter.layout.number(site)]
    if place.block < 0:
        return False, False
    inputs = made_up(adapter)
    with torch.no_grad():
        trace = adapter.run(inputs, hidden=True)
        read = (
            adapter.read_at(inputs)
            if site.query == adapter.written
            else torch.zeros_like(inputs.mask[TEXT][:, 0]).long()
        )
        own = trace.attention[site.key]
        noise = torch.rand((VARIANTS, *own.shape), generator=torch.Generator().manual_seed(1)).to(own)
        moved = (own * 0.5 + noise) * trace.allowed[site.key]
        moved = moved / moved.sum(-1, keepdim=True).clamp_min(1e-9) * own.sum(-1, keepdim=True)
        index = read[None, :, None, None, None].expand(VARIANTS, -1, own.shape[1], 1, own.shape[3])
        weights = moved.gather(3, index)[:, :, :, 0].transpose(0, 1).contiguous()
        expected = adapter.replay_whole(inputs, site, read, weights)
        last = place is adapter.layout.places[-1] and place.block == len(adapter.layout.blocks) - 1
        at_one = last and site.query == adapter.written and adapter.read in ("first", "last")
        at_one = at_one and adapter.parts.kernel.calls_attention
        narrow = at_one and agrees(lambda: adapter.replay_narrow(inputs, trace, site, read, weights), expected)
        wide = agrees(lambda: adapter.replay_wide(inputs, trace, site, read, weights), expected)
    return narrow, wide


def agrees(form: Any, expected: Tensor) -> bool:
    """Whether a faster form runs on this model, and gives the expected logits."""
    try:
        found: Tensor = form()
    # A model that cannot be run in part has many ways to say so.
    except Exception:
        return False
    return close(found, expected)
