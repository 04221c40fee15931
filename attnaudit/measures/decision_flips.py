"""Decision flips: weights are set to zero one after another and the rest renormalised, states fixed (Serrano & Smith
2019).

Special tokens that are attended keep their weight in the renormalisation. Undefined with one token, where all weights
are equal (they order nothing), and where one token holds all attention: with it gone, no weight is left to renormalise.
"""

from __future__ import annotations

import torch
from torch import Tensor

from attnaudit.engine.attention_view import AttentionView
from attnaudit.engine.batch import probabilities
from attnaudit.engine.columns import Columns, Measure, PerBatch
from attnaudit.measures.erasure_curves import orders_tokens, random_orders, ranked
from attnaudit.measures.prediction import no_argument
from attnaudit.registry import measures

#: Random orders per instance.
DRAWS = 10


def flips(view: AttentionView, gone: Tensor) -> Tensor:
    """(B, V, T) weights to set to zero -> (B, V) whether the decision is another one. False where no weight is left:
    nothing is then decided."""
    logits, left = view.without(gone)
    return (probabilities(logits).argmax(-1) != view.predicted[:, None]) & left


def defined(view: AttentionView) -> Tensor:
    """(B,) True where a weight can go and another one stays."""
    top = view.attention.nan_to_num(0.0).argmax(1, keepdim=True)
    gone = torch.zeros_like(view.real).scatter(1, top, True)
    return orders_tokens(view) & view.weight_left(gone[:, None, :])[:, 0]


def weight_gradient(view: AttentionView) -> tuple[Tensor, Tensor]:
    """(B, T) Σ_h ∂p/∂α_h and Σ_h α_h·∂p/∂α_h of the predicted class's probability p, every weight free and states
    fixed; signed, by unit. NaN for an adapter that does not differentiate, and for a reading of several rows."""
    if not view.adapter.capabilities.differentiable or not view.scope.single:
        nothing = torch.full_like(view.token_scores, torch.nan)
        return nothing, nothing
    weights = view.head_patterns.clone().requires_grad_(True)
    with torch.enable_grad():
        output = probabilities(view.decode_differentiably(weights[:, None]))[:, 0, :]
        view.counts["backward"] += 1
        (slope,) = torch.autograd.grad(output.gather(1, view.predicted[:, None]).sum(), weights)
    slope = slope.detach().double()
    return view.batch.together(slope.sum(1)), view.batch.together((slope * view.head_patterns).sum(1))


def fraction_to_flip(view: AttentionView, order: Tensor) -> Tensor:
    """(B, T) positions -> (B,) the least share k/n of weights whose removal in that order flips the decision; 1 where
    it never flips while any weight is left."""
    width = view.real.shape[1]
    place = torch.zeros_like(order).scatter(1, order, torch.arange(width, device=order.device).expand_as(order))
    lengths = view.lengths
    found = lengths.clone()
    step = view.at_once
    for start in range(1, width, step):
        removed = torch.arange(start, min(width, start + step), device=order.device)
        gone = (place[:, None, :] < removed[:, None]) & view.real[:, None, :]
        moved = flips(view, gone) & (removed < lengths[:, None])
        earliest = torch.where(moved, removed, lengths[:, None]).amin(1)
        found = torch.minimum(found, earliest)
    return found.double() / lengths


class Flip(PerBatch):
    """Share of the weights to remove until the decision flips, by order: .attention, .gradient (signed, of the
    weights), .attention_x_gradient, .random (mean over random orders), .shuffled (the first of these). 1: it never
    flips."""

    def compute(self, view: AttentionView, columns: Columns) -> Columns:
        slope, product = weight_gradient(view)
        undefined = ~defined(view)
        scores = {
            "attention": view.attention,
            "gradient": slope,
            "attention_x_gradient": product,
        }
        found = {name: fraction_to_flip(view, ranked(view, score)) for name, score in scores.items()}
        for name in ("gradient", "attention_x_gradient"):
            found[name] = found[name].masked_fill((slope.isnan() & view.real).any(1), torch.nan)
        drawn = random_orders(view, DRAWS, "flip")
        by_chance = torch.stack([fraction_to_flip(view, drawn[:, d]) for d in range(DRAWS)])
        found |= {"random": by_chance.mean(0), "shuffled": by_chance[0]}
        return Columns(scalars={f"{self.name}.{k}": v.masked_fill(undefined, torch.nan) for k, v in found.items()})


class TopToken(PerBatch):
    """.attention: 1 where removing the largest weight alone flips the decision (drawn among equals), else 0. .random:
    the share of the other tokens whose removal alone does so, which is the chance of one drawn at random. .any: 1 where
    some token's does."""

    def compute(self, view: AttentionView, columns: Columns) -> Columns:
        rows, width = view.real.shape
        single = torch.zeros((rows, width), dtype=torch.float64, device=view.device)
        step = view.at_once
        for start in range(0, width, step):
            here = torch.arange(start, min(width, start + step), device=view.device)
            gone = torch.zeros((rows, len(here), width), dtype=torch.bool, device=view.device)
            gone[:, torch.arange(len(here), device=here.device), here] = True
            single[:, here] = (flips(view, gone) & view.real[:, here]).double()
        top = single.gather(1, ranked(view, view.attention)[:, :1])[:, 0]
        undefined = ~defined(view)
        others = (single.sum(1) - top) / (view.lengths - 1).clamp_min(1)
        return Columns(
            scalars={
                f"{self.name}.attention": top.masked_fill(undefined, torch.nan),
                f"{self.name}.random": others.masked_fill(undefined, torch.nan),
                f"{self.name}.any": single.amax(1).masked_fill(undefined, torch.nan),
            }
        )


@measures.register("flip")
def flip(argument: str) -> Measure:
    return Flip(name=no_argument("flip", argument))


@measures.register("top_token")
def top_token(argument: str) -> Measure:
    return TopToken(name=no_argument("top_token", argument))
