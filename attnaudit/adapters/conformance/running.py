"""Does an adapter keep its contract? Run in its quick form before every audit, on a few of the audit's own inputs.

Each check is a function of an `Examples`; it returns a sentence about what was found, or raises
`BrokenContractError`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from attnaudit.adapters.protocol import TEXT, Inputs, Intervention, ModelAdapter, Trace
from attnaudit.errors import AdapterError, AuditError
from attnaudit.instances import Instance
from attnaudit.records import ConformanceResult

#: Largest difference in logits or weights that rounding in float32 explains.
TOLERANCE = 1e-4
#: Longest example, in tokens, and how many there are.
LONGEST, COUNT = 256, 6


class BrokenContractError(Exception):
    """The contract is broken: what was found, and the likely mend."""


@dataclass
class Examples:
    """A few instances of different lengths, and passes over them."""

    adapter: ModelAdapter
    instances: Sequence[Instance]

    @cached_property
    def inputs(self) -> Inputs:
        return self.adapter.collate(self.instances)

    @cached_property
    def trace(self) -> Trace:
        return self.run(self.inputs)

    def run(self, inputs: Inputs, intervene: Intervention | None = None) -> Trace:
        with torch.no_grad():
            return self.adapter.run(inputs, intervene=intervene, hidden=True)

    @cached_property
    def keys(self) -> tuple[str, ...]:
        return tuple(site.key for site in self.adapter.sites())


def _gap(a: Tensor, b: Tensor) -> float:
    if a.shape != b.shape:
        return float("inf")
    difference = (a - b).abs()
    return float("inf") if bool(difference.isnan().any()) else difference.max().item() if difference.numel() else 0.0


def _require_close(a: Tensor, b: Tensor, what: str, mend: str) -> None:
    gap = _gap(a, b)
    if gap > TOLERANCE:
        raise BrokenContractError(f"{what} by {gap:.2g}, expected at most {TOLERANCE:g}. {mend}")


def check_sites(e: Examples) -> str:
    sites = e.adapter.sites()
    if not sites:
        raise BrokenContractError("sites() is empty, so there is no attention to audit. Return at least one Site.")
    if len(set(e.keys)) != len(e.keys):
        raise BrokenContractError(f"sites() repeats a key: {', '.join(e.keys)}. Give every site its own key.")
    lacking = [k for k in e.keys if k not in e.trace.attention or k not in e.trace.allowed]
    if lacking:
        raise BrokenContractError(
            f"run() gives no attention or allowed mask for {', '.join(lacking)}. Fill both for every site."
        )
    return f"{len(sites)} site(s)"


def check_shapes(e: Examples) -> str:
    rows, width = e.inputs.ids[TEXT].shape
    for site in e.adapter.sites():
        found, allowed = e.trace.attention[site.key], e.trace.allowed[site.key]
        if found.dim() != 4 or found.shape[0] != rows or found.shape[1] != site.heads or found.shape[3] != width:
            raise BrokenContractError(
                f"attention at '{site.key}' has shape {tuple(found.shape)}; "
                f"expected ({rows}, {site.heads}, Q, {width})."
            )
        if allowed.dtype != torch.bool or allowed.dim() != 4:
            raise BrokenContractError(
                f"allowed at '{site.key}' is {allowed.dtype} of {allowed.dim()} axes; expected bool of 4."
            )
    strings = e.inputs.tokens.get(TEXT)
    counts = e.inputs.mask[TEXT].sum(1).tolist()
    if strings is None or [len(s) for s in strings] != counts:
        raise BrokenContractError(
            "Inputs.tokens does not hold one string per unpadded token. Give the tokens as people read them, special "
            "ones included: the report shows them."
        )
    for key in e.keys:
        if key not in e.trace.hidden:
            raise BrokenContractError(
                f"run(hidden=True) gives no hidden states for '{key}'. Give the states that its weights are applied to."
            )
        states, keys = e.trace.hidden[key], e.trace.attention[key].shape[-1]
        if states.dim() != 3 or tuple(states.shape[:2]) != (rows, keys):
            raise BrokenContractError(
                f"hidden states at '{key}' have shape {tuple(states.shape)}; expected ({rows}, {keys}, m)."
            )
    return "shapes as declared"


def check_sums(e: Examples) -> str:
    for key in e.keys:
        weights, allowed = e.trace.attention[key], e.trace.allowed[key]
        outside = (weights * ~allowed).abs().max().item()
        if not outside <= TOLERANCE:
            raise BrokenContractError(
                f"attention at '{key}' puts {outside:.2g} on tokens that are not allowed, such as padding. "
                "Mask the scores with -inf before the softmax."
            )
        if weights.min().item() < -TOLERANCE:
            raise BrokenContractError(f"attention at '{key}' has a negative weight, {weights.min().item():.2g}.")
        off = (weights.sum(-1) - 1).abs().max().item()
        if not off <= TOLERANCE:
            raise BrokenContractError(
                f"attention at '{key}' is {off:.2g} away from summing to one. Normalise over the allowed tokens, "
                "and keep dropout out of the weights that are shown."
            )
    return "weights sum to one over allowed tokens and are zero elsewhere"


def check_evaluation_mode(e: Examples) -> str:
    training = [type(m).__name__ for module in e.adapter.modules for m in module.modules() if m.training]
    if training:
        raise BrokenContractError(f"{training[0]} is in training mode after eval(). Do not override train() or eval().")
    _require_close(
        e.run(e.inputs).logits,
        e.trace.logits,
        "the same input twice gives logits that differ",
        "Something is random in evaluation: use nn.Dropout rather than functional dropout, and name every module in "
        "modules.",
    )
    return "same input, same output"


def check_self_replacement(e: Examples) -> str:
    again = e.run(e.inputs, lambda site, _w, _a: e.trace.attention[site.key])
    _require_close(
        again.logits,
        e.trace.logits,
        "putting the model's own attention back moves the logits",
        "Use the weights that intervene returns in place of the live ones, at the point where they meet the states.",
    )
    return "own attention put back: nothing moves"


def check_intervention(e: Examples) -> str:
    def first_allowed(_site: object, weights: Tensor, allowed: Tensor) -> Tensor:
        place = allowed.expand_as(weights).int().argmax(-1, keepdim=True)
        return torch.zeros_like(weights).scatter(-1, place, 1.0)

    changed = e.run(e.inputs, first_allowed)
    for site in e.adapter.sites():
        expected = first_allowed(site, e.trace.attention[site.key], e.trace.allowed[site.key])
        _require_close(
            changed.attention[site.key],
            expected,
            f"replaced attention at '{site.key}' is not what the trace shows: they differ",
            "Return the weights that were used, after the intervention.",
        )
    return "replaced attention is used and shown"


def check_padding(e: Examples) -> str:
    lengths = e.inputs.mask[TEXT].sum(1)
    padded = e.inputs.ids[TEXT][~e.inputs.mask[TEXT]]
    value = int(padded[0]) if len(padded) else 0
    # Only the side that collate pads on matters: inputs are never padded on the other.
    left = bool((~e.inputs.mask[TEXT][:, 0]).any())
    sides = (3, 0) if left else (0, 3)

    def widen(values: Tensor, fill: int | bool) -> Tensor:
        return torch.nn.functional.pad(values, sides, value=fill)

    wide = replace(
        e.inputs,
        ids={**e.inputs.ids, TEXT: widen(e.inputs.ids[TEXT], value)},
        mask={**e.inputs.mask, TEXT: widen(e.inputs.mask[TEXT], False)},
        special={**e.inputs.special, TEXT: widen(e.inputs.special[TEXT], False)},
    )
    _require_close(
        e.run(wide).logits,
        e.trace.logits,
        "three more padding tokens move the logits",
        "Let the encoder and the attention see the mask: pack recurrent inputs, and mask scores with -inf.",
    )
    return f"padding changes nothing (lengths {int(lengths.min())} to {int(lengths.max())})"


def check_batch_mates(e: Examples) -> str:
    for b, one in enumerate(e.instances):
        _require_close(
            e.run(e.adapter.collate([one])).logits[0],
            e.trace.logits[b],
            "an instance alone and in a batch has logits that differ",
            "Rows must not see each other: look for batch normalisation in training mode, a mask that is not used, "
            "or a sort that is not undone.",
        )
    backwards = e.run(e.adapter.collate(list(reversed(e.instances)))).logits.flip(0)
    _require_close(backwards, e.trace.logits, "the order of the batch moves logits", "Undo any sort of the rows.")
    return "alone, in a batch, in any order: the same"


def check_gradients(e: Examples) -> str:
    if not e.adapter.capabilities.differentiable:
        return "not declared differentiable"
    cudnn = e.inputs.ids[TEXT].device.type != "cuda"
    with torch.no_grad():
        leaves = {name: v.detach().clone() for name, v in e.adapter.embed(e.inputs).items()}
    for leaf in leaves.values():
        leaf.requires_grad_(True)
    live: list[Tensor] = []

    def watch(_site: object, weights: Tensor, _allowed: Tensor) -> Tensor:
        live.append(weights.detach().clone().requires_grad_(True))
        return live[-1]

    mend = "Compute from the embeddings that run() is given, without detach(), .data, numpy or no_grad."
    with torch.backends.cudnn.flags(enabled=cudnn), torch.enable_grad():
        output = torch.log_softmax(
            torch.nn.functional.pad(e.adapter.run(e.inputs, embeddings=leaves).logits, (1, 0)), -1
        )
        if not output.requires_grad:
            raise BrokenContractError(f"no gradient reaches the embeddings. {mend}")
        (at_inputs,) = torch.autograd.grad(output[:, -1].sum(), leaves[TEXT], allow_unused=True)
        replaced = e.adapter.run(e.inputs, embeddings=leaves, intervene=watch).logits
        at_weights = (
            torch.autograd.grad(replaced.sum(), live, allow_unused=True) if live and replaced.requires_grad else (None,)
        )
    if at_inputs is None or not bool(at_inputs.isfinite().all()):
        raise BrokenContractError(
            f"the gradient at the embeddings is {'missing' if at_inputs is None else 'not finite'}. {mend}"
        )
    if not bool(at_inputs.any()):
        raise BrokenContractError(f"the gradient at the embeddings is zero everywhere. {mend}")
    if any(g is None or not bool(g.any()) for g in at_weights):
        raise BrokenContractError(f"no gradient reaches replaced attention: the model does not use it. {mend}")
    leaked = at_inputs[~e.inputs.mask[TEXT]].abs().max().item() if bool((~e.inputs.mask[TEXT]).any()) else 0.0
    if leaked > 0:
        raise BrokenContractError(
            f"padding has a gradient ({leaked:.2g}): it moves the output. Mask it in encoder and attention."
        )
    return "gradients reach embeddings and replaced attention, none reaches padding"


def _row(values: Mapping[str, Tensor], row: int) -> dict[str, Tensor]:
    return {name: value[row][None] for name, value in values.items()}


def check_deletion(e: Examples) -> str:
    if not e.adapter.capabilities.deletion:
        return "not declared to delete"
    row = int(e.inputs.real().sum(1).argmax())
    places = e.inputs.real()[row].nonzero()[:, 0].tolist()
    if len(places) < 2:
        return "no instance with two tokens to try on"
    chosen = sorted({places[0], places[len(places) // 2], places[-1]})
    variants = e.adapter.delete(e.inputs, TEXT, [(row, p) for p in chosen])
    logits = e.run(variants).logits
    original = e.inputs.ids[TEXT][row][e.inputs.mask[TEXT][row]].tolist()
    offset = int(e.inputs.mask[TEXT][row].int().argmax())
    for v, place in enumerate(chosen):
        expected = original[: place - offset] + original[place - offset + 1 :]
        found = variants.ids[TEXT][v][variants.mask[TEXT][v]].tolist()
        if found != expected:
            raise BrokenContractError(
                f"delete() of position {place} leaves ids {found[:8]}..., expected {expected[:8]}.... "
                "Remove that id alone, never by decoding and tokenising again."
            )
        kept = [t for t in e.inputs.mask[TEXT][row].nonzero()[:, 0].tolist() if t != place]
        shorter = Inputs(
            ids={**_row(e.inputs.ids, row), TEXT: e.inputs.ids[TEXT][row, kept][None]},
            mask={**_row(e.inputs.mask, row), TEXT: e.inputs.mask[TEXT][row, kept][None]},
            special={**_row(e.inputs.special, row), TEXT: e.inputs.special[TEXT][row, kept][None]},
            extra=_row(e.inputs.extra, row),
        )
        _require_close(
            logits[v],
            e.run(shorter).logits[0],
            "a variant from delete() and the shorter input differ",
            "Pad variants as collate does, and let special flags and masks move with their tokens.",
        )
    wanted = torch.ones((len(chosen), e.inputs.ids[TEXT].shape[1]), dtype=torch.bool, device=logits.device)
    wanted[range(len(chosen)), chosen] = False
    kept_rows = torch.full((len(chosen),), row, device=logits.device)
    _require_close(
        e.run(e.adapter.keep(e.inputs, TEXT, kept_rows, wanted)).logits,
        logits,
        "keep() of all positions but one and delete() of that one differ",
        "Leave in keep() what delete() leaves: the marked positions in their order.",
    )
    if bool((variants.special[TEXT] & ~variants.mask[TEXT]).any()):
        raise BrokenContractError("delete() marks padding as special. Move the special flags with their tokens.")
    return f"deletion equals encoding the shorter input ({len(chosen)} positions)"


def check_substitution(e: Examples) -> str:
    if not e.adapter.capabilities.mask:
        return "no mask token declared"
    real, device = e.inputs.real(), e.inputs.ids[TEXT].device
    rows = torch.arange(len(real), device=device)
    first = torch.zeros_like(real)
    first[rows, real.int().argmax(1)] = True
    masked = e.adapter.substitute(e.inputs, TEXT, rows, first)
    before, after = e.inputs.ids[TEXT], masked.ids[TEXT]
    if before.shape != after.shape or not torch.equal(masked.mask[TEXT], e.inputs.mask[TEXT]):
        raise BrokenContractError(
            "substitute() changes length or padding. Put the mask id in place of the token and move nothing."
        )
    if bool((before != after)[~first].any()):
        raise BrokenContractError("substitute() changes ids at other positions than those marked.")
    if bool((after[first] != after[first][0]).any()):
        raise BrokenContractError("substitute() puts different ids at marked positions. Put one id, that of the mask.")
    if not bool(e.run(masked).logits.isfinite().all()):
        raise BrokenContractError("a variant from substitute() has logits that are not finite.")
    return f"marked positions hold id {int(after[first][0])}, others are untouched"


def check_decode(e: Examples) -> str:
    capabilities = e.adapter.capabilities
    if not capabilities.decodes and not capabilities.linear_decoder:
        return "no faster decoding declared"
    site = e.adapter.sites()[0]
    states = e.trace.hidden[site.key]
    generator = torch.Generator().manual_seed(0)
    allowed = e.trace.allowed[site.key]
    noise = torch.rand(allowed.shape, generator=generator).to(states)
    weights = noise * allowed / (noise * allowed).sum(-1, keepdim=True)
    expected = e.run(e.inputs, lambda s, _w, _a: weights if s.key == site.key else None).logits
    flat = weights[:, 0, :1, :]
    mend = "They must be the decoder that run() uses, on the states that run(hidden=True) shows last."
    if capabilities.decodes:
        with torch.no_grad():
            found = e.adapter.decode(states, flat)
        if found.dim() != 3:
            raise BrokenContractError(f"decode() returned shape {tuple(found.shape)}; expected (B, V, C).")
        _require_close(found[:, 0, :], expected, "decode() and run() with the same attention differ", mend)
    if capabilities.linear_decoder:
        weight, bias = e.adapter.decoder_weights()
        linear = (flat @ states)[:, 0, :] @ weight.T + bias
        _require_close(linear, expected, "decoder_weights() and run() with the same attention differ", mend)
    return "faster decoding gives the model's own logits"


CHECKS: tuple[Callable[[Examples], str], ...] = (
    check_sites,
    check_shapes,
    check_evaluation_mode,
    check_sums,
    check_self_replacement,
    check_intervention,
    check_decode,
    check_padding,
    check_batch_mates,
    check_gradients,
    check_deletion,
    check_substitution,
)


def examples(adapter: ModelAdapter, instances: Sequence[Instance]) -> Examples:
    """A spread of lengths: the shortest, the longest that is not over long, and some between."""
    first = list(instances[: 16 * COUNT])
    ranked = sorted(first, key=lambda i: (len(i.text), i.id))
    short = [one for one in ranked if len(one.text.split()) <= LONGEST] or ranked[:1]
    places = sorted({round(i * (len(short) - 1) / max(1, COUNT - 1)) for i in range(COUNT)})
    return Examples(adapter, [short[p] for p in places])


def quick(adapter: ModelAdapter, instances: Sequence[Instance]) -> list[ConformanceResult]:
    """Run every check on a few instances. Raises AdapterError naming all that fail, each with its mend."""
    for module in adapter.modules:
        module.eval()
    sample = examples(adapter, instances)
    results: list[ConformanceResult] = []
    cause: Exception | None = None
    for check in CHECKS:
        name = check.__name__.removeprefix("check_")
        try:
            results.append(ConformanceResult(check=name, outcome="pass", detail=check(sample)))
        except BrokenContractError as broken:
            results.append(ConformanceResult(check=name, outcome="fail", detail=str(broken)))
        except AuditError:
            raise
        except Exception as error:
            cause = cause or error
            detail = f"the adapter raised {type(error).__name__}: {error}. See attnaudit.adapters.ModelAdapter."
            results.append(ConformanceResult(check=name, outcome="fail", detail=detail))
        if results[-1].outcome == "fail" and name in ("sites", "shapes"):
            break
    failed = [r for r in results if r.outcome == "fail"]
    if failed:
        listed = "\n".join(f"  {r.check}: {r.detail}" for r in failed)
        raise AdapterError(f"The model breaks the adapter contract and is not audited:\n{listed}") from cause
    return results
