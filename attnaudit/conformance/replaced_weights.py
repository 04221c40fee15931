"""Attention replaced: what is put in place of the live weights is used and shown, at every site."""

from __future__ import annotations

import torch
from torch import Tensor

from attnaudit.adapters.protocol import Intervention, Site, decode_logits, linear_decoder
from attnaudit.conformance.contract import (
    BrokenContractError,
    contract,
    gap,
    listed,
    require_close,
    require_same_logits,
)
from attnaudit.conformance.sample_texts import Examples

USE = "Use the weights that intervene returns in place of the live ones, at the point where they meet the states."


def _put(weights: dict[str, Tensor]) -> Intervention:
    return lambda site, _weights, _allowed: weights.get(site.key)


@contract()
def check_self_replacement(e: Examples) -> str:
    """The model's own attention put back, at all sites at once and one by one, changes nothing."""
    own = dict(e.trace.attention)
    offered: dict[str, tuple[Tensor, Tensor]] = {}

    def put_back(site: Site, weights: Tensor, allowed: Tensor) -> Tensor:
        offered[site.key] = (weights, allowed)
        return own[site.key]

    again = e.run(e.inputs, put_back)
    what = "putting the model's own attention back moves the logits"
    require_same_logits(again.logits, e.trace.logits, what, USE)
    missing = [site.key for site in e.sites if site.key not in offered]
    if missing:
        raise BrokenContractError(
            f"run() never calls intervene at {listed(missing)}. Call it wherever attention is computed, with the site "
            "as sites() gives it."
        )
    for site in e.sites:
        weights, allowed = offered[site.key]
        require_close(
            weights,
            own[site.key],
            f"the weights that intervene is given at '{site.key}' and those that the trace shows differ",
            "Give intervene the live weights as they meet the values, without dropout or scaling after that.",
        )
        if not torch.equal(allowed.expand_as(weights), e.allowed(site)):
            raise BrokenContractError(
                f"intervene is given another allowed mask at '{site.key}' than the trace shows. Use one for both."
            )
    if e.thorough and len(e.sites) > 1:
        few = e.few
        for site in few.sites:
            alone = few.run(few.inputs, _put({site.key: few.trace.attention[site.key]}))
            require_same_logits(alone.logits, few.trace.logits, what, USE, at=f"at '{site.key}' alone")
        return f"own attention put back, everywhere and at each of {len(e.sites)} sites alone: nothing moves"
    return "own attention put back: nothing moves"


@contract()
def check_intervention(e: Examples) -> str:
    """Replaced attention is what the trace shows and what the logits are computed from."""
    replaced = {site.key: e.first_allowed(site) for site in e.sites}
    changed = e.run(e.inputs, _put(replaced))
    for site in e.sites:
        _require_shown(changed.attention[site.key], replaced[site.key], site)
    if gap(changed.logits, e.trace.logits) == 0 and _differs(e):
        raise BrokenContractError(
            f"replacing the attention at every site leaves the logits as they are: the model does not use it. {USE}"
        )
    return "replaced attention is used and shown"


def _require_shown(found: Tensor, expected: Tensor, site: Site) -> None:
    require_close(
        found,
        expected,
        f"replaced attention at '{site.key}' is not what the trace shows: they differ",
        "Return the weights that were used, after the intervention.",
    )


def _differs(e: Examples, *sites: Site) -> bool:
    """Whether all weight on the first key is something else than the model's own attention."""
    return any(gap(e.first_allowed(site), e.trace.attention[site.key]) > 1e-3 for site in sites or e.sites)


@contract("many_sites", quick=False)
def check_each_site(e: Examples) -> str:
    """Attention replaced at one site alone is shown there, moves nothing before it, and moves the logits."""
    few = e.few
    fixed = [site.key for site in few.sites if not _differs(few, site)]
    order = _order(few)
    unmoved = []
    for site in few.sites:
        replaced = few.first_allowed(site)
        changed = few.run(few.inputs, _put({site.key: replaced}))
        _require_shown(changed.attention[site.key], replaced, site)
        for earlier in order[: order.index(site.key)]:
            require_close(
                changed.attention[earlier],
                few.trace.attention[earlier],
                f"replacing attention at '{site.key}' alone moves that at '{earlier}', which comes before it,",
                "Apply what intervene returns at its own site only.",
            )
        if site.key not in fixed and gap(changed.logits, few.trace.logits) == 0:
            unmoved.append(site.key)
    if unmoved:
        raise BrokenContractError(
            f"replacing attention at {listed(unmoved)} alone leaves the logits as they are. {USE} A site that nothing "
            "reads does not belong in sites()."
        )
    moved = len(few.sites) - len(fixed)
    rest = f"; {listed(fixed)} always attend to one key" if fixed else ""
    return f"each of {moved} sites alone moves the logits{rest}"


def _order(e: Examples) -> list[str]:
    """Site keys in the order in which run() reaches them."""
    order: list[str] = []
    e.run(e.inputs, lambda site, _w, _a: order.append(site.key))
    return order


@contract("decoding")
def check_decode(e: Examples) -> str:
    """The faster decoding of a pooled model gives the logits of run() with the same attention."""
    site = e.sites[0]
    if len(e.sites) != 1 or site.query is not None or site.heads != 1:
        raise BrokenContractError(
            f"decodes or linear_decoder is declared for {len(e.sites)} sites with {site.heads} heads; both are for one "
            "pooled attention. Declare replays for other models."
        )
    states = e.trace.hidden[site.key]
    several = [e.random_weights(site, seed) for seed in range(3 if e.thorough else 1)]
    flat = torch.cat([weights[:, 0] for weights in several], dim=1)
    expected = [e.run(e.inputs, _put({site.key: weights})).logits for weights in several]
    advice = "They must be the decoder that run() uses, on the states that run(hidden=True) shows last."
    if e.capabilities.decodes:
        with torch.no_grad():
            found = decode_logits(e.adapter, states, flat, e.trace.decoder_condition)
        if found.dim() != 3 or found.shape[:2] != flat.shape[:2]:
            raise BrokenContractError(
                f"decode() returned shape {tuple(found.shape)}; expected (B, V, C) with (B, V) = "
                f"{tuple(flat.shape[:2])}."
            )
        for v, logits in enumerate(expected):
            require_same_logits(found[:, v], logits, "decode() and run() with the same attention differ", advice)
    if e.capabilities.linear_decoder:
        weight, bias = linear_decoder(e.adapter, states, e.trace.decoder_condition)
        linear = (flat @ states) @ weight.T + bias[:, None]
        for v, logits in enumerate(expected):
            what = "decoder_weights() and run() with the same attention differ"
            require_same_logits(linear[:, v], logits, what, advice)
    return "faster decoding gives the model's own logits"
