"""Checks of the additional methods of Transformer adapters: `replay` and `value_vectors`."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor

from attnaudit.adapters.optional_methods import TransformerAdapter
from attnaudit.adapters.protocol import Intervention, Site
from attnaudit.conformance.contract import (
    BrokenContractError,
    contract,
    gap,
    require_close,
    require_same_logits,
)
from attnaudit.conformance.gradient_flow import projected
from attnaudit.conformance.sample_texts import Examples

ADVICE = (
    "In replay(), start from the trace's states before the site, replace only the weights of that query, keep the "
    "weights of the other queries and the residual connections, and run all later layers again."
)
RESUME_ADVICE = (
    "In resume(), repeat each row with its copies next to each other, start from the trace's states before the site, "
    "use the weights that the intervention returns, and run all later layers again."
)
#: If the weights change, but the weighted sum of the value vectors does not, the logits must not change. To allow for
#: rounding, they may change by at most this fraction of the effect of a random change of the weights.
LARGEST_RESIDUE = 0.02


def _rows(values: Tensor, queries: Tensor) -> Tensor:
    """Select the weights (B, H, K) of one query per row from values (B, H, Q, K).

    Args:
        values: (B, H, Q, K) attention weights or a mask.
        queries: (B,) position of the query in each row.
    """
    return values[torch.arange(len(values), device=values.device), :, queries]


def _with_rows(values: Tensor, queries: Tensor, rows: Tensor) -> Tensor:
    """Return a copy of attention weights in which the weights of one query per row are replaced.

    Args:
        values: (B, H, Q, K) attention weights.
        queries: (B,) position of the query in each row.
        rows: (B, H, K) weights that replace those of the query.
    """
    index = queries[:, None, None, None].expand(-1, values.shape[1], 1, values.shape[3])
    return values.scatter(2, index, rows[:, :, None, :])


def _queries(e: Examples, site: Site) -> dict[str, Tensor]:
    """Choose the queries whose weights are replaced.

    Returns:
        Description of a query -> (B,) its position in each row.
    """
    if site.query is None:
        return {"the only query": torch.zeros(len(e.instances), dtype=torch.long, device=e.device)}
    mask = e.inputs.mask[site.query]
    first = mask.int().argmax(1)
    last = mask.shape[1] - 1 - mask.flip(1).int().argmax(1)
    ends = {"the first query": first, "the last query": last}
    return {**ends, "a query in the middle": (first + last) // 2} if e.thorough else ends


@contract("replays")
def check_replay(e: Examples) -> str:
    """replay() gives the same logits and gradients as run() with the weights of the same query replaced. If the
    capabilities declare resumes, resume() gives the same logits as run() with the weights of all queries replaced."""
    few = e.few
    adapter = cast(TransformerAdapter, few.adapter)
    sites = few.sites if few.thorough else tuple(dict.fromkeys((few.sites[0], few.sites[-1])))
    worst = 0.0
    for site in sites:
        own = few.trace.attention[site.key]
        random = [few.random_weights(site, seed) for seed in range(2 if few.thorough else 1)]
        for description, queries in _queries(few, site).items():
            alternatives = [_rows(w, queries) for w in (own, *random)]
            weights = torch.stack(alternatives, dim=1)
            with torch.no_grad():
                logits = adapter.replay(few.inputs, few.trace, site, queries, weights)
            if logits.dim() != 3 or logits.shape[:2] != weights.shape[:2]:
                raise BrokenContractError(
                    f"replay() at '{site.key}' returned shape {tuple(logits.shape)}; expected (B, V, C) with (B, V) = "
                    f"{tuple(weights.shape[:2])}."
                )
            for v, rows in enumerate(alternatives):
                expected = _run_with(few, site, queries, rows)
                what = (
                    f"with the same weights for {description} of '{site.key}', the logits of replay() and run() differ"
                )
                worst = max(worst, require_same_logits(logits[:, v], expected, what, ADVICE))
        if few.capabilities.resumes and (few.thorough or site is sites[-1]):
            worst = max(worst, _require_same_resumed_logits(few, site))
    if few.capabilities.differentiable:
        _require_same_gradient(few, sites[0])
    return f"replay() equals run() at {len(sites)} site{'s' * (len(sites) > 1)}, within {worst:.1g}"


def _run_with(e: Examples, site: Site, queries: Tensor, rows: Tensor) -> Tensor:
    """Return the logits (B, C) of run() with the weights of one query per row replaced at a site.

    Args:
        e: The examples.
        site: The site.
        queries: (B,) position of the query in each row.
        rows: (B, H, K) weights that replace those of the query.
    """

    def replace_row(at: Site, live: Tensor, _allowed: Tensor) -> Tensor | None:
        return _with_rows(live, queries, rows) if at.key == site.key else None

    return e.run(e.inputs, replace_row).logits


def _require_same_resumed_logits(e: Examples, site: Site) -> float:
    """Check that resume() gives the logits of run() if the weights of all queries of a site are replaced.

    Returns:
        The largest absolute difference of the logits.
    """
    adapter, variants = cast(TransformerAdapter, e.adapter), 2
    weights = [e.random_weights(site, seed) for seed in range(11, 11 + variants)]
    repeated = torch.stack(weights, dim=1).flatten(0, 1)

    def replaced(at: Site, live: Tensor, _allowed: Tensor, first: int = 0) -> Tensor | None:
        return repeated[:, :, first : first + live.shape[2]].to(live.dtype) if at.key == site.key else None

    with torch.no_grad():
        logits = adapter.resume(e.inputs, e.trace, site, variants, replaced)
    if logits.dim() != 2 or len(logits) != variants * len(e.instances):
        raise BrokenContractError(
            f"resume() at '{site.key}' returned shape {tuple(logits.shape)}; expected (B·V, C) with B·V = "
            f"{variants * len(e.instances)}."
        )
    worst = 0.0
    for v, one in enumerate(weights):
        expected = e.run(e.inputs, _replace_all(site, one)).logits
        what = f"with the same weights for all queries of '{site.key}', the logits of resume() and run() differ"
        worst = max(worst, require_same_logits(logits[v::variants], expected, what, RESUME_ADVICE))
    return worst


def _replace_all(site: Site, weights: Tensor) -> Intervention:
    """Return an intervention that replaces the weights (B, H, Q, K) of all queries of a site."""
    return lambda at, _live, _allowed: weights if at.key == site.key else None


def _require_same_gradient(e: Examples, site: Site) -> None:
    adapter = cast(TransformerAdapter, e.adapter)
    name, queries = next(iter(_queries(e, site).items()))
    rows = _rows(e.random_weights(site, 7), queries).requires_grad_(True)

    def replace_row(at: Site, live: Tensor, _allowed: Tensor) -> Tensor | None:
        return _with_rows(live, queries, rows) if at.key == site.key else None

    with e.differentiating():
        replayed = projected(adapter.replay(e.inputs, e.trace, site, queries, rows[:, None])[:, 0])
        gradient = torch.autograd.grad(replayed, rows, allow_unused=True)[0] if replayed.requires_grad else None
        if gradient is None:
            raise BrokenContractError(
                f"replay() at '{site.key}' passes no gradient to its weights. Compute the logits from them without "
                "detach() or no_grad; only the states of the trace may be detached."
            )
        (expected,) = torch.autograd.grad(projected(e.adapter.run(e.inputs, intervene=replace_row).logits), rows)
    size = max(expected.abs().max().item(), 1e-6)
    require_close(
        gradient,
        expected,
        f"with the same weights for {name} of '{site.key}', the gradients of replay() and run() differ",
        ADVICE,
        tolerance=1e-3 * size,
    )


@contract("value_vectors", quick=False)
def check_value_vectors(e: Examples) -> str:
    """value_vectors() gives the vectors to which the weights are applied: if the weights change, but the weighted sum
    of these vectors does not, the logits stay the same."""
    few = e.few
    adapter = cast(TransformerAdapter, few.adapter)
    confirmed = 0
    for site in few.sites:
        with torch.no_grad():
            values = adapter.value_vectors(few.trace, site)
        expected = few.trace.attention[site.key].shape
        if values.dim() != 4 or tuple(values.shape[:3]) != (expected[0], expected[1], expected[3]):
            raise BrokenContractError(
                f"value_vectors() at '{site.key}' returned shape {tuple(values.shape)}; expected "
                f"({expected[0]}, {expected[1]}, {expected[3]}, m): rows, heads, keys."
            )
        keys = few.inputs.mask[site.keys][:, None, :, None].expand_as(values)
        if not bool(values[keys].isfinite().all()):
            raise BrokenContractError(
                f"value_vectors() at '{site.key}' returned values that are not finite. Look for a "
                "division by zero or a logarithm of zero."
            )
        with torch.no_grad():
            part = adapter.value_vectors(few.trace, site, slice(1, None))
        if part.shape != values[:, :, 1:].shape or not torch.allclose(
            part, values[:, :, 1:], rtol=1e-4, atol=1e-5, equal_nan=True
        ):
            raise BrokenContractError(
                f"value_vectors() at '{site.key}' returned other values for keys=slice(1, None) than without this "
                "argument. Return only the vectors of these keys."
            )
        confirmed += any(
            _compare_cancelling_weights(few, site, values, queries) for queries in _queries(few, site).values()
        )
    if confirmed:
        return f"value vectors agree with the logits at {confirmed} of {len(few.sites)} sites"
    return "value vectors have the right shape; the texts are too short to compare them with the logits"


def _compare_cancelling_weights(e: Examples, site: Site, values: Tensor, queries: Tensor) -> bool:
    """Check that a change of the weights that keeps the weighted sum of the value vectors also keeps the logits.

    Let n be the number of pairs of a head and a key that are allowed for a query. If n is larger than the number of
    dimensions of a value vector, the weights can be changed by some δ ≠ 0 with Σ δ · value = 0. This change affects
    neither the output of the site nor the logits.

    Args:
        e: The examples.
        site: The site.
        values: (B, H, K, m) result of value_vectors().
        queries: (B,) position of the query in each row.

    Returns:
        True if this was tested. False if the texts are too short, or if even a random change of the weights hardly
        changes the logits.

    Raises:
        BrokenContractError: The logits change by more than `LARGEST_RESIDUE` allows.
    """
    allowed = _rows(e.allowed(site), queries)
    generator = torch.Generator().manual_seed(0)
    weights = _rows(e.trace.attention[site.key], queries)
    cancelling, unconstrained = weights.clone(), weights.clone()
    tested = []
    for b in range(len(weights)):
        vectors = values[b][allowed[b]].double().cpu()
        if len(vectors) <= vectors.shape[1]:
            continue
        noise = torch.randn(len(vectors), generator=generator, dtype=torch.float64)
        residual = noise - vectors @ torch.linalg.lstsq(vectors, noise[:, None], driver="gelsd").solution[:, 0]
        if residual.norm() < 1e-3 * noise.norm():
            continue
        for changed, change in ((cancelling, residual), (unconstrained, noise)):
            changed[b, allowed[b]] += (0.5 * change / change.norm()).to(changed)
        tested.append(b)
    if not tested:
        return False
    effect = gap(_run_with(e, site, queries, unconstrained)[tested], e.trace.logits[tested])
    if effect < 1e-4:
        return False
    residue = gap(_run_with(e, site, queries, cancelling)[tested], e.trace.logits[tested])
    if residue > LARGEST_RESIDUE * effect:
        raise BrokenContractError(
            f"value_vectors() at '{site.key}' does not return the vectors to which the weights are applied. If the "
            "weights change, but the weighted sum of these vectors stays the same, the logits change by "
            f"{residue:.2g}; expected almost 0 (a random change of the weights changes them by {effect:.2g}). Return "
            "each head's value vectors, including the bias, multiplied by the part of the output projection that "
            "belongs to this head."
        )
    return True
