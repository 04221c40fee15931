"""Outputs for texts with masked units, while the attention of a reading keeps the weights of the clean pass.

If the adapter can replay the weights of one query, the model runs only once for each masked text. This pass computes
its own attention, which is called live. The logits with held attention are then replayed from its states, so that both
outputs come from the same pass.

Shapes: B instances, T tokens (padded), V variants, H heads, Q queries, K keys, C classes.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor

from attnaudit.adapters.optional_methods import TransformerAdapter
from attnaudit.adapters.padding import kept_positions
from attnaudit.adapters.protocol import TEXT, Inputs, Site, Trace
from attnaudit.adapters.query_blocks import BlockIntervention, ErasureIntervention
from attnaudit.adapters.site_selection import at_query
from attnaudit.engine.batches.attention_reading import AttentionReading
from attnaudit.engine.batches.masked_states import masked_from_states


def masked_with_attention_held(reading: AttentionReading, rows: Tensor, keep: Tensor, most: int) -> Tensor:
    """Return the logits of texts with masked units, with the attention of the clean pass.

    The heads and queries of the reading keep their attention weights of the clean pass. Everything else is computed
    from the masked text: the states that are weighted, and all other attention. Sources are deleted instead of masked:
    all remaining tokens keep their weights, so that the weights of a query no longer sum to 1.

    Args:
        reading: The batch under a reading.
        rows: (V,) for each variant, the position of its original instance in the batch.
        keep: (V, T) True at the units that are kept; the others are masked.
        most: The largest number of attention weights in memory at once, for models whose states are independent.

    Returns:
        (V, C) logits, float64.
    """
    batch, scope = reading.batch, reading.scope
    if batch.unit == "sources":
        return batch.masked(rows, keep, _hold_remaining(reading), sites=tuple(site.key for site in scope.sites))
    if reading.adapter.capabilities.unitwise and scope.single_row:
        return masked_from_states(reading, rows, keep, most)
    weights = None
    if scope.single_row and scope.heads is None and scope.head_of_row is None:
        weights = _clean_row(reading)
    sites = tuple(site.key for site in scope.sites)
    queries = scope.query_positions(reading.inputs) if scope.single_row else None
    return batch.masked(rows, keep, _hold(reading), sites=sites, queries=queries, weights=weights)


def held_and_live(reading: AttentionReading, rows: Tensor, keep: Tensor) -> tuple[Tensor, Tensor]:
    """Return the logits of texts with masked units, with held and with live attention.

    Each masked text runs once. `gives_both` must be true for the reading.

    Args:
        reading: The batch under a reading.
        rows: (V,) as in `masked_with_attention_held`.
        keep: (V, T) as in `masked_with_attention_held`.

    Returns:
        (V, C) logits with the attention of the clean pass, and (V, C) logits with the attention that the
        model computes from the masked texts; both float64.
    """
    batch, scope, site = reading.batch, reading.scope, reading.site
    adapter, queries = cast(TransformerAdapter, reading.adapter), scope.query_positions(reading.inputs)
    held = scope.select_heads(_clean_row(reading))

    def replay(variants: Inputs, trace: Trace, rows_of_pass: Tensor) -> Tensor:
        positions = queries[rows_of_pass]
        live = at_query(trace, trace.attention[site.key].detach(), site.key, positions)
        # The pass may have less padding than the batch.
        weights = scope.replace_heads(live, held[rows_of_pass][:, None, :, : live.shape[2]].to(live.dtype))
        batch.count("replay", "reweighted_rows", len(rows_of_pass))
        return adapter.replay(variants, trace, site, positions, weights)[:, 0]

    live, replayed = batch.masked_and_replayed(rows, keep, site, queries, replay)
    return replayed, live


def gives_both(reading: AttentionReading) -> bool:
    """Return whether `held_and_live` can be used.

    The reading must select a single token at a single site, and the adapter must be able to replay its weights.
    """
    capabilities, scope = reading.adapter.capabilities, reading.scope
    runs_passes = not capabilities.shares_masked and reading.batch.unit != "sources"
    of_token = scope.single_row and reading.site.query is not None and scope.head_of_row is None
    return capabilities.replays and runs_passes and of_token


def _clean_row(reading: AttentionReading) -> Tensor:
    """Return the weights (B, H, K) of all heads in the clean pass, at the reading's only query."""
    return reading.at_query(reading.batch.trace.attention[reading.site.key].detach())


def _hold_remaining(reading: AttentionReading) -> ErasureIntervention:
    """Return a function from variants with deleted tokens to the intervention that keeps the weights of all others."""
    batch, scope, keys = reading.batch, reading.scope, {site.key for site in reading.scope.sites}

    def hold(rows_of_pass: Tensor, left: Tensor | None) -> BlockIntervention:
        assert left is not None
        order, kept = kept_positions(left)

        def intervene(site: Site, live: Tensor, _allowed: Tensor, first: int = 0) -> Tensor | None:
            if site.key not in keys:
                return None
            # The queries of another stream, such as those of a decoder, are not deleted.
            moves = site.query == TEXT
            queries = order if moves else torch.arange(live.shape[2] + first, device=live.device).expand(len(order), -1)
            queries = queries[:, first : first + live.shape[2]]
            width = reading.inputs.mask[str(site.query)].shape[1]
            in_scope = scope.row_mask(site, reading.inputs, width)[..., 0]
            shown = in_scope.any(1).any(0).nonzero()[:, 0]
            start, stop = int(shown[0]), int(shown[-1]) + 1
            clean = batch.clean_weights(site, start, stop)[0]
            places = (queries - start).clamp(0, stop - start - 1)
            held = clean[rows_of_pass[:, None], :, places].transpose(1, 2)  # (v, H, R, K)
            columns = order[:, None, None].expand(-1, held.shape[1], held.shape[2], -1)
            held = held.gather(3, columns) * kept[:, None, None]
            replaced = in_scope.expand(len(reading.inputs.mask[TEXT]), site.heads, -1)[
                rows_of_pass[:, None], :, queries
            ]
            if moves:
                replaced = replaced & kept[:, first : first + live.shape[2], None]
            return torch.where(replaced.transpose(1, 2)[..., None], held.to(live.dtype), live)

        return intervene

    return hold


def _hold(reading: AttentionReading) -> ErasureIntervention:
    """Return a function from the rows (v,) of variants to the intervention that gives them the clean weights."""
    batch, scope = reading.batch, reading.scope
    queries = scope.query_positions(reading.inputs) if scope.single_row else None
    keys = {site.key for site in scope.sites}

    def clean_rows(site: Site, first: int, count: int) -> Tensor:
        if scope.single_row:
            return _clean_row(reading)[:, :, None]
        return batch.clean_weights(site, first, first + count)[0]

    def hold(rows_of_pass: Tensor, _left: Tensor | None) -> BlockIntervention:
        def intervene(site: Site, live: Tensor, _allowed: Tensor, first: int = 0) -> Tensor | None:
            if site.key not in keys:
                return None
            held = clean_rows(site, first, live.shape[2])[rows_of_pass].to(live.dtype)
            held = held[..., : live.shape[3]]  # The pass may have less padding than the batch.
            width = live.shape[2] if queries is None else int(queries.max()) + 1
            in_scope = scope.row_mask(site, reading.inputs, width, first=first)[rows_of_pass]
            return torch.where(in_scope if queries is None else in_scope.any(2, keepdim=True), held, live)

        return intervene

    return hold
