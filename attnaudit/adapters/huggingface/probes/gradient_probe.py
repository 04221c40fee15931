"""Probe whether one backward pass through a model can compute the gradients of several numbers.

Shapes: B rows, T tokens, G numbers, d features of an embedding.
"""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import Tensor

from attnaudit.adapters.huggingface.forward_hooks import frozen_parameters
from attnaudit.adapters.huggingface.logit_comparison import gives
from attnaudit.adapters.huggingface.passes.runner import Runner
from attnaudit.adapters.protocol import TEXT


def batches_gradients_exactly(runner: Runner) -> bool:
    """Return whether the gradients of several hidden states are the same in one backward pass and in one pass each.

    The comparison uses the states that the last attention over the text reads. It runs with the model's own attention
    functions at all sites and, if the model has a fused kernel, with the kernel at all sites.
    """
    choices: tuple[Collection[str] | None, ...] = (None, ()) if runner.fuses else (None,)
    return all(_same_gradients(runner, sites) for sites in choices)


def _same_gradients(runner: Runner, sites: Collection[str] | None) -> bool:
    """Compare the gradients in a pass that records the weights at `sites` (see `Runner.run`)."""
    batch = runner.builder.synthetic()
    embeddings = runner.embed(batch).detach().requires_grad_(True)
    keys = [site.key for site in runner.layout.sites if site.keys == TEXT]
    with torch.enable_grad(), frozen_parameters(runner.model):
        states = runner.run(batch, embeddings={TEXT: embeddings}, hidden=True, sites=sites).hidden.get(keys[-1])
        if states is None or not states.requires_grad:
            return False
        norms = states.float().norm(dim=-1)
        selected = _one_position_each(norms)
        each = [
            torch.autograd.grad(norms, embeddings, one, retain_graph=True, allow_unused=True)[0] for one in selected
        ]
        if any(gradient is None for gradient in each):
            return False
        expected = torch.stack(each)
        size = expected.abs().max()

        def together() -> Tensor:
            """Return the gradients (G, B, T, d), divided by the largest of them."""
            (found,) = torch.autograd.grad(norms, embeddings, selected, is_grads_batched=True)
            return found / size

        return bool(size > 0) and gives(together, expected / size)


def _one_position_each(norms: Tensor) -> Tensor:
    """Return masks (G, B, T) of three positions of every row (B, T), as numbers."""
    width = norms.shape[1]
    positions = torch.tensor([0, width // 2, width - 1], device=norms.device)
    at_position = torch.arange(width, device=norms.device) == positions[:, None]
    return at_position[:, None].expand(-1, len(norms), -1).to(norms)
