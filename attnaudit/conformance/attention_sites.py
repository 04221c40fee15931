"""Sites, the shapes of what a pass shows, and weights over allowed keys."""

from __future__ import annotations

import torch
from torch import Tensor

from attnaudit.adapters.protocol import TEXT, Site
from attnaudit.conformance.contract import TOLERANCE, BrokenContractError, contract, listed
from attnaudit.conformance.sample_texts import Examples


@contract(basic=True)
def check_sites(e: Examples) -> str:
    """There is at least one site, each has its own key, and run() shows every one."""
    keys = [site.key for site in e.sites]
    if not keys:
        raise BrokenContractError("sites() is empty, so there is no attention to audit. Return at least one Site.")
    if len(set(keys)) != len(keys):
        raise BrokenContractError(f"sites() repeats a key: {', '.join(keys)}. Give every site its own key.")
    streams = set(e.inputs.ids) & set(e.inputs.mask) & set(e.inputs.special)
    if TEXT not in streams:
        raise BrokenContractError(f"collate() gives no stream '{TEXT}'. Put ids, mask and special under that name.")
    for site in e.sites:
        unknown = {site.keys, site.query or TEXT} - streams
        if unknown:
            raise BrokenContractError(
                f"site '{site.key}' names the stream {listed(sorted(unknown))}, but collate() gives "
                f"{listed(sorted(streams))}. Give ids, mask and special for every stream that a site names."
            )
    _require_tokens(e)
    lacking = [key for key in keys if key not in e.trace.attention or key not in e.trace.allowed]
    if lacking:
        raise BrokenContractError(
            f"run() gives no attention or allowed mask for {listed(lacking)}. Fill both for every site."
        )
    heads = sum(site.heads for site in e.sites)
    return f"{len(keys)} site{'s' * (len(keys) > 1)}" + (f", {heads} heads in all" if heads > len(keys) else "")


@contract(basic=True)
def check_shapes(e: Examples) -> str:
    """Logits, attention, allowed masks, hidden states and token strings have the shapes that the protocol gives, and
    hold finite numbers."""
    rows = e.inputs.ids[TEXT].shape[0]
    if rows != len(e.instances):
        raise BrokenContractError(f"collate() gives {rows} rows for {len(e.instances)} instances. Give one row each.")
    if e.trace.logits.dim() != 2 or len(e.trace.logits) != rows:
        raise BrokenContractError(f"logits have shape {tuple(e.trace.logits.shape)}; expected ({rows}, C).")
    for stream, ids in e.inputs.ids.items():
        others = {"mask": e.inputs.mask.get(stream), "special": e.inputs.special.get(stream)}
        for name, value in others.items():
            if value is None or value.shape != ids.shape or value.dtype != torch.bool:
                found = "missing" if value is None else f"{value.dtype} of shape {tuple(value.shape)}"
                raise BrokenContractError(
                    f"Inputs.{name} of '{stream}' is {found}; expected bool of shape {tuple(ids.shape)}, as its ids."
                )
    _require_numbers(e, e.trace.logits, "logits")
    _require_logits(e.trace.logits)
    for site in e.sites:
        _require_site_shapes(e, site, rows)
        _require_numbers(e, e.trace.attention[site.key], f"attention at '{site.key}'")
        _require_numbers(e, e.trace.hidden[site.key], f"hidden states at '{site.key}'")
    _require_strings(e)
    return "shapes as declared, all values finite"


def _require_tokens(e: Examples) -> None:
    real = e.inputs.mask[TEXT] & ~e.inputs.special[TEXT]
    if not bool(real.any()):
        raise BrokenContractError(
            f"no text has a real token, not even {e.instances[0].text[:40]!r}. Look at what tokenize() returns."
        )


def _require_logits(logits: Tensor) -> None:
    if logits.dtype in (torch.float16, torch.bfloat16):
        kind = str(logits.dtype).removeprefix("torch.")
        raise BrokenContractError(
            f"the logits are {kind}, whose rounding moves them further than an audit tells apart. Audit the model in "
            "single precision: model.float()."
        )
    rows, classes = logits.shape
    sums = logits.sum(1)
    if rows > 1 and classes > 1 and bool((logits >= 0).all()) and bool(((sums - 1).abs() < 1e-4).all()):
        raise BrokenContractError(
            "the logits of every text are at least 0 and sum to 1, as probabilities do. Return what goes into the "
            "softmax, or their logarithm."
        )


def _require_numbers(e: Examples, values: Tensor, what: str) -> None:
    bad = ~values.isfinite().flatten(1).all(1)
    if bool(bad.any()):
        one = e.instances[int(bad.int().argmax())]
        first = values[bad][0].flatten()
        found = first[~first.isfinite()][0].item()
        raise BrokenContractError(
            f"{what} hold {found} for {one.where or one.id}, {one.text[:40]!r}. Look for a division by zero, a "
            "logarithm of zero, a softmax over nothing, or numbers too large for their type."
        )


def _require_site_shapes(e: Examples, site: Site, rows: int) -> None:
    keys = e.inputs.ids[site.keys].shape[1]
    queries = 1 if site.query is None else e.inputs.ids[site.query].shape[1]
    found, allowed = e.trace.attention[site.key], e.trace.allowed[site.key]
    expected = (rows, site.heads, queries, keys)
    if tuple(found.shape) != expected:
        raise BrokenContractError(
            f"attention at '{site.key}' has shape {tuple(found.shape)}; expected {expected}: rows, heads, queries "
            f"({'one, learned' if site.query is None else f'tokens of {site.query!r}'}), tokens of '{site.keys}'."
        )
    if allowed.dtype != torch.bool or tuple(allowed.shape) not in (expected, (rows, 1, queries, keys)):
        raise BrokenContractError(
            f"allowed at '{site.key}' is {allowed.dtype} of shape {tuple(allowed.shape)}; expected bool of shape "
            f"{(rows, 1, queries, keys)}, or with {site.heads} in place of 1."
        )
    if site.key not in e.trace.hidden:
        raise BrokenContractError(
            f"run(hidden=True) gives no hidden states for '{site.key}'. Give the states that its values are made of: "
            "for pooled attention, those that its weights are applied to."
        )
    states = e.trace.hidden[site.key]
    if states.dim() != 3 or tuple(states.shape[:2]) != (rows, keys):
        raise BrokenContractError(
            f"hidden states at '{site.key}' have shape {tuple(states.shape)}; expected ({rows}, {keys}, m)."
        )


def _require_strings(e: Examples) -> None:
    for stream in {TEXT, *e.inputs.tokens}:
        strings = e.inputs.tokens.get(stream)
        if strings is None or [len(s) for s in strings] != e.inputs.mask[stream].sum(1).tolist():
            raise BrokenContractError(
                f"Inputs.tokens of '{stream}' does not hold one string per unpadded token. Give the tokens as people "
                "read them, special ones included: the report shows them."
            )


@contract()
def check_sums(e: Examples) -> str:
    """Weights are not negative, sum to one over the allowed keys, and are zero elsewhere."""
    for site in e.sites:
        weights, allowed = e.trace.attention[site.key], e.allowed(site)
        _require_nothing_outside(site, weights, allowed)
        if weights.min().item() < -TOLERANCE:
            raise BrokenContractError(
                f"attention at '{site.key}' has a negative weight, {weights.min().item():.2g}. Show the weights after "
                "the softmax (or its like), not the scores."
            )
        total = weights.sum(-1)[allowed.any(-1)]
        over = total - 1 if site.sinks else (total - 1).abs()
        off = over.max().item() if over.numel() else 0.0
        if not off <= TOLERANCE:
            raise BrokenContractError(
                f"attention at '{site.key}' is {off:.2g} away from summing to one. Normalise over the allowed tokens, "
                "keep dropout out of the weights that are shown, and declare Site(sinks=True) where the rest goes to "
                "a sink that is no token."
            )
    sinks = any(site.sinks for site in e.sites)
    return f"weights sum to {'at most ' * sinks}one over allowed tokens and are zero elsewhere"


def _require_nothing_outside(site: Site, weights: Tensor, allowed: Tensor) -> None:
    outside = weights.masked_fill(allowed, 0.0).abs()
    worst = outside.max().item()
    if worst <= TOLERANCE:
        return
    if not bool((outside * allowed.any(-1, keepdim=True) > TOLERANCE).any()):
        raise BrokenContractError(
            f"attention at '{site.key}' puts {worst:.2g} on rows that may attend to nothing, such as those of padding "
            "queries. Multiply the weights by allowed: a softmax over nothing is uniform, or not a number."
        )
    raise BrokenContractError(
        f"attention at '{site.key}' puts {worst:.2g} on tokens that are not allowed, such as padding. "
        "Mask the scores with -inf before the softmax."
    )


@contract()
def check_allowed(e: Examples) -> str:
    """The allowed mask leaves out padding, leaves every token something to attend to, and says what is causal."""
    structures: set[str] = set()
    for site in e.sites:
        allowed = e.allowed(site)
        keys = e.inputs.mask[site.keys][:, None, None, :]
        if bool((allowed & ~keys).any()):
            raise BrokenContractError(
                f"allowed at '{site.key}' is True on padding keys. Leave them out: allowed & mask[:, None, None, :]."
            )
        queries = torch.ones_like(allowed[:, :1, :, :1])
        if site.query is not None:
            queries = e.inputs.mask[site.query][:, None, :, None]
            if bool((allowed & ~queries).any()):
                raise BrokenContractError(
                    f"allowed at '{site.key}' is True in rows of padding queries. Leave them out: "
                    "allowed & mask[:, None, :, None]."
                )
        if bool((queries[..., 0] & ~allowed.any(-1)).any()):
            raise BrokenContractError(
                f"allowed at '{site.key}' lets a token attend to nothing. Mark the keys that it may attend to."
            )
        if site.query == site.keys:
            structures.add(_structure(e, site, allowed))
    return "; ".join(sorted(structures)) or "padding is not allowed, every query has a key"


def _structure(e: Examples, site: Site, allowed: Tensor) -> str:
    """In words, which keys a query may attend to. Raises BrokenContractError for weights that are zero at all places of
    some distances and positive at all others: a structure that the mask does not tell."""
    distance = torch.arange(allowed.shape[-1], device=allowed.device)
    distance = (distance[None, :] - distance[:, None]).expand_as(allowed)
    reachable = torch.unique(distance[allowed])
    empty = allowed & (e.trace.attention[site.key] == 0)
    if bool(empty.any()):
        zero = torch.unique(distance[empty])
        always = [int(d) for d in zero if not bool((allowed & ~empty & (distance == d)).any())]
        if len(always) == len(zero) < len(reachable) and int(empty.sum()) >= 8:
            later = "later tokens" if min(always) > 0 else "tokens at some distances"
            raise BrokenContractError(
                f"allowed at '{site.key}' lets tokens attend to {later}, where no weight ever is. Put the causal or "
                "sliding-window structure into allowed: interventions spread weight over all that it marks."
            )
    causal = int(reachable.max()) == 0
    within = e.inputs.mask[site.keys][:, None, None, :] & e.inputs.mask[site.keys][:, None, :, None]
    whole = within & (distance <= 0) if causal else within
    windowed = bool((whole & ~allowed).any())
    return f"{'causal' if causal else 'both ways'}{', within a window' if windowed else ''}, without padding"
