"""Measure the effects of tokens on the prediction, and whether attention points at the tokens with large effects.

The effect of token i on the output f is the mean of two contributions: from removing it from the text x, and from
adding it to an empty text:

    e_i = ½ [f(x) - f(x without i)] + ½ [f(i alone) - f(nothing)]

A removed token is replaced by the mask token or the unknown token, so lengths and positions do not change. A source is
deleted instead: the tokens that are left keep their "held" attention weights, but get other positions. The two
contributions are the last and the first term of a Shapley value (Shapley 1953). The first contribution above is 0 for a
token whose information another token repeats. The second contribution is 0 for tokens that have an effect only
together. With "held" attention, the attention rows that are shown to people keep their weights while tokens are
replaced. With "live" attention, the model computes its attention from the replaced tokens.

The output f is either the probability of the predicted class, or the vector of the logits minus their mean over the
classes. For the vector, the effect of a token is the Euclidean norm ‖e_i‖ over the classes. This norm depends neither
on which class is predicted nor on a bias per class. Both kinds of effects are computed from the same passes.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from attnaudit.adapters.sums_by_index import added_at
from attnaudit.arrays import Floats
from attnaudit.engine.batches.batch import LEAVE_ONE_OUT_TOKENS
from attnaudit.engine.batches.held_attention import gives_both, held_and_live
from attnaudit.engine.batches.logits import centred_logits, probabilities, without_rounding
from attnaudit.engine.batches.unit_masks import UnitMasks
from attnaudit.errors import CheckError, nearest
from attnaudit.measures import AttentionView, Columns, Request, measure
from attnaudit.measures.erasure_curves import random_orders
from attnaudit.metrics.cosine import cosine
from attnaudit.metrics.shapley import shapley_values

KINDS = ("held", "live", "shapley")
#: The largest number of sampled orders per instance.
MOST_ORDERS = 100_000

#: Suffix of a column -> the kind of output on which its effects are measured.
OUTPUTS = {"": "probabilities", ".logits": "logits"}

#: (rows (V,), units to keep (V, T)) -> logits (V, C) with the other units masked.
Masked = Callable[[Tensor, Tensor], Tensor]


def effect_kind(text: str) -> tuple[str, int]:
    """Parse the argument of `token_effect` and `pointing`.

    Returns:
        The kind, which is "held", "live" or "shapley"; and the number of orders for "shapley", 0 otherwise.
    """
    kind, _, orders = text.partition(".")
    if kind == "shapley" and orders.isascii() and orders.isdigit() and 1 <= int(orders) <= MOST_ORDERS:
        return kind, int(orders)
    if kind == "shapley":
        raise CheckError(
            f"expected .shapley.N with a whole number N of sampled orders from 1 to {MOST_ORDERS}, but got '.{text}'. "
            "Write, for example, .shapley.100."
        )
    if kind not in KINDS or orders:
        raise CheckError(f"expected .held, .live or .shapley.N, but got '{text and '.'}{text}'. {nearest(kind, KINDS)}")
    return kind, 0


def _canonical(argument: tuple[str, int]) -> str:
    """Convert a parsed argument back to text, such as "shapley.100"."""
    kind, orders = argument
    return f"{kind}.{orders}" if orders else kind


@measure(
    "token_effect",
    argument=effect_kind,
    canonical=_canonical,
    capabilities=("mask",),
    depends_on_reading=lambda argument: argument[0] != "live",
    one_site=lambda argument: argument[0] != "live",
    early=lambda argument: argument[0] == "held",
)
def token_effect(view: AttentionView, request: Request) -> Columns:
    """Return the effect of each token on the output; NaN for texts with a single token.

    The column `<name>` contains the signed effects on the probability of the predicted class. The column `.logits`
    contains the norms of the effects on the centred logits.

    The arguments "held" and "live" give e_i, as defined at the top of this module. A contribution within the
    rounding error of the logits counts as zero. The argument "shapley.N" gives Shapley values with held attention: the
    mean contribution of a token over N random orders in which the tokens are added. If enumerating all subsets of a
    text's tokens needs at most as many passes as N orders, the Shapley values of this text are exact.
    """
    kind, orders = request.argument
    effects = _shapley(view, orders) if kind == "shapley" else _effects(view, held=kind == "held")
    return Columns(tokens={f"{request.name}{suffix}": effects[..., i] for i, suffix in enumerate(OUTPUTS)})


def _effects(view: AttentionView, *, held: bool) -> Tensor:
    """Return the (B, T, 2) effects on both kinds of output; NaN for instances with a single unit (token or word)."""
    outputs = _with_held_attention(view) if held else _with_live_attention(view)
    last_in = _contribution(view, view.logits[:, None], outputs.without)
    first_in = _contribution(view, outputs.alone, outputs.nothing[:, None])
    return _effect_sizes((last_in + first_in) / 2)


def _with_live_attention(view: AttentionView) -> UnitMasks:
    """Return the outputs with the attention that the model computes from the masked texts."""
    batch = view.batch
    return batch.known_unit_masks or UnitMasks(
        without=batch.logits_leaving_one_out("mask"),
        alone=_one_by_one(view, batch.masked, batch.rows_with_single_masks, alone=True, held=False),
        nothing=_nothing(view, batch.masked),
    )


def _with_held_attention(view: AttentionView) -> UnitMasks:
    """Return the outputs with the attention of the clean pass."""
    if gives_both(view):
        name = view.shared_name("held and live attention")
        with view.batch.sharing(name):
            held, live = _with_both(view)
        view.batch.keep_unit_masks(name, live)
        return held
    masked: Masked = view.masked_with_attention_held
    large = view.batch.rows_with_single_masks if view.scope.single_row else []
    return UnitMasks(
        without=_one_by_one(view, masked, large, alone=False, held=True),
        alone=_one_by_one(view, masked, large, alone=True, held=True),
        nothing=_nothing(view, masked),
    )


def _with_both(view: AttentionView) -> tuple[UnitMasks, UnitMasks]:
    """Return the outputs with held and with live attention. Each masked text runs once."""
    shape = (*view.real.shape, view.logits.shape[-1])
    held, live = (
        UnitMasks(
            without=view.logits.new_full(shape, torch.nan),
            alone=view.logits.new_full(shape, torch.nan),
            nothing=torch.full_like(view.logits, torch.nan),
        )
        for _ in range(2)
    )
    several = view.lengths > 1
    units = (view.real & several[:, None]).nonzero()
    size = max(1, LEAVE_ONE_OUT_TOKENS // (2 * view.real.shape[1]))
    for number, chunk in enumerate(torch.split(units, size) if len(units) else ()):
        rows, unit = chunk.unbind(1)
        this = torch.arange(view.real.shape[1], device=view.device) == unit[:, None]
        all_masked = several.nonzero()[:, 0] if number == 0 else rows[:0]
        keep = torch.cat([view.real[rows] & ~this, this, torch.zeros_like(view.real[all_masked])])
        found = held_and_live(view, torch.cat([rows, rows, all_masked]), keep)
        for outputs, logits in zip((held, live), found, strict=True):
            without, alone, nothing = torch.split(logits, [len(rows), len(rows), len(all_masked)])
            outputs.without[rows, unit], outputs.alone[rows, unit] = without, alone
            outputs.nothing[all_masked] = nothing
    return held, live


def _nothing(view: AttentionView, masked: Masked) -> Tensor:
    """Return (B, C) logits with all units masked; NaN for instances with a single unit."""
    nothing = torch.full_like(view.logits, torch.nan)
    several = (view.lengths > 1).nonzero()[:, 0]
    if len(several):
        nothing[several] = masked(several, torch.zeros_like(view.real[several]))
    return nothing


def _one_by_one(view: AttentionView, masked: Masked, large: list[int], *, alone: bool, held: bool) -> Tensor:
    """Return (B, T, C) logits with only one unit, or without it; NaN at positions where no unit starts.

    The rows in `large` are computed by `Batch.single_masks`, with the weights of the clean pass if `held` is True.
    """
    shape = (*view.real.shape, view.logits.shape[-1])
    output = torch.full(shape, torch.nan, dtype=torch.float64, device=view.device)
    for row in large:
        units = view.real[row].nonzero()[:, 0]
        output[row, units] = view.batch.single_masks(row, units, alone=alone, held=held)
    others = view.real & (view.lengths > 1)[:, None]
    others[large] = False
    units = others.nonzero()
    for chunk in torch.split(units, max(1, LEAVE_ONE_OUT_TOKENS // view.real.shape[1])) if len(units) else ():
        rows, unit = chunk.unbind(1)
        this = torch.arange(view.real.shape[1], device=view.device) == unit[:, None]
        output[rows, unit] = masked(rows, this if alone else view.real[rows] & ~this)
    return output


def _outputs(view: AttentionView, rows: Tensor, logits: Tensor) -> Tensor:
    """Compute both kinds of output from logits.

    Args:
        view: B instances.
        rows: (N,) the instances that the logits belong to.
        logits: (N, ..., C) logits.

    Returns:
        (N, ..., 1 + C) outputs: the probability of the class that is predicted for the unchanged text, and the centred
        logits. Classes that are not possible answers have the centred logit 0, and are left out of the mean.
    """
    middle = [1] * (logits.dim() - 2)
    index = view.predicted[rows].reshape(-1, *middle, 1).expand(*logits.shape[:-1], 1)
    open_classes = None
    if view.open_classes is not None:
        open_classes = view.open_classes[rows].reshape(-1, *middle, logits.shape[-1])
    return torch.cat([probabilities(logits).gather(-1, index), centred_logits(logits, open_classes)], dim=-1)


def _effect_sizes(effects: Tensor) -> Tensor:
    """Reduce (..., 1 + C) effects to (..., 2): the effect on the probability, and the norm over the logits."""
    return torch.stack([effects[..., 0], effects[..., 1:].norm(dim=-1)], dim=-1)


def _contribution(view: AttentionView, present: Tensor, absent: Tensor) -> Tensor:
    """Return the (B, T, 1 + C) differences between (B, T or 1, C) logits in both outputs; 0 within rounding."""
    present = present.expand(*absent.shape[:1], max(present.shape[1], absent.shape[1]), -1)
    same = view.equal_to_clean(present, absent)
    rows = torch.arange(len(view.predicted), device=view.device)
    change = _outputs(view, rows, without_rounding(present, absent.expand_as(present))) - _outputs(view, rows, absent)
    return change.masked_fill(same[..., None], 0.0)


def _shapley(view: AttentionView, orders: int) -> Tensor:
    """Return (B, T, 2) Shapley values with held attention, for both kinds of output; NaN with a single unit."""
    values = torch.full((*view.real.shape, 2), torch.nan, dtype=torch.float64, device=view.device)
    for b in (view.lengths > 1).nonzero()[:, 0].tolist():
        units = view.real[b].nonzero()[:, 0]
        count = len(units)

        def payoff(keep: Tensor, b: int = b) -> Tensor:
            """Return the (V, 1 + C) outputs with only the units in (V, T) masks."""
            rows = torch.full((len(keep),), b, dtype=torch.long, device=view.device)
            return _outputs(view, rows, view.masked_with_attention_held(rows, keep))

        if 2**count - 2 <= orders * (count - 1):
            bits = torch.arange(2**count, device=view.device)[:, None] >> torch.arange(count, device=view.device)
            keep = torch.zeros((2**count, view.real.shape[1]), dtype=torch.bool, device=view.device)
            keep[:, units] = (bits & 1).bool()
            values[b, units] = _effect_sizes(shapley_values(payoff(keep)))
        else:
            order = random_orders(view, orders, "shapley", rows=[b])[0, :, :count]
            values[b, units] = _effect_sizes(_mean_contributions(view, order, payoff)[units])
    return values


def _mean_contributions(view: AttentionView, order: Tensor, payoff: Callable[[Tensor], Tensor]) -> Tensor:
    """Return (T, D) contributions of the positions to the (V, D) payoffs, averaged over (N, n) orders of adding
    them."""
    draws, count = order.shape
    width = view.real.shape[1]
    total = torch.zeros((width, 1 + view.probabilities.shape[-1]), dtype=torch.float64, device=view.device)
    step = max(1, LEAVE_ONE_OUT_TOKENS // (width * (count + 1)))
    for start in range(0, draws, step):
        part = order[start : start + step]
        rank = torch.full((len(part), width), count, device=view.device)
        rank.scatter_(1, part, torch.arange(count, device=view.device).expand_as(part))
        joined = rank[:, None, :] < torch.arange(count + 1, device=view.device)[:, None]
        table: Floats = joined.flatten(0, 1).cpu().numpy()
        unique, inverse = np.unique(table, axis=0, return_inverse=True)
        payoffs = payoff(torch.from_numpy(unique).to(view.device))
        by_step = payoffs[torch.from_numpy(inverse.reshape(-1)).to(view.device)].reshape(len(part), count + 1, -1)
        total = added_at(total, part.reshape(-1), by_step.diff(dim=1).flatten(0, 1))
    return total / draws


@measure(
    "pointing",
    argument=effect_kind,
    canonical=_canonical,
    requires=lambda argument: (f"token_effect.{_canonical(argument)}",),
)
def pointing(view: AttentionView, request: Request) -> Columns:
    """Return how well attention α points at the tokens with large absolute effects |e_i| (see `token_effect`).

    The columns are undefined for texts with a single token:

    * `.largest`: the largest effect, max |e_i|.
    * `.cosine`: the cosine similarity of α and |e|. Undefined if every effect is 0.
    * `.uniform_cosine`: the cosine similarity of equal weights and |e|. Undefined if every effect is 0.
    * `.drawn`: Σ α_i |e_i|, the expected |e_i| of a token that is drawn with the probabilities α.
    * `.drawn_uniform`: the expected |e_i| of a token that is drawn with equal probabilities.

    The columns `.logits.largest` and so on contain the same values for the effects on the centred logits.
    """
    attention = torch.where(view.real, view.attention, 0.0)
    scalars = {}
    for suffix in OUTPUTS:
        effect = request.required.tokens[f"token_effect.{request.name.partition('.')[2]}{suffix}"].abs()
        effect = torch.where(view.real, effect, 0.0)
        name = f"{request.name}{suffix}"
        scalars[f"{name}.largest"] = effect.amax(1)
        scalars[f"{name}.cosine"] = cosine(attention, effect, view.real)
        scalars[f"{name}.uniform_cosine"] = cosine(torch.ones_like(effect), effect, view.real)
        scalars[f"{name}.drawn"] = (attention * effect).sum(1)
        scalars[f"{name}.drawn_uniform"] = effect.sum(1) / view.lengths
    return Columns(scalars=scalars)
