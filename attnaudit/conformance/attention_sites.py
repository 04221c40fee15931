"""Checks of the attention sites, the shapes of a trace, and the weights over the allowed keys."""

from __future__ import annotations

import torch
from torch import Tensor

from attnaudit.adapters.protocol import TEXT, Site
from attnaudit.conformance.contract import TOLERANCE, BrokenContractError, contract, listed
from attnaudit.conformance.sample_texts import Examples


@contract(basic=True)
def check_sites(e: Examples) -> str:
    """The model has at least one site, each site has a different key, and run() returns the attention of each site."""
    keys = [site.key for site in e.sites]
    if not keys:
        raise BrokenContractError("sites() is empty, so there is no attention to audit. Return at least one Site.")
    if len(set(keys)) != len(keys):
        raise BrokenContractError(f"sites() repeats a key: {', '.join(keys)}. Give every site its own key.")
    streams = set(e.inputs.ids) & set(e.inputs.mask) & set(e.inputs.special)
    if TEXT not in streams:
        raise BrokenContractError(f"collate() returns no stream '{TEXT}'. Store ids, mask and special under that name.")
    for site in e.sites:
        unknown = {site.keys, site.query or TEXT} - streams
        if unknown:
            raise BrokenContractError(
                f"site '{site.key}' names the stream {listed(sorted(unknown))}, but collate() returns only "
                f"{listed(sorted(streams))}. Return ids, mask and special for every stream that a site names."
            )
    _require_real_tokens(e)
    missing = [key for key in keys if key not in e.trace.attention or key not in e.trace.allowed]
    if missing:
        raise BrokenContractError(
            f"run() returns no attention or allowed mask for {listed(missing)}. Return both for every site."
        )
    heads = sum(site.heads for site in e.sites)
    return f"{len(keys)} site{'s' * (len(keys) > 1)}" + (f", {heads} heads in total" if heads > len(keys) else "")


@contract(basic=True)
def check_shapes(e: Examples) -> str:
    """Logits, attention, allowed masks, hidden states and token strings have the shapes that the adapter protocol
    defines, and all numbers are finite."""
    rows = e.inputs.ids[TEXT].shape[0]
    if rows != len(e.instances):
        raise BrokenContractError(
            f"collate() returns {rows} rows for {len(e.instances)} instances. Return one row per instance."
        )
    if e.trace.logits.dim() != 2 or len(e.trace.logits) != rows:
        raise BrokenContractError(f"the logits have shape {tuple(e.trace.logits.shape)}; expected ({rows}, C).")
    for stream, ids in e.inputs.ids.items():
        flags = {"mask": e.inputs.mask.get(stream), "special": e.inputs.special.get(stream)}
        for name, value in flags.items():
            if value is None or value.shape != ids.shape or value.dtype != torch.bool:
                problem = "missing" if value is None else f"{value.dtype} of shape {tuple(value.shape)}"
                raise BrokenContractError(
                    f"Inputs.{name} of '{stream}' is {problem}; expected bool of the same shape as the ids, "
                    f"{tuple(ids.shape)}."
                )
    for site in e.sites:  # first what the logits are computed from, since it is nearer to the cause
        _require_site_shapes(e, site, rows)
        _require_finite(e, e.trace.hidden[site.key], f"the hidden states at '{site.key}'")
        _require_finite(e, e.trace.attention[site.key], f"the attention weights at '{site.key}'")
    _require_finite(e, e.trace.logits, "the logits")
    _require_unnormalised_logits(e.trace.logits)
    _require_strings(e)
    return "all shapes are as declared, and all values are finite"


def _require_real_tokens(e: Examples) -> None:
    real = e.inputs.mask[TEXT] & ~e.inputs.special[TEXT]
    if not bool(real.any()):
        raise BrokenContractError(
            "no text has a real token, that is, a token that is neither special nor padding; the first text is "
            f"{e.instances[0].text[:40]!r}. Check what tokenize() returns."
        )


def _require_unnormalised_logits(logits: Tensor) -> None:
    if logits.dtype in (torch.float16, torch.bfloat16):
        kind = str(logits.dtype).removeprefix("torch.")
        raise BrokenContractError(
            f"the logits are {kind}, and the rounding errors of this type are larger than the differences that an "
            "audit measures. Audit the model in single precision: model.float()."
        )
    rows, classes = logits.shape
    sums = logits.sum(1)
    if rows > 1 and classes > 1 and bool((logits >= 0).all()) and bool(((sums - 1).abs() < 1e-4).all()):
        raise BrokenContractError(
            "the logits of every text are at least 0 and sum to 1, as probabilities do. Return the values before the "
            "softmax, or the logarithm of the probabilities."
        )


def _require_finite(e: Examples, values: Tensor, what: str) -> None:
    bad = ~values.isfinite().flatten(1).all(1)
    if bool(bad.any()):
        instance = e.instances[int(bad.int().argmax())]
        first = values[bad][0].flatten()
        value = first[~first.isfinite()][0].item()
        raise BrokenContractError(
            f"{what} contain {value} for {instance.where or instance.id}, {instance.text[:40]!r}. Look for a division "
            "by zero, a logarithm of zero, a softmax without any allowed key, or numbers too large for their type."
        )


def _require_site_shapes(e: Examples, site: Site, rows: int) -> None:
    keys = e.inputs.ids[site.keys].shape[1]
    queries = 1 if site.query is None else e.inputs.ids[site.query].shape[1]
    weights, allowed = e.trace.attention[site.key], e.trace.allowed[site.key]
    expected = (rows, site.heads, queries, keys)
    if tuple(weights.shape) != expected:
        raise BrokenContractError(
            f"attention at '{site.key}' has shape {tuple(weights.shape)}; expected {expected}: rows, heads, queries "
            f"({'one learned query' if site.query is None else f'tokens of {site.query!r}'}), and keys (tokens of "
            f"'{site.keys}')."
        )
    if allowed.dtype != torch.bool or tuple(allowed.shape) not in (expected, (rows, 1, queries, keys)):
        raise BrokenContractError(
            f"Trace.allowed['{site.key}'] is {allowed.dtype} of shape {tuple(allowed.shape)}; expected bool of shape "
            f"{(rows, 1, queries, keys)}, or {expected} if the heads have different masks."
        )
    if site.key not in e.trace.hidden:
        raise BrokenContractError(
            f"run(hidden=True) returns no hidden states for '{site.key}'. Return the states from which the site "
            "computes its values; for pooled attention, the states to which the weights are applied."
        )
    states = e.trace.hidden[site.key]
    if states.dim() != 3 or tuple(states.shape[:2]) != (rows, keys):
        raise BrokenContractError(
            f"the hidden states at '{site.key}' have shape {tuple(states.shape)}; expected ({rows}, {keys}, m). "
            "Return the states from which the site computes its values, one per key."
        )


def _require_strings(e: Examples) -> None:
    for stream in {TEXT, *e.inputs.tokens}:
        strings = e.inputs.tokens.get(stream)
        if strings is None or [len(s) for s in strings] != e.inputs.mask[stream].sum(1).tolist():
            raise BrokenContractError(
                f"Inputs.tokens of '{stream}' must contain one string for each token, including special tokens but not "
                "padding. Return the tokens in readable form: the report shows them."
            )


@contract()
def check_sums(e: Examples) -> str:
    """Attention weights are not negative, sum to one over the allowed keys, and are zero elsewhere."""
    for site in e.sites:
        weights, allowed = e.trace.attention[site.key], e.allowed(site)
        _require_zero_outside_mask(site, weights, allowed)
        if weights.min().item() < -TOLERANCE:
            raise BrokenContractError(
                f"attention at '{site.key}' has a negative weight, {weights.min().item():.2g}. Return the weights "
                "after the softmax (or another normalisation), not the scores."
            )
        total = weights.sum(-1)[allowed.any(-1)]
        over = total - 1 if site.sinks else (total - 1).abs()
        off = over.max().item() if over.numel() else 0.0
        if not off <= TOLERANCE:
            raise BrokenContractError(
                f"the attention weights at '{site.key}' do not sum to one: a sum differs from one by {off:.2g}. "
                "Normalise over the allowed tokens, and do not apply dropout to the weights in the trace. If the "
                "remaining weight goes to a sink that is not a token, declare Site(sinks=True)."
            )
    sinks = any(site.sinks for site in e.sites)
    return f"weights sum to {'at most ' * sinks}one over the allowed tokens and are zero elsewhere"


def _require_zero_outside_mask(site: Site, weights: Tensor, allowed: Tensor) -> None:
    outside = weights.masked_fill(allowed, 0.0).abs()
    worst = outside.max().item()
    if worst <= TOLERANCE:
        return
    if not bool((outside * allowed.any(-1, keepdim=True) > TOLERANCE).any()):
        raise BrokenContractError(
            f"attention at '{site.key}' has a weight of {worst:.2g} at queries without an allowed key, such as "
            "padding. Multiply the weights by the allowed mask, because a softmax over fully masked scores is uniform "
            "or NaN."
        )
    raise BrokenContractError(
        f"attention at '{site.key}' puts a weight of {worst:.2g} on tokens that are not allowed, such as padding. Mask "
        "the scores with -inf before the softmax."
    )


@contract()
def check_allowed(e: Examples) -> str:
    """The allowed mask excludes padding, gives every query at least one key, and excludes the keys that causal or
    sliding-window attention excludes."""
    structures: set[str] = set()
    for site in e.sites:
        allowed = e.allowed(site)
        keys = e.inputs.mask[site.keys][:, None, None, :]
        if bool((allowed & ~keys).any()):
            raise BrokenContractError(
                f"Trace.allowed['{site.key}'] is True on padding keys. Exclude them: allowed & mask[:, None, None, :]."
            )
        queries = torch.ones_like(allowed[:, :1, :, :1])
        if site.query is not None:
            queries = e.inputs.mask[site.query][:, None, :, None]
            if bool((allowed & ~queries).any()):
                raise BrokenContractError(
                    f"Trace.allowed['{site.key}'] is True at padding queries. Exclude them: "
                    "allowed & mask[:, None, :, None]."
                )
        if bool((queries[..., 0] & ~allowed.any(-1)).any()):
            raise BrokenContractError(
                f"Trace.allowed['{site.key}'] is False on all keys for some token. Set it to True on the keys to which "
                "this token may attend."
            )
        if site.query == site.keys:
            structures.add(_structure(e, site, allowed))
    return "; ".join(sorted(structures)) or "padding is excluded, and every query has an allowed key"


def _structure(e: Examples, site: Site, allowed: Tensor) -> str:
    """Describe which keys a query may attend to.

    Raises:
        BrokenContractError: The attention has a causal or sliding-window structure that the mask lacks. At some
            distances between query and key, the mask allows attention although all weights are zero. At all other
            distances that it allows, no weight is zero.
    """
    distance = torch.arange(allowed.shape[-1], device=allowed.device)
    distance = (distance[None, :] - distance[:, None]).expand_as(allowed)
    reachable = torch.unique(distance[allowed])
    empty = allowed & (e.trace.attention[site.key] == 0)
    if bool(empty.any()):
        zero = torch.unique(distance[empty])
        always = [int(d) for d in zero if not bool((allowed & ~empty & (distance == d)).any())]
        if len(always) == len(zero) < len(reachable) and int(empty.sum()) >= 8:
            later = "later tokens" if min(always) > 0 else "tokens at certain distances"
            raise BrokenContractError(
                f"Trace.allowed['{site.key}'] lets tokens attend to {later}, but these weights are always zero. Set it "
                "to False on keys that causal or sliding-window attention excludes: interventions spread weight over "
                "all keys where it is True."
            )
    causal = int(reachable.max()) == 0
    within = e.inputs.mask[site.keys][:, None, None, :] & e.inputs.mask[site.keys][:, None, :, None]
    full = within & (distance <= 0) if causal else within
    windowed = bool((full & ~allowed).any())
    kind = "causal" if causal else "bidirectional"
    return f"attention is {kind}{' within a window' if windowed else ''} and excludes padding"
