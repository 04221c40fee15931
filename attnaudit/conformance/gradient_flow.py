"""Checks that gradients reach the embeddings and the attention weights, and that their values are correct."""

from __future__ import annotations

import torch
from torch import Tensor

from attnaudit.adapters.protocol import TEXT, Site
from attnaudit.conformance.contract import (
    TOLERANCE,
    BrokenContractError,
    contract,
    gap,
    listed,
    require_close,
    require_same_logits,
)
from attnaudit.conformance.sample_texts import Examples

ADVICE = "Compute the logits from the embeddings passed to run(), without detach(), .data, numpy or no_grad."
#: Step sizes along the gradient, relative to the mean norm of an embedding.
STEPS = (0.1, 0.03, 0.01, 0.003)
#: The largest accepted relative difference between gradients and finite differences. The difference of a text is the
#: smallest over all step sizes. The median over the texts is tested.
LARGEST_ERROR = 0.05
#: Changes of a logit up to this size are ignored, because they may be rounding errors of float32. The size is
#: relative to the absolute value of the logit, which counts as at least 1.
SMALLEST_CHANGE = 2e-4


def _require_finite_gradient(e: Examples, gradient: Tensor) -> None:
    """Check that the gradient (B, T, d) at the embeddings is finite. The logits are: a basic check tests them.

    Raises:
        BrokenContractError: It is not finite. The message names the first row.
    """
    bad = ~gradient.isfinite().flatten(1).all(1)
    if bool(bad.any()):
        instance = e.instances[int(bad.int().argmax())]
        raise BrokenContractError(
            f"the gradient at the embeddings is NaN or infinite for {instance.where or instance.id}, "
            f"{instance.text[:40]!r}, although the logits are finite. Look for an operation with an infinite "
            "derivative, such as the square root of zero, and for torch.where(): if the values that it does not select "
            "are NaN, so is the gradient. Replace them before torch.where(), for example with masked_fill()."
        )


def projected(logits: Tensor) -> Tensor:
    """Return a weighted sum of all logits. The weights of the logits of a row run from 1 to 2."""
    return (logits * torch.linspace(1, 2, logits.shape[-1]).to(logits)).sum()


@contract()
def check_embeddings(e: Examples) -> str:
    """run() on the embeddings of the inputs gives the same logits as run() on the inputs."""
    with torch.no_grad():
        embedded = e.adapter.embed(e.inputs)
    if TEXT not in embedded:
        raise BrokenContractError(
            f"embed() returns no stream '{TEXT}'. Return the embeddings of the text's tokens under that name."
        )
    for stream, values in embedded.items():
        rows = tuple(e.inputs.ids[stream].shape) if stream in e.inputs.ids else ()
        if values.dim() != 3 or tuple(values.shape[:2]) != rows or not values.is_floating_point():
            raise BrokenContractError(
                f"embed() returns {values.dtype} of shape {tuple(values.shape)} for '{stream}'; expected "
                f"floating-point values of shape ({', '.join(map(str, rows)) or 'B, T'}, d)."
            )
    require_same_logits(
        e.run(e.inputs, embeddings=embedded).logits,
        e.trace.logits,
        "the logits that run() computes from the embeddings and from the token ids differ",
        "Use the given embeddings instead of the model's embedding lookup: scale them once if the model scales its "
        "embeddings, then add the position embeddings.",
    )
    return f"embeddings of {listed(sorted(embedded))} give the same logits as the ids"


@contract("differentiable")
def check_gradients(e: Examples) -> str:
    """Gradients reach the embeddings and the replaced weights of every site, and are zero on padding."""
    leaves = e.leaves()
    live: dict[str, Tensor] = {}

    def watch(site: Site, weights: Tensor, _allowed: Tensor) -> Tensor:
        live[site.key] = weights.detach().clone().requires_grad_(True)
        return live[site.key]

    with e.differentiating():
        output = projected(e.adapter.run(e.inputs, embeddings=leaves).logits)
        if not output.requires_grad:
            raise BrokenContractError(f"no gradient reaches the embeddings. {ADVICE}")
        names = list(leaves)
        at_embeddings = dict(
            zip(names, torch.autograd.grad(output, list(leaves.values()), allow_unused=True), strict=True)
        )
        replaced = projected(e.adapter.run(e.inputs, embeddings=leaves, intervene=watch).logits)
        gradients: tuple[Tensor | None, ...] = (None,) * len(live)
        if live and replaced.requires_grad:
            gradients = torch.autograd.grad(replaced, list(live.values()), allow_unused=True)
    at_text = at_embeddings[TEXT]
    if at_text is None:
        raise BrokenContractError(f"the gradient at the embeddings is missing. {ADVICE}")
    _require_finite_gradient(e, at_text)
    if not bool(at_text.any()):
        raise BrokenContractError(f"the gradient at the embeddings is zero everywhere. {ADVICE}")
    reached = {key for key, g in zip(live, gradients, strict=True) if g is not None and bool(g.any())}
    missed = [site.key for site in e.sites if site.key not in reached]
    if missed:
        raise BrokenContractError(
            f"no gradient reaches the weights that intervene returns at {listed(missed)}: run() detaches or ignores "
            f"them. {ADVICE}"
        )
    for stream, gradient in at_embeddings.items():
        padding = ~e.inputs.mask[stream]
        leaked = gradient[padding].abs().max().item() if gradient is not None and bool(padding.any()) else 0.0
        if not leaked == 0:
            raise BrokenContractError(
                f"the gradient at padding of '{stream}' is not zero ({leaked:.2g}), so padding influences the output. "
                "Mask padding in the encoder and the attention."
            )
    return "gradients reach the embeddings and the replaced attention, and none reaches padding"


@contract("differentiable", quick=False)
def check_live_gradients(e: Examples) -> str:
    """When intervene returns the model's own weights, gradients reach these weights, and pass through them to the
    embeddings."""
    few = e.few
    leaves = few.leaves()
    live: dict[str, Tensor] = {}

    def watch(site: Site, weights: Tensor, _allowed: Tensor) -> Tensor:
        live[site.key] = weights
        return weights

    with few.differentiating():
        output = projected(few.adapter.run(few.inputs, embeddings=leaves, intervene=watch).logits)
        connected = {key: weights for key, weights in live.items() if weights.requires_grad}
        gradients = torch.autograd.grad(output, list(connected.values()), allow_unused=True) if connected else ()
    missed = [key for key, g in zip(connected, gradients, strict=True) if g is None or not bool(g.any())]
    if missed:
        raise BrokenContractError(
            f"when intervene returns the weights it was given, no gradient reaches them at {listed(missed)}. {ADVICE}"
        )
    detached = [key for key in live if key not in connected]
    if detached:
        generator = torch.Generator().manual_seed(0)
        moved = {
            name: leaf.detach() + 0.5 * leaf.std().detach() * torch.randn(leaf.shape, generator=generator).to(leaf)
            for name, leaf in leaves.items()
        }
        trace = few.run(few.inputs, embeddings=moved)
        dependent = [key for key in detached if gap(trace.attention[key], few.trace.attention[key]) > 1e-4]
        if dependent:
            raise BrokenContractError(
                f"the weights at {listed(dependent)} depend on the embeddings, but no gradient passes through them. "
                f"{ADVICE}"
            )
        return (
            f"gradients pass through {len(connected)} of {len(live)} sites; the attention at the other sites does not "
            "depend on the input"
        )
    return f"gradients reach the model's own weights at {len(live)} site{'s' * (len(live) > 1)}"


@contract("differentiable", quick=False)
def check_finite_differences(e: Examples) -> str:
    """The gradient at the embeddings agrees with finite differences of the logits, so the autograd graph is
    complete."""
    few = e.few
    leaves = few.leaves()
    with few.differentiating():
        logits = few.adapter.run(few.inputs, embeddings=leaves).logits
        logits = logits.gather(1, logits.argmax(-1, keepdim=True))
        gradient = None
        if logits.requires_grad:
            (gradient,) = torch.autograd.grad(logits.sum(), leaves[TEXT], allow_unused=True)
    if gradient is None or not bool(gradient.isfinite().all()):
        what = "no gradient reaches the embeddings" if gradient is None else "the gradients are not finite"
        raise BrokenContractError(f"{what}, so there is nothing to compare. Fix what the check 'gradients' reports.")
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
        best = torch.where(
            change.abs() > SMALLEST_CHANGE * logits.detach()[:, 0].abs().clamp_min(1.0), off.minimum(best), best
        )
    comparable = best[best.isfinite()]
    if not len(comparable):
        return "the logits change too little to compare gradients with finite differences"
    median = comparable.median().item()
    if median > LARGEST_ERROR:
        raise BrokenContractError(
            f"the gradients at the embeddings differ by {median:.0%} from finite differences of the logits; expected "
            f"at most {LARGEST_ERROR:.0%}. Part of the computation is missing from the autograd graph. Look for "
            "detached tensors between embeddings and logits, such as detached attention weights."
        )
    return f"gradients agree with finite differences within {median:.1%}"


@contract("differentiable", "batches_gradients")
def check_batched_gradients(e: Examples) -> str:
    """One backward pass gives the same gradients of several hidden states, at the embeddings, as one pass for each of
    them."""
    few = e.few
    leaves, mask = few.leaves(), few.inputs.mask[TEXT]
    width = mask.shape[1]
    positions = torch.arange(width) if e.thorough else torch.unique(torch.tensor([0, width // 2, width - 1]))
    selected = torch.nn.functional.one_hot(positions, width)[:, None].to(mask.device) * mask
    site = [site for site in few.sites if site.keys == TEXT][-1]
    advice = "A custom adapter can declare batches_gradients=False."
    with few.differentiating():
        norms = few.adapter.run(few.inputs, embeddings=leaves, hidden=True).hidden[site.key].norm(dim=-1)
        numbers = selected.to(norms)
        each = [torch.autograd.grad(norms, leaves[TEXT], one, retain_graph=True)[0] for one in numbers]
        try:
            (together,) = torch.autograd.grad(norms, leaves[TEXT], numbers, is_grads_batched=True)
        except RuntimeError as error:
            raise BrokenContractError(
                f"one backward pass cannot compute the gradients of several hidden states: {error} {advice}"
            ) from error
    expected = torch.stack(each)
    what = "the gradients of several hidden states in one backward pass and in one pass each differ"
    require_close(together, expected, what, advice, tolerance=TOLERANCE * max(expected.abs().max().item(), 1e-6))
    return f"one backward pass gives the gradients of {len(positions)} hidden states"
