"""Decision flips: attention weights are removed one after another until the decision changes (Serrano & Smith 2019).

A removed weight is set to 0, and all other weights, including those of special tokens, are renormalised. The hidden
states are fixed. The measures are undefined in three cases: the text has one token; all weights are equal, so they give
no order; or one token has all of the weight, so no weight is left without it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from attnaudit.engine.batches.logits import probabilities
from attnaudit.measures import AttentionView, Columns, Request, measure
from attnaudit.measures.erasure_curves import orders_tokens, random_orders, ranked

#: Number of random orders per instance.
DRAWS = 10


def flips(view: AttentionView, removed: Tensor) -> Tensor:
    """Return, for each of V sets of weights, whether the decision changes when the weights of the set are removed.

    Args:
        view: B instances.
        removed: (B, V, T) True at the weights to set to 0.

    Returns:
        (B, V) True where the model predicts another class. False if no weight is left, because there is no prediction
        then.
    """
    logits, any_left = view.logits_without_weights(removed)
    return (probabilities(logits).argmax(-1) != view.predicted[:, None]) & any_left


def defined(view: AttentionView) -> Tensor:
    """Return a mask (B,), True where the measures are defined (see the module's documentation)."""
    top = view.attention.nan_to_num(0.0).argmax(1, keepdim=True)
    removed = torch.zeros_like(view.real).scatter(1, top, True)
    return orders_tokens(view) & view.has_weight_left(removed[:, None, :])[:, 0]


def weight_gradient(view: AttentionView) -> tuple[Tensor, Tensor]:
    """Differentiate p, the probability of the predicted class, with respect to the attention weights α.

    The weights are treated as independent variables, and the hidden states are fixed. The gradients are signed. They
    are summed over the heads h and over the tokens of each unit (a word or another group of tokens).

    Returns:
        (B, T) Σ_h ∂p/∂α_h, and (B, T) Σ_h α_h · ∂p/∂α_h. Both are NaN if the reading (the attention shown to people)
        selects several rows per head.
    """
    if not view.scope.single_row:
        undefined = torch.full_like(view.token_scores, torch.nan)
        return undefined, undefined
    weights = view.head_patterns.clone().requires_grad_(True)
    with torch.enable_grad():
        logits = view.decode_differentiably(weights[:, None])[:, 0, :]
        view.batch.count("backward", "backward_rows", len(view.instances))
        (gradient,) = torch.autograd.grad(view.batch.target(logits), weights)
    gradient = view.batch.of_probability(gradient.detach().double())
    return view.batch.sum_by_unit(gradient.sum(1)), view.batch.sum_by_unit((gradient * view.head_patterns).sum(1))


def fraction_to_flip(view: AttentionView, order: Tensor) -> Tensor:
    """Return the smallest share of the weights whose removal flips the decision.

    Args:
        view: B instances.
        order: (B, T) positions in the order of removal.

    Returns:
        (B,) smallest share k/n of the n weights such that removing the first k weights flips the decision. It is 1 if
        no number k < n of removed weights flips it.
    """
    width = view.real.shape[1]
    rank = torch.zeros_like(order).scatter(1, order, torch.arange(width, device=order.device).expand_as(order))
    lengths = view.lengths
    smallest = lengths.clone()
    step = view.variants_per_pass
    for start in range(1, width, step):
        counts = torch.arange(start, min(width, start + step), device=order.device)
        removed = (rank[:, None, :] < counts[:, None]) & view.real[:, None, :]
        flipped = flips(view, removed) & (counts < lengths[:, None])
        smallest_here = torch.where(flipped, counts, lengths[:, None]).amin(1)
        smallest = torch.minimum(smallest, smallest_here)
    return smallest.double() / lengths


@measure("flip", capabilities=("decides",), optional_capabilities=("differentiable",))
def flip(view: AttentionView, request: Request) -> Columns:
    """Return the share of the weights that must be removed until the decision flips, for several orders.

    The value is 1 if the decision never flips. There is one column per order of removal:

    * `.attention`: from the highest attention to the lowest.
    * `.gradient`: from the highest signed gradient of the weights to the lowest (see `weight_gradient`).
    * `.attention_x_gradient`: from the highest product of weight and gradient to the lowest.
    * `.random`: the mean over several random orders.
    * `.shuffled`: the first random order.

    `.gradient` and `.attention_x_gradient` are NaN if the model is not differentiable, or if the reading (the attention
    shown to people) selects several rows per head.
    """
    if "differentiable" in request.lacking:
        gradient = product = torch.full_like(view.token_scores, torch.nan)
    else:
        gradient, product = weight_gradient(view)
    undefined = ~defined(view)
    scores = {"attention": view.attention, "gradient": gradient, "attention_x_gradient": product}
    fractions = {name: fraction_to_flip(view, ranked(view, score)) for name, score in scores.items()}
    for name in ("gradient", "attention_x_gradient"):
        fractions[name] = fractions[name].masked_fill((gradient.isnan() & view.real).any(1), torch.nan)
    orders = random_orders(view, DRAWS, "flip")
    by_chance = torch.stack([fraction_to_flip(view, orders[:, draw]) for draw in range(DRAWS)])
    fractions |= {"random": by_chance.mean(0), "shuffled": by_chance[0]}
    return Columns(
        scalars={f"{request.name}.{k}": values.masked_fill(undefined, torch.nan) for k, values in fractions.items()}
    )


@measure("top_token")
def top_token(view: AttentionView, request: Request) -> Columns:
    """Return whether removing a single weight flips the decision.

    The columns are:

    * `.attention`: 1 if removing the largest weight flips the decision, otherwise 0. Ties are broken at random.
    * `.random`: the share of the other tokens whose removal flips the decision. This is the probability that the
      removal of one of them, chosen at random, flips the decision.
    * `.any`: 1 if removing any single token flips the decision, otherwise 0.
    """
    rows, width = view.real.shape
    flipped = torch.zeros((rows, width), dtype=torch.float64, device=view.device)
    step = view.variants_per_pass
    for start in range(0, width, step):
        positions = torch.arange(start, min(width, start + step), device=view.device)
        removed = torch.zeros((rows, len(positions), width), dtype=torch.bool, device=view.device)
        removed[:, torch.arange(len(positions), device=view.device), positions] = True
        flipped[:, positions] = (flips(view, removed) & view.real[:, positions]).double()
    top = flipped.gather(1, ranked(view, view.attention)[:, :1])[:, 0]
    undefined = ~defined(view)
    others = (flipped.sum(1) - top) / (view.lengths - 1).clamp_min(1)
    return Columns(
        scalars={
            f"{request.name}.attention": top.masked_fill(undefined, torch.nan),
            f"{request.name}.random": others.masked_fill(undefined, torch.nan),
            f"{request.name}.any": flipped.amax(1).masked_fill(undefined, torch.nan),
        }
    )
