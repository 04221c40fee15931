"""Paths that Transformers add: logits of other weights without what comes before, and transformed value vectors."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor

from attnaudit.adapters.protocol import Site, TransformerAdapter
from attnaudit.conformance.contract import (
    BrokenContractError,
    contract,
    gap,
    require_close,
    require_same_logits,
)
from attnaudit.conformance.gradient_flow import projected
from attnaudit.conformance.sample_texts import Examples

REPLAY = (
    "Start from the states of the trace before the site, put the weights in the row of that query, let all later "
    "layers run live, and keep the other rows and the residual path as they were."
)
#: Combinations of weights that the value vectors cancel may move the logits by this share of what others do.
CANCELS = 0.02


def _rows(values: Tensor, queries: Tensor) -> Tensor:
    """(B, H, Q, K), queries (B,) -> (B, H, K)."""
    return values[torch.arange(len(values), device=values.device), :, queries]


def _with_rows(values: Tensor, queries: Tensor, rows: Tensor) -> Tensor:
    """(B, H, Q, K) with the rows (B, H, K) at queries (B,)."""
    index = queries[:, None, None, None].expand(-1, values.shape[1], 1, values.shape[3])
    return values.scatter(2, index, rows[:, :, None, :])


def _queries(e: Examples, site: Site) -> dict[str, Tensor]:
    """In words, and as positions (B,): queries to try."""
    if site.query is None:
        return {"the only query": torch.zeros(len(e.instances), dtype=torch.long, device=e.device)}
    mask = e.inputs.mask[site.query]
    first = mask.int().argmax(1)
    last = mask.shape[1] - 1 - mask.flip(1).int().argmax(1)
    tried = {"the first query": first, "the last query": last}
    return {**tried, "a query in the middle": (first + last) // 2} if e.thorough else tried


@contract("replays")
def check_replay(e: Examples) -> str:
    """replay() gives the logits, and the gradients, of run() with the same row of attention replaced."""
    few = e.few
    adapter = cast(TransformerAdapter, few.adapter)
    sites = few.sites if few.thorough else tuple(dict.fromkeys((few.sites[0], few.sites[-1])))
    worst = 0.0
    for site in sites:
        own = few.trace.attention[site.key]
        drawn = [few.random_weights(site, seed) for seed in range(2 if few.thorough else 1)]
        for words, queries in _queries(few, site).items():
            alternatives = [_rows(w, queries) for w in (own, *drawn)]
            weights = torch.stack(alternatives, dim=1)
            with torch.no_grad():
                found = adapter.replay(few.inputs, few.trace, site, queries, weights)
            if found.dim() != 3 or found.shape[:2] != weights.shape[:2]:
                raise BrokenContractError(
                    f"replay() at '{site.key}' returned shape {tuple(found.shape)}; expected (B, V, C) with (B, V) = "
                    f"{tuple(weights.shape[:2])}."
                )
            for v, rows in enumerate(alternatives):
                expected = _run_with(few, site, queries, rows)
                what = f"replay() at '{site.key}' and run() with {words} replaced differ"
                worst = max(worst, require_same_logits(found[:, v], expected, what, REPLAY))
    if few.capabilities.differentiable:
        _require_same_gradient(few, sites[0])
    return f"replay equals run at {len(sites)} site{'s' * (len(sites) > 1)}, within {worst:.1g}"


def _run_with(e: Examples, site: Site, queries: Tensor, rows: Tensor) -> Tensor:
    """(B, C) logits of run() with the row of a query replaced."""

    def put(one: Site, live: Tensor, _allowed: Tensor) -> Tensor | None:
        return _with_rows(live, queries, rows) if one.key == site.key else None

    return e.run(e.inputs, put).logits


def _require_same_gradient(e: Examples, site: Site) -> None:
    adapter = cast(TransformerAdapter, e.adapter)
    name, queries = next(iter(_queries(e, site).items()))
    rows = _rows(e.random_weights(site, 7), queries).requires_grad_(True)

    def put(one: Site, live: Tensor, _allowed: Tensor) -> Tensor | None:
        return _with_rows(live, queries, rows) if one.key == site.key else None

    with e.differentiating():
        replayed = projected(adapter.replay(e.inputs, e.trace, site, queries, rows[:, None])[:, 0])
        found = torch.autograd.grad(replayed, rows, allow_unused=True)[0] if replayed.requires_grad else None
        if found is None:
            raise BrokenContractError(
                f"replay() at '{site.key}' passes no gradient to its weights. Compute from them without detach() or "
                "no_grad; the trace may be detached."
            )
        (expected,) = torch.autograd.grad(projected(e.adapter.run(e.inputs, intervene=put).logits), rows)
    size = max(expected.abs().max().item(), 1e-6)
    require_close(
        found,
        expected,
        f"the gradients of replay() and of run() at {name} of '{site.key}' differ",
        REPLAY,
        tolerance=1e-3 * size,
    )


@contract("value_vectors", quick=False)
def check_transformed(e: Examples) -> str:
    """value_vectors() gives what the weights are applied to: weights that it cancels do not move the logits."""
    few = e.few
    adapter = cast(TransformerAdapter, few.adapter)
    proved = 0
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
            raise BrokenContractError(f"value_vectors() at '{site.key}' has values that are not finite.")
        proved += any(_cancelled(few, site, values, queries) for queries in _queries(few, site).values())
    if proved:
        return f"value vectors have their shape; at {proved} of {len(few.sites)} sites what they cancel moves no logits"
    return "value vectors have their shape; the texts are too short to hold them against the logits"


def _cancelled(e: Examples, site: Site, values: Tensor, queries: Tensor) -> bool:
    """Whether it could be tried. With heads × keys above the width m there are changes δ of a row of weights with
    Σ δ·transformed = 0; they leave what the site adds, and so the logits, as they are."""
    allowed = _rows(e.allowed(site), queries)
    generator = torch.Generator().manual_seed(0)
    own = _rows(e.trace.attention[site.key], queries)
    cancelled, free = own.clone(), own.clone()
    tried = []
    for b in range(len(own)):
        vectors = values[b][allowed[b]].double().cpu()
        if len(vectors) <= vectors.shape[1]:
            continue
        noise = torch.randn(len(vectors), generator=generator, dtype=torch.float64)
        still = noise - vectors @ torch.linalg.lstsq(vectors, noise[:, None], driver="gelsd").solution[:, 0]
        if still.norm() < 1e-3 * noise.norm():
            continue
        for weights, change in ((cancelled, still), (free, noise)):
            weights[b, allowed[b]] += (0.5 * change / change.norm()).to(weights)
        tried.append(b)
    if not tried:
        return False
    moved = gap(_run_with(e, site, queries, free)[tried], e.trace.logits[tried])
    if moved < 1e-4:
        return False
    quiet = gap(_run_with(e, site, queries, cancelled)[tried], e.trace.logits[tried])
    if quiet > CANCELS * moved:
        raise BrokenContractError(
            f"value_vectors() at '{site.key}' is not what the weights are applied to: weights that it says cancel move "
            f"the logits by {quiet:.2g} (others by {moved:.2g}). Give each head's value vectors, bias included, times "
            "its own part of the output projection."
        )
    return True
