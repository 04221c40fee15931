"""Checks that a pass gives the same results if it records only some sites or queries, or computes weights in blocks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import torch
from torch import Tensor

from attnaudit.adapters.protocol import TEXT, Site
from attnaudit.adapters.query_blocks import BlockAdapter
from attnaudit.adapters.site_selection import at_queries, at_query, run_for
from attnaudit.conformance.contract import BrokenContractError, contract, gap, require_close, require_same_logits
from attnaudit.conformance.gradient_flow import projected
from attnaudit.conformance.sample_texts import Examples

ADVICE = (
    "In run(), `sites` may change only which attention is recorded. If the remaining sites use another attention "
    "kernel, this kernel must give the same output."
)
QUERY_ADVICE = (
    "In run(), `queries` may change only which weights are recorded, and which weights `intervene` receives. The "
    "outputs of all other queries must stay those of the model's own attention."
)

BLOCK_ADVICE = (
    "In run(), `blocks` may change only how weights are stored. attention_rows() must return the weights of the pass."
)


@contract("selects_sites")
def check_selected_sites(e: Examples) -> str:
    """run() gives the same logits, attention and gradients if only the attention at some sites is requested."""
    few = e.few
    chosen = few.sites[-1]
    worst = 0.0
    for sites in ((), (chosen.key,)):
        with torch.no_grad():
            trace = run_for(few.adapter, few.inputs, sites)
        what = f"the logits of run() for all sites and with sites={list(sites)} differ"
        worst = max(worst, require_same_logits(trace.logits, few.trace.logits, what, ADVICE))
        for key in sites:
            what = f"the attention at '{key}' in run() for all sites and with sites={list(sites)} differs"
            require_close(trace.attention[key], few.trace.attention[key], what, ADVICE)
    if few.capabilities.differentiable:
        _require_same_gradient(few, chosen.key)
    return f"run() for some sites equals run() for all sites, within {worst:.1g}"


def _require_same_gradient(e: Examples, site: str) -> None:
    with torch.no_grad():
        embedded = {name: value.detach() for name, value in e.adapter.embed(e.inputs).items()}
    gradients = []
    with e.differentiating():
        for sites in (None, (site,)):
            leaves = {name: value.clone().requires_grad_(True) for name, value in embedded.items()}
            output = projected(run_for(e.adapter, e.inputs, sites, embeddings=leaves).logits)
            gradients.append(torch.autograd.grad(output, leaves[TEXT])[0])
    expected, found = gradients
    what = f"the gradients of run() for all sites and with sites={[site]} differ"
    require_close(found, expected, what, ADVICE, tolerance=1e-3 * max(expected.abs().max().item(), 1e-6))


@contract("selects_queries")
def check_selected_queries(e: Examples) -> str:
    """run() gives the same logits, attention and gradients if only some queries of a site are requested, and changes
    the weights of only these queries."""
    few = e.few
    worst = 0.0
    for site in dict.fromkeys((few.sites[0], few.sites[-1])):
        queries = {site.key: _ends(few, site)}
        case = f"if run() is called for only some queries of '{site.key}'"
        with torch.no_grad():
            trace = run_for(few.adapter, few.inputs, (site.key,), queries=queries)
        expected = few.trace.attention[site.key]
        shape = (*expected.shape[:2], queries[site.key].shape[1], expected.shape[3])
        found = trace.attention[site.key]
        if tuple(found.shape) != shape or site.key not in trace.queries:
            raise BrokenContractError(
                f"run() for some queries of '{site.key}' returned weights of shape {tuple(found.shape)}; expected "
                f"{shape}. Trace.queries must name these queries."
            )
        require_same_logits(trace.logits, few.trace.logits, f"{case}, the logits differ", QUERY_ADVICE)
        for r, positions in enumerate(queries[site.key].T):
            rows = at_query(few.trace, expected, site.key, positions)
            require_close(found[:, :, r], rows, f"{case}, the weights differ", QUERY_ADVICE)
            worst = max(worst, gap(found[:, :, r], rows))
        _require_same_intervention(few, site, queries)
    return f"the weights of some queries equal those of run() for all queries, within {worst:.1g}"


def _ends(e: Examples, site: Site) -> Tensor:
    """Return the positions (B, 2) of the first and the last query of each row."""
    mask = e.inputs.mask[TEXT if site.query is None else site.query]
    if site.query is None:
        return torch.zeros((len(mask), 1), dtype=torch.long, device=mask.device)
    return torch.stack([mask.int().argmax(1), mask.shape[1] - 1 - mask.flip(1).int().argmax(1)], dim=1)


def _require_same_intervention(e: Examples, site: Site, queries: Mapping[str, Tensor]) -> None:
    """Check that replacing the weights of some queries has the same effect in run() with and without `queries`."""

    def mixed(at: Site, weights: Tensor, allowed: Tensor) -> Tensor | None:
        if at.key != site.key:
            return None
        uniform = allowed / allowed.sum(-1, keepdim=True).clamp_min(1)
        return 0.5 * weights + 0.5 * uniform.to(weights) * weights.sum(-1, keepdim=True)

    embedded = {name: value.detach() for name, value in e.adapter.embed(e.inputs).items()}
    results = []
    for selects in (False, True):
        leaves = {name: value.clone().requires_grad_(True) for name, value in embedded.items()}
        with e.differentiating():
            if selects:
                trace = run_for(e.adapter, e.inputs, (site.key,), queries=queries, embeddings=leaves, intervene=mixed)
            else:
                trace = e.adapter.run(e.inputs, embeddings=leaves, intervene=at_queries(mixed, queries))
            gradient = None
            if e.capabilities.differentiable:
                (gradient,) = torch.autograd.grad(projected(trace.logits), leaves[TEXT])
        results.append((trace.logits.detach(), gradient))
    (expected, expected_gradient), (found, gradient) = results
    case = f"if run() for some queries of '{site.key}' replaces their weights"
    require_same_logits(found, expected, f"{case}, the logits differ", QUERY_ADVICE)
    if gradient is not None and expected_gradient is not None:
        size = max(expected_gradient.abs().max().item(), 1e-6)
        require_close(gradient, expected_gradient, f"{case}, the gradients differ", QUERY_ADVICE, tolerance=1e-3 * size)


@contract("query_blocks")
def check_query_blocks(e: Examples) -> str:
    """run() gives the same logits, attention and gradients if weights are computed in blocks of queries. This also
    holds if gradients treat the weights as constants."""
    few, worst = e.few, 0.0
    adapter = cast(BlockAdapter, few.adapter)
    for site in dict.fromkeys((few.sites[0], few.sites[-1])):
        case = f"if the weights at '{site.key}' are computed in blocks of queries"
        with torch.no_grad():
            trace = adapter.run(few.inputs, sites=(site.key,), blocks=(site.key,))
        if trace.blocks != {site.key}:
            raise BrokenContractError(
                f"run() with blocks=['{site.key}'] returned Trace.blocks = {sorted(trace.blocks)}; expected this site."
            )
        require_same_logits(trace.logits, few.trace.logits, f"{case}, the logits differ", BLOCK_ADVICE)
        expected, allowed = few.trace.attention[site.key], few.allowed(site)
        size = max(1, expected.shape[2] // 2)
        for first in range(0, expected.shape[2], size):
            found, permitted = adapter.attention_rows(trace, site, first, first + size)
            block = slice(first, first + size)
            require_close(found, expected[:, :, block], f"{case}, the weights differ", BLOCK_ADVICE)
            worst = max(worst, gap(found, expected[:, :, block]))
            if not torch.equal(permitted.expand_as(found), allowed[:, :, block]):
                raise BrokenContractError(f"{case}, the masks of the allowed keys differ. {BLOCK_ADVICE}")
        _require_same_replacement(few, site)
    if few.capabilities.differentiable:
        _require_same_detached_gradient(few)
    return f"weights computed in blocks of queries equal those computed at once, within {worst:.1g}"


def _require_same_replacement(e: Examples, site: Site) -> None:
    """Check that an intervention has the same effect if it is called once for each block of queries."""
    weights = e.random_weights(site, 5)

    def replaced(at: Site, live: Tensor, _allowed: Tensor, first: int = 0) -> Tensor | None:
        return weights[:, :, first : first + live.shape[2]].to(live.dtype) if at.key == site.key else None

    with torch.no_grad():
        adapter = cast(BlockAdapter, e.adapter)
        found = adapter.run(e.inputs, sites=(site.key,), blocks=(site.key,), intervene=replaced).logits
    what = f"if the weights at '{site.key}' are replaced in blocks of queries, the logits differ"
    require_same_logits(found, e.run(e.inputs, replaced).logits, what, BLOCK_ADVICE)


def _require_same_detached_gradient(e: Examples) -> None:
    """Check the gradients of a pass that treats all weights as constants."""
    embedded = {name: value.detach() for name, value in e.adapter.embed(e.inputs).items()}
    adapter = cast(BlockAdapter, e.adapter)
    gradients = []
    for detaches in (False, True):
        leaves = {name: value.clone().requires_grad_(True) for name, value in embedded.items()}
        with e.differentiating():
            if detaches:
                trace = adapter.run(e.inputs, embeddings=leaves, sites=(), detached=True)
            else:
                trace = adapter.run(e.inputs, embeddings=leaves, intervene=lambda _site, weights, _a: weights.detach())
            gradients.append(torch.autograd.grad(projected(trace.logits), leaves[TEXT])[0])
    expected, found = gradients
    size = max(expected.abs().max().item(), 1e-6)
    what = "the gradients with detached=True and those with an intervention that detaches all weights differ"
    advice = "In run(), `detached` must stop all gradients through the weights, and only these."
    require_close(found, expected, what, advice, tolerance=1e-3 * size)
