"""Readings that are more than a row of weights: rollout, norms of weighted values, and gradient-weighted attention.

Shapes: B instances, T tokens, H heads, Q queries, K keys, m features.
"""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import torch
from torch import Tensor

from attnaudit.adapters.protocol import TEXT, TransformerAdapter
from attnaudit.engine.batch import Batch
from attnaudit.engine.scopes import Scope
from attnaudit.errors import AdapterError
from attnaudit.readings import Reading


def explained(batch: Batch, scope: Scope, reading: Reading) -> Tensor:
    """(B, T) float64 non-negative scores over all tokens, special ones included."""
    if reading.kind == "rollout":
        return at_query(rollout(batch, scope), batch, scope, reading.query)
    weights = batch.trace.attention[scope.site.key].detach()[:, scope.head_numbers(scope.site)].double()
    if reading.kind == "norms":
        return at_query(norms(batch, scope, weights), batch, scope, reading.query)
    slopes = batch.attention_slopes[scope.site.key][:, scope.head_numbers(scope.site)]
    return at_query((weights * slopes).clamp_min(0.0).mean(1), batch, scope, reading.query)


def at_query(scores: Tensor, batch: Batch, scope: Scope, query: str) -> Tensor:
    """(B, Q, K) -> (B, K): the mean over the rows of the query, which for the first or the last token is one."""
    rows = replace(scope, heads=None, query=query).chosen(scope.site, batch.inputs, scores.shape[1])[:, 0]
    return (scores * rows).sum(1) / rows.sum(1).clamp_min(1)


def rollout(batch: Batch, scope: Scope) -> Tensor:
    """(B, T, T): the product over layers of ½·(mean over heads) + ½·I, rows scaled to one (Abnar & Zuidema 2020)."""
    mask = batch.inputs.mask[TEXT]
    identity = torch.eye(mask.shape[1], dtype=torch.float64, device=mask.device)
    total = identity.expand(len(mask), -1, -1)
    for site in scope.sites:
        mixed = 0.5 * batch.trace.attention[site.key].detach().double().mean(1) + 0.5 * identity
        total = (mixed / mixed.sum(-1, keepdim=True)) @ total
    return total


def norms(batch: Batch, scope: Scope, weights: Tensor) -> Tensor:
    """weights (B, H, Q, K) -> (B, Q, K): ‖Σ_h α_h · f_h(x_j)‖₂, f_h the head's value vector after its part of the
    output projection (Kobayashi et al. 2020, eq. 5). One query at a time, since (B, Q, K, m) is never held."""
    if not batch.adapter.capabilities.value_vectors:
        raise AdapterError(
            "The reading 'norms' needs the value vectors after the output projection, which this model's adapter does "
            "not give. Read the attention itself, or gradients@..."
        )
    adapter = cast(TransformerAdapter, batch.adapter)
    with torch.no_grad():
        values = adapter.value_vectors(batch.trace, scope.site)[:, scope.head_numbers(scope.site)].double()
    found = torch.zeros_like(weights[:, 0])
    for query in range(weights.shape[2]):
        found[:, query] = torch.einsum("bhk,bhkm->bkm", weights[:, :, query], values).norm(dim=-1)
    return found
