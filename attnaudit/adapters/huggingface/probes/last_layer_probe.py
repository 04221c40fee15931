"""Probe whether the last layer of a model may run only on the token that the logits are read from.

Shapes: B rows, T tokens.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from attnaudit.adapters.huggingface.forward_hooks import frozen_parameters
from attnaudit.adapters.huggingface.logit_comparison import attempt, gives
from attnaudit.adapters.huggingface.outputs.read_tokens import ReadTokens
from attnaudit.adapters.huggingface.passes.last_layer import LastLayer, find_last_layer, find_layers_of_queries
from attnaudit.adapters.huggingface.passes.runner import Runner
from attnaudit.adapters.huggingface.texts.input_builder import single_row
from attnaudit.adapters.protocol import TEXT


def last_layer_at_read_token(runner: Runner, read_tokens: ReadTokens) -> LastLayer | None:
    """Find the modules of the last layer that need to run only on the token that the logits are read from.

    Returns:
        The modules. None if running them on only this token changes the logits, or the gradients of the logits at the
        embeddings.
    """
    batch, model = runner.builder.synthetic(), runner.model
    with torch.no_grad():
        last_layer = find_last_layer(
            runner.layout, runner.kernel, read_tokens, lambda observer: runner.logits(batch, observer)
        )
        if last_layer is None:
            return None
        embeddings = runner.embed(batch).detach()
    shorter = replace(runner, last_layer=last_layer)

    def with_gradient(candidate: Runner) -> Tensor:
        """Return the logits, and the gradients of their squares at the embeddings, as one row per text."""
        leaf = embeddings.clone().requires_grad_(True)
        with torch.enable_grad(), frozen_parameters(model):
            logits = candidate.run(batch, embeddings={TEXT: leaf}).logits
            (gradient,) = torch.autograd.grad(logits.square().sum(), leaf)
        return torch.cat([logits.detach(), gradient.flatten(1)], dim=1)

    if not gives(lambda: with_gradient(shorter), with_gradient(runner)):
        return None
    with torch.no_grad():
        alone = single_row(batch, 1)
        return last_layer if gives(lambda: shorter.logits(alone), runner.logits(alone)) else None


def with_single_query(runner: Runner, last_layer: LastLayer) -> LastLayer:
    """Let passes compute only the query that is read in the last attention, if this does not change the logits.

    The comparison runs on texts with and without padding.

    Args:
        runner: Runs the model with the fused kernel, and with all queries of the last attention.
        last_layer: The last layer, whose attention computes all queries.

    Returns:
        The last layer with `single_query`, and with the linear layers that compute nothing but the queries. The same
        last layer if this would change the logits.
    """
    batch = runner.builder.synthetic()
    mask = runner.builder.output_mask(batch)
    with torch.no_grad():
        found = attempt(
            lambda: find_layers_of_queries(last_layer, mask, lambda observer: runner.logits(batch, observer))
        )
        found = replace(found or last_layer, single_query=True)
        shorter = replace(runner, last_layer=found)
        for inputs in (batch, single_row(batch, 1)):
            if not gives(partial(shorter.logits, inputs), runner.logits(inputs)):
                return last_layer
    return found
