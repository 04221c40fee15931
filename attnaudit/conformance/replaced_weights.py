"""Checks that the model uses replaced attention weights at every site, and that the trace contains them."""

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
from attnaudit.conformance.sample_texts import SEARCHED, Examples

ADVICE = "Compute the weighted sum of the values with the weights that intervene returns, not with those passed to it."


def _replace(weights: dict[str, Tensor]) -> Intervention:
    """Return an intervention that replaces the weights at some sites.

    Args:
        weights: Site key -> (B, H, Q, K) weights to use there. All other sites keep their weights.
    """
    return lambda site, _weights, _allowed: weights.get(site.key)


@contract()
def check_self_replacement(e: Examples) -> str:
    """Replacing attention with the model's own weights does not change the logits, whether at all sites together or at
    one site alone."""
    own = dict(e.trace.attention)
    offered: dict[str, tuple[Tensor, Tensor]] = {}

    def replace_with_own(site: Site, weights: Tensor, allowed: Tensor) -> Tensor:
        offered[site.key] = (weights, allowed)
        return own[site.key]

    repeated = e.run(e.inputs, replace_with_own)
    what = "replacing attention with the model's own weights changes the logits"
    require_same_logits(repeated.logits, e.trace.logits, what, ADVICE)
    if e.long is not None:
        with_own = e.long.run(e.long.inputs, _replace(dict(e.long.trace.attention)))
        require_same_logits(
            with_own.logits, e.long.trace.logits, what, ADVICE, at=f"in a text of {_words(e.long)} words"
        )
    missing = [site.key for site in e.sites if site.key not in offered]
    if missing:
        raise BrokenContractError(
            f"run() never calls intervene at {listed(missing)}. Call it wherever attention is computed, with the "
            "site that sites() returns."
        )
    for site in e.sites:
        weights, allowed = offered[site.key]
        require_close(
            weights,
            own[site.key],
            f"the weights passed to intervene and the weights in the trace at '{site.key}' differ",
            "Pass the final weights of the model to intervene, and apply no dropout or scaling after the call.",
        )
        if not torch.equal(allowed.expand_as(weights), e.allowed(site)):
            raise BrokenContractError(
                f"the allowed mask passed to intervene at '{site.key}' differs from the mask in the trace. Use "
                "the same mask for both."
            )
    if e.thorough and len(e.sites) > 1:
        few = e.few
        for site in few.sites:
            alone = few.run(few.inputs, _replace({site.key: few.trace.attention[site.key]}))
            require_same_logits(alone.logits, few.trace.logits, what, ADVICE, at=f"at '{site.key}' alone")
        return (
            f"replacing attention with the model's own weights changes nothing, neither at all {len(e.sites)} sites "
            "together nor at each site alone"
        )
    return "the model's own weights change nothing"


@contract()
def check_intervention(e: Examples) -> str:
    """The trace contains the replaced attention, and the logits are computed from it."""
    replaced = {site.key: e.first_allowed(site) for site in e.sites}
    changed = e.run(e.inputs, _replace(replaced))
    for site in e.sites:
        _require_in_trace(changed.attention[site.key], replaced[site.key], site)
    if gap(changed.logits, e.trace.logits) == 0 and _differs(e):
        if len(e.instances) > 1 and gap(e.trace.logits, e.trace.logits[:1].expand_as(e.trace.logits)) == 0:
            raise BrokenContractError(
                f"the model gives all {len(e.instances)} sampled texts exactly the same logits, and so it does for all "
                f"others that were tried (at most {SEARCHED:,}). Replacing attention at every site leaves them "
                "unchanged, so it cannot be tested whether run() uses the replaced weights. If this is due to the "
                "texts, for example because the model knows none of their words, give "
                f"data on which its logits differ. Otherwise: {ADVICE}"
            )
        raise BrokenContractError(
            "replacing attention at every site leaves the logits unchanged, so run() ignores the replaced weights. "
            f"{ADVICE}"
        )
    return "the model uses replaced attention, and the trace contains it"


def _words(e: Examples) -> int:
    return len(e.instances[0].text.split())


def _require_in_trace(found: Tensor, expected: Tensor, site: Site) -> None:
    require_close(
        found,
        expected,
        f"the replaced attention at '{site.key}' and the attention in the trace differ",
        "Return the weights that the model used after the intervention.",
    )


def _differs(e: Examples, *sites: Site) -> bool:
    """Return whether putting all weight on the first allowed key changes the attention at one of the sites.

    If no site is given, all sites are tested.
    """
    return any(gap(e.first_allowed(site), e.trace.attention[site.key]) > 1e-3 for site in sites or e.sites)


@contract("many_sites", quick=False)
def check_each_site(e: Examples) -> str:
    """If attention is replaced at one site alone, the trace contains the new weights, earlier sites stay the same, and
    the logits change."""
    few = e.few
    fixed = [site.key for site in few.sites if not _differs(few, site)]
    order = _order(few)
    unused = []
    for site in few.sites:
        replaced = few.first_allowed(site)
        changed = few.run(few.inputs, _replace({site.key: replaced}))
        _require_in_trace(changed.attention[site.key], replaced, site)
        for earlier in order[: order.index(site.key)]:
            require_close(
                changed.attention[earlier],
                few.trace.attention[earlier],
                f"replacing attention at '{site.key}' alone changes the attention at the earlier site '{earlier}'",
                "Use the weights that intervene returns only at the site for which it was called.",
            )
        if site.key not in fixed and gap(changed.logits, few.trace.logits) == 0:
            unused.append(site.key)
    if unused:
        raise BrokenContractError(
            f"replacing attention at {listed(unused)} alone leaves the logits unchanged. {ADVICE} If a site cannot "
            "influence the logits, leave it out of sites()."
        )
    count = len(few.sites) - len(fixed)
    rest = f"; not tested: {listed(fixed)}, where all weight is already on the first key" if fixed else ""
    return f"replacing attention at each of {count} sites alone changes the logits{rest}"


def _order(e: Examples) -> list[str]:
    """Return the site keys in the order in which run() calls intervene."""
    order: list[str] = []
    e.run(e.inputs, lambda site, _w, _a: order.append(site.key))
    return order


@contract("decoding")
def check_decode(e: Examples) -> str:
    """The fast decoding of a pooled model gives the same logits as run() with the same attention."""
    site = e.sites[0]
    if len(e.sites) != 1 or site.query is not None:
        raise BrokenContractError(
            f"the capabilities declare decodes or linear_decoder, but the model has {len(e.sites)} sites, and the "
            f"first is of the kind '{site.kind}'. Both capabilities require a single site, of the kind 'pool'. "
            "Declare replays instead."
        )
    if site.heads != 1 and e.capabilities.linear_decoder:
        raise BrokenContractError(
            f"the capabilities declare linear_decoder, but the pooled attention has {site.heads} heads, so the logits "
            "do not depend on a single context vector. Declare linear_decoder=False."
        )
    states = e.trace.hidden[site.key]
    several = [e.random_weights(site, seed) for seed in range(3 if e.thorough else 2)]
    flat = torch.stack([weights[:, :, 0] for weights in several], dim=1)
    expected = [e.run(e.inputs, _replace({site.key: weights})).logits for weights in several]
    advice = "Apply the decoder that run() uses to the hidden states that run(hidden=True) returns."
    if e.capabilities.decodes:
        with torch.no_grad():
            logits = decode_logits(e.adapter, states, flat, e.trace.decoder_condition)
        if logits.dim() != 3 or logits.shape[:2] != flat.shape[:2]:
            raise BrokenContractError(
                f"decode() returned shape {tuple(logits.shape)}; expected (B, V, C) with (B, V) = "
                f"{tuple(flat.shape[:2])}."
            )
        for v, expected_logits in enumerate(expected):
            require_same_logits(
                logits[:, v],
                expected_logits,
                "the logits of decode() and of run() with the same attention differ",
                advice,
            )
    if e.capabilities.linear_decoder:
        weight, bias = linear_decoder(e.adapter, states, e.trace.decoder_condition)
        linear = (flat[:, :, 0] @ states) @ weight.T + bias[:, None]
        for v, expected_logits in enumerate(expected):
            what = "the logits computed from decoder_weights() and those of run() with the same attention differ"
            require_same_logits(linear[:, v], expected_logits, what, advice)
    return "fast decoding gives the logits of run()"
