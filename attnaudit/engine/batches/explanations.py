"""Scores of readings that are not plain attention: rollout, norms of value vectors, and gradient-weighted attention.

Shapes: B instances, T tokens, H heads, Q queries, K keys, m features.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import cast

import torch
from torch import Tensor

from attnaudit.adapters.optional_methods import TransformerAdapter
from attnaudit.adapters.protocol import TEXT
from attnaudit.adapters.site_selection import at_query
from attnaudit.engine.batches.clean_pass import CleanPass
from attnaudit.engine.batches.scopes import Scope
from attnaudit.errors import AdapterError
from attnaudit.readings import Reading

#: Number of keys whose value vectors are in memory at once if a reading averages over several queries.
KEYS_PER_PART = 256


def explanation_scores(clean: CleanPass, scope: Scope, reading: Reading) -> Tensor:
    """Return the scores of a reading that is not plain attention.

    Args:
        clean: The clean pass of the batch.
        scope: The scope of the reading.
        reading: The reading.

    Returns:
        (B, T) non-negative scores of all tokens, including special tokens, float64.
    """
    if reading.kind == "rollout":
        return rollout(clean, scope, reading.query)
    heads = scope.head_numbers(scope.site)
    if reading.kind == "norms" and not scope.single_row:
        products = value_products(clean, scope)
        return mean_over_queries(clean, scope, lambda weights: norms_of_sums(weights[:, heads].double(), products))[
            :, 0
        ]
    weights = _shown(clean.trace.attention[scope.site.key].detach(), clean, scope)
    if reading.kind == "norms":
        return value_norms(clean, scope, weights)[:, 0]
    scores = (weights * _shown(clean.attention_gradients[scope.site.key], clean, scope)).clamp_min(0.0).mean(1)
    return scores[:, 0] if scope.single_row else scores_at_query(scores, clean, scope, reading.query)


def _shown(values: Tensor, clean: CleanPass, scope: Scope) -> Tensor:
    """Select the heads in scope, and the query in scope if it is a single one.

    Args:
        values: (B, H, Q, K) values of the clean pass at the scope's site.
        clean: The clean pass of the batch.
        scope: The scope of the reading.

    Returns:
        (B, H', Q or 1, K) values, float64.
    """
    values = scope.select_heads(values)
    if scope.single_row:
        values = at_query(clean.trace, values, scope.site.key, scope.query_positions(clean.inputs))[:, :, None]
    return values.double()


def mean_over_queries(clean: CleanPass, scope: Scope, values_of: Callable[[Tensor], Tensor]) -> Tensor:
    """Average values over the queries in scope at its last site.

    Args:
        clean: The clean pass of the batch.
        scope: The scope.
        values_of: Weights (B, H, R, K) of R queries -> values (B, H', R, K). It must treat every query independently.

    Returns:
        (B, H', K) means of the values.
    """
    site, inputs = scope.site, clean.inputs
    total, count = torch.zeros(1, device=clean.device), torch.zeros(1, device=clean.device)
    for first, weights, _allowed in clean.clean_blocks(site):
        rows = replace(scope, heads=None).row_mask(site, inputs, weights.shape[2], first=first)[:, :1]
        total = total + (values_of(weights) * rows).sum(2)
        count = count + rows.sum(2)
    return total / count.clamp_min(1)


def scores_at_query(scores: Tensor, clean: CleanPass, scope: Scope, query: str) -> Tensor:
    """Average rows of scores over the queries that a reading selects. For "cls" and "last", this is a single query.

    Args:
        scores: (B, Q, K) one row of scores for each query.
        clean: The clean pass of the batch.
        scope: The scope of the reading.
        query: "cls", "last" or "mean".

    Returns:
        (B, K) scores.
    """
    rows = replace(scope, heads=None, query=query).row_mask(scope.site, clean.inputs, scores.shape[1])[:, 0]
    return (scores * rows).sum(1) / rows.sum(1).clamp_min(1)


def rollout(clean: CleanPass, scope: Scope, query: str) -> Tensor:
    """Return the rows that a reading selects from attention rollout (Abnar & Zuidema 2020), averaged.

    Each layer has the matrix ½ · (mean of the attention over the heads) + ½ · I, whose rows are normalised to sum to 1.
    The rollout is the product of these matrices, with the last layer on the left. To compute one of its rows, a row
    vector is multiplied by the matrix of each layer, from the last to the first. No two matrices need to be multiplied.

    Args:
        clean: The clean pass of the batch.
        scope: The scope of the reading.
        query: "cls", "last" or "mean".

    Returns:
        (B, T) scores.
    """
    shown = replace(scope, heads=None, query=query)
    rows = shown.row_mask(scope.site, clean.inputs, clean.inputs.mask[TEXT].shape[1])[:, 0, :, 0].double()
    row = rows / rows.sum(1, keepdim=True).clamp_min(1)
    for site in reversed(scope.sites):
        through_attention, through_identity = torch.zeros_like(row), []
        for first, weights, _allowed in clean.clean_blocks(site):
            attention = weights.double().mean(1)
            part = 0.5 * row[:, first : first + attention.shape[1]] / (0.5 * attention.sum(-1) + 0.5)
            through_attention += (part[:, None] @ attention)[:, 0]
            through_identity.append(part)
        row = through_attention + torch.cat(through_identity, dim=1)
    return row


def value_norms(clean: CleanPass, scope: Scope, weights: Tensor) -> Tensor:
    """Return the norms of the weighted, transformed value vectors (Kobayashi et al. 2020, eq. 5).

    The score of token j is ‖Σ_h α_h · f_h(x_j)‖₂. Here α_h is the weight of head h on token j, and f_h(x_j) is the
    value vector of head h for token j after the output projection.

    Args:
        clean: The clean pass of the batch.
        scope: The scope of the reading.
        weights: (B, H, Q, K) attention weights of the heads in scope.

    Returns:
        (B, Q, K) norms.

    Raises:
        AdapterError: The adapter does not declare `value_vectors`.
    """
    values = _value_vectors(clean, scope).double()
    norms = torch.zeros_like(weights[:, 0])
    for query in range(weights.shape[2]):  # one query at a time: (B, Q, K, m) would not fit in memory
        norms[:, query] = torch.einsum("bhk,bhkm->bkm", weights[:, :, query], values).norm(dim=-1)
    return norms


def value_products(clean: CleanPass, scope: Scope) -> Tensor:
    """Return the scalar products of the transformed value vectors of each pair of heads in scope.

    Returns:
        (B, H, H, K) products ⟨f_h(x_j), f_g(x_j)⟩, float64.

    Raises:
        AdapterError: The adapter does not declare `value_vectors`.
    """
    count = clean.inputs.mask[scope.site.keys].shape[1]
    parts = (
        _value_vectors(clean, scope, slice(first, first + KEYS_PER_PART)).double()
        for first in range(0, count, KEYS_PER_PART)
    )
    return torch.cat([torch.einsum("bhkm,bgkm->bhgk", part, part) for part in parts], dim=3)


def norms_of_sums(weights: Tensor, products: Tensor) -> Tensor:
    """Return the same norms as `value_norms`, computed from scalar products: ‖Σ_h α_h f_h‖² = Σ_hg α_h α_g ⟨f_h, f_g⟩.

    This takes much less time if there are many queries.

    Args:
        weights: (B, H, R, K) attention weights.
        products: (B, H, H, K) the result of `value_products`.

    Returns:
        (B, 1, R, K) norms.
    """
    squares = torch.zeros_like(weights[:, 0])
    for h in range(weights.shape[1]):
        squares += weights[:, h] * torch.einsum("bgrk,bgk->brk", weights, products[:, h])
    return squares.clamp_min(0.0).sqrt()[:, None]


def _value_vectors(clean: CleanPass, scope: Scope, keys: slice = slice(None)) -> Tensor:
    """Return the value vectors (B, H, K, m) of the heads in scope and of some keys after the output projection.

    Raises:
        AdapterError: The adapter does not declare `value_vectors`.
    """
    if not clean.adapter.capabilities.value_vectors:
        raise AdapterError(
            "The reading 'norms' needs the value vectors after the output projection, but the adapter declares "
            "value_vectors=False. Implement value_vectors() and declare it, or use a reading of the attention weights "
            "or gradients@..."
        )
    with torch.no_grad():
        values = cast(TransformerAdapter, clean.adapter).value_vectors(clean.trace, scope.site, keys)
        return scope.select_heads(values)
