"""Gradients: they reach embeddings, live weights and replaced weights, and are those of the model."""

from __future__ import annotations

import torch
from torch import Tensor

from attnaudit.adapters.protocol import TEXT, Site
from attnaudit.conformance.contract import (
    BrokenContractError,
    contract,
    gap,
    listed,
    require_same_logits,
)
from attnaudit.conformance.sample_texts import Examples

MEND = "Compute from the embeddings that run() is given, without detach(), .data, numpy or no_grad."
#: Steps along the gradient, as parts of the size of an embedding, and the largest share that finite differences may
#: be off at the best of them.
STEPS, OFF = (0.1, 0.03, 0.01, 0.003), 0.05
#: Changes of the logits below this are lost in the rounding of float32.
LOST = 2e-4


def projected(logits: Tensor) -> Tensor:
    """One number that every logit of every row moves, at a rate that does not saturate."""
    return (logits * torch.linspace(1, 2, logits.shape[-1]).to(logits)).sum()


@contract()
def check_embeddings(e: Examples) -> str:
    """run() on the embeddings of the inputs gives the logits of run() on the inputs."""
    with torch.no_grad():
        embedded = e.adapter.embed(e.inputs)
    if TEXT not in embedded:
        raise BrokenContractError(f"embed() gives no stream '{TEXT}'. Return the embeddings of its tokens under it.")
    for stream, values in embedded.items():
        rows = tuple(e.inputs.ids[stream].shape) if stream in e.inputs.ids else ()
        if values.dim() != 3 or tuple(values.shape[:2]) != rows or not values.is_floating_point():
            raise BrokenContractError(
                f"embed() gives {values.dtype} of shape {tuple(values.shape)} for '{stream}'; expected floating point "
                f"of shape ({', '.join(map(str, rows)) or 'B, T'}, d)."
            )
    require_same_logits(
        e.run(e.inputs, embeddings=embedded).logits,
        e.trace.logits,
        "run() on the embeddings of the inputs and run() on the inputs differ",
        "Put what embed() returns where the model looks its own embeddings up: scaled once, before positions are "
        "added, with the positions of the inputs.",
    )
    return f"embeddings of {listed(sorted(embedded))} give the same logits as ids"


@contract("differentiable")
def check_gradients(e: Examples) -> str:
    """Gradients reach the embeddings and replaced weights at every site, and are zero on padding."""
    leaves = e.leaves()
    live: dict[str, Tensor] = {}

    def watch(site: Site, weights: Tensor, _allowed: Tensor) -> Tensor:
        live[site.key] = weights.detach().clone().requires_grad_(True)
        return live[site.key]

    with e.differentiating():
        output = projected(e.adapter.run(e.inputs, embeddings=leaves).logits)
        if not output.requires_grad:
            raise BrokenContractError(f"no gradient reaches the embeddings. {MEND}")
        names = list(leaves)
        found = dict(zip(names, torch.autograd.grad(output, list(leaves.values()), allow_unused=True), strict=True))
        replaced = projected(e.adapter.run(e.inputs, embeddings=leaves, intervene=watch).logits)
        gradients: tuple[Tensor | None, ...] = (None,) * len(live)
        if live and replaced.requires_grad:
            gradients = torch.autograd.grad(replaced, list(live.values()), allow_unused=True)
    at_text = found[TEXT]
    if at_text is None or not bool(at_text.isfinite().all()):
        raise BrokenContractError(
            f"the gradient at the embeddings is {'missing' if at_text is None else 'not finite'}. {MEND}"
        )
    if not bool(at_text.any()):
        raise BrokenContractError(f"the gradient at the embeddings is zero everywhere. {MEND}")
    reached = {key for key, g in zip(live, gradients, strict=True) if g is not None and bool(g.any())}
    missed = [site.key for site in e.sites if site.key not in reached]
    if missed:
        raise BrokenContractError(
            f"no gradient reaches replaced attention at {listed(missed)}: the model does not use it. {MEND}"
        )
    for stream, gradient in found.items():
        padding = ~e.inputs.mask[stream]
        leaked = gradient[padding].abs().max().item() if gradient is not None and bool(padding.any()) else 0.0
        if not leaked == 0:
            raise BrokenContractError(
                f"padding of '{stream}' has a gradient ({leaked:.2g}): it moves the output. Mask it in encoder and "
                "attention."
            )
    return "gradients reach embeddings and replaced attention, none reaches padding"


@contract("differentiable", quick=False)
def check_live_gradients(e: Examples) -> str:
    """Gradients reach the live weights where intervene returns them, and pass through them to the embeddings."""
    few = e.few
    leaves = few.leaves()
    live: dict[str, Tensor] = {}

    def watch(site: Site, weights: Tensor, _allowed: Tensor) -> Tensor:
        live[site.key] = weights
        return weights

    with few.differentiating():
        output = projected(few.adapter.run(few.inputs, embeddings=leaves, intervene=watch).logits)
        open_ = {key: weights for key, weights in live.items() if weights.requires_grad}
        found = torch.autograd.grad(output, list(open_.values()), allow_unused=True) if open_ else ()
    missed = [key for key, g in zip(open_, found, strict=True) if g is None or not bool(g.any())]
    if missed:
        raise BrokenContractError(
            f"no gradient reaches the live weights at {listed(missed)} where intervene returns them. {MEND}"
        )
    closed = [key for key in live if key not in open_]
    if closed:
        generator = torch.Generator().manual_seed(0)
        moved = {
            name: leaf.detach() + 0.5 * leaf.std().detach() * torch.randn(leaf.shape, generator=generator).to(leaf)
            for name, leaf in leaves.items()
        }
        trace = few.run(few.inputs, embeddings=moved)
        cut = [key for key in closed if gap(trace.attention[key], few.trace.attention[key]) > 1e-4]
        if cut:
            raise BrokenContractError(
                f"the weights at {listed(cut)} follow the embeddings, but no gradient passes through them. {MEND}"
            )
        return f"{len(open_)} of {len(live)} sites pass gradients; attention at the others does not depend on the input"
    return f"gradients reach the live weights of {len(live)} site{'s' * (len(live) > 1)}"


@contract("differentiable", quick=False)
def check_finite_differences(e: Examples) -> str:
    """The gradient at the embeddings is the slope of the logits: nothing between them is left out of the graph."""
    few = e.few
    leaves = few.leaves()
    with few.differentiating():
        logits = few.adapter.run(few.inputs, embeddings=leaves).logits
        logits = logits.gather(1, logits.argmax(-1, keepdim=True))
        (gradient,) = torch.autograd.grad(logits.sum(), leaves[TEXT])
    chosen = few.trace.logits.argmax(-1, keepdim=True)
    slope = gradient.flatten(1).norm(dim=1)
    direction = gradient / slope.clamp_min(1e-12)[:, None, None]
    size = leaves[TEXT].detach()[few.inputs.mask[TEXT]].norm(dim=-1).mean()
    fixed = {name: leaf.detach() for name, leaf in leaves.items()}

    def at(step: float) -> Tensor:
        moved = few.run(few.inputs, embeddings={**fixed, TEXT: fixed[TEXT] + step * size * direction})
        return moved.logits.gather(1, chosen)[:, 0].double()

    best = torch.full_like(slope, torch.inf, dtype=torch.float64)
    for step in STEPS:
        change = at(step) - at(-step)
        measured = change / (2 * step * size)
        off = (measured / slope.clamp_min(1e-12) - 1).abs()
        best = torch.where(change.abs() > LOST * logits.detach()[:, 0].abs().clamp_min(1.0), off.minimum(best), best)
    told = best[best.isfinite()]
    if not len(told):
        return "the logits move too little to compare gradients with differences"
    middle = told.median().item()
    if middle > OFF:
        raise BrokenContractError(
            f"a step along the gradient at the embeddings changes the logits {middle:.0%} more or less than the "
            f"gradient says, expected at most {OFF:.0%}. Something between embeddings and logits is left out of the "
            "graph, such as detached attention weights."
        )
    return f"gradients agree with finite differences within {middle:.1%}"
