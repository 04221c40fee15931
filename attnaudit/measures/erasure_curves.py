"""Comprehensiveness and sufficiency of an order of the tokens (DeYoung et al. 2020, ERASER).

For a share f of the n tokens of a text x, the rationale r is the first ⌈f·n⌉ tokens of the order. Let p be the
probability of the class that is predicted for the whole text. Comprehensiveness is p(x) - p(x without r), and
sufficiency is p(x) - p(r alone). AOPC is the mean over the shares 1, 5, 10, 20 and 50%.

All values are undefined for texts with one token, and for texts with equal attention weights, which give no order.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from attnaudit.engine.batches.batch import Operator
from attnaudit.measures import AttentionView, Columns, Request, measure, one_of
from attnaudit.seeding import keyed_generator

#: Percentages of the tokens (DeYoung et al. 2020).
PERCENTS = (1, 5, 10, 20, 50)
#: Random orders per instance.
DRAWS = 5
#: All weights count as equal if the largest and the smallest differ by at most this fraction of the largest: such a
#: difference is rounding.
TIED = 1e-6


def random_orders(view: AttentionView, draws: int, purpose: str, *, rows: Sequence[int] | None = None) -> Tensor:
    """Draw random orders of the real tokens. They depend only on the seed, the purpose and the id of the instance.

    Args:
        view: B instances.
        draws: Number of orders per instance.
        purpose: Name that makes the draws of different measures independent.
        rows: The R rows of the batch to draw orders for; None for all rows.

    Returns:
        (R, draws, T) positions: the real tokens in random order, then all other positions.
    """
    chosen = range(len(view.real)) if rows is None else rows
    keys = np.full((len(chosen), draws, view.real.shape[1]), 2.0)
    real = view.real.cpu().numpy()
    for r, b in enumerate(chosen):
        generator = keyed_generator(view.seed, purpose, view.instances[b].id)
        keys[r][:, real[b].nonzero()[0]] = generator.random((draws, int(real[b].sum())))
    return torch.from_numpy(keys.argsort(axis=2, kind="stable")).to(view.device)


def ranked(view: AttentionView, scores: Tensor) -> Tensor:
    """Order the real tokens from the highest score to the lowest.

    Ties are broken at random, because breaking them by position would favour some positions. The result depends only
    on the scores, the seed and the id of the instance. NaN counts as the lowest score.

    Args:
        view: B instances.
        scores: (B, T) scores.

    Returns:
        (B, T) positions: the real tokens by score, then all other positions.
    """
    known = torch.where(view.real & ~scores.isnan(), scores.double(), torch.full_like(scores.double(), -torch.inf))
    shuffle = random_orders(view, 1, "ties")[:, 0]
    best = known.gather(1, shuffle).sort(dim=1, descending=True, stable=True).indices
    return shuffle.gather(1, best)


def orders_tokens(view: AttentionView) -> Tensor:
    """Return a mask (B,), True for texts with at least two tokens whose attention weights are not all equal."""
    attention = view.attention.nan_to_num(0.0)
    highest = attention.amax(1)
    lowest = attention.masked_fill(~view.real, torch.inf).amin(1)
    return (view.lengths > 1) & (highest - lowest > TIED * highest)


def first(order: Tensor, counts: Tensor) -> Tensor:
    """Return a mask of the tokens that come first in an order.

    Args:
        order: (..., T) positions.
        counts: (..., K) how many positions to mark.

    Returns:
        (..., K, T) True at the first `counts` positions of the order.
    """
    rank = torch.arange(order.shape[-1], device=order.device)
    inside = rank < counts[..., None]
    marked = torch.zeros_like(inside)
    return marked.scatter(-1, order[..., None, :].expand_as(inside), inside)


def counts_at(lengths: Tensor) -> Tensor:
    """Return the (B, 5) numbers of tokens in 1, 5, 10, 20 and 50% of the lengths (B,), rounded up."""
    percents = torch.tensor(PERCENTS, device=lengths.device)
    return (-(-lengths[:, None] * percents // 100)).clamp_min(1)


@measure(
    "comprehensiveness",
    argument=one_of("deletion", "mask"),
    optional_capabilities=lambda operator: (operator,),
)
def comprehensiveness(view: AttentionView, request: Request) -> Columns:
    """Return the comprehensiveness of several orders of the tokens. `_erasure` lists the columns."""
    return _erasure(view, request, keeps=False)


@measure(
    "sufficiency",
    argument=one_of("deletion", "mask"),
    optional_capabilities=lambda operator: (operator,),
)
def sufficiency(view: AttentionView, request: Request) -> Columns:
    """Return the sufficiency of several orders of the tokens. `_erasure` lists the columns."""
    return _erasure(view, request, keeps=True)


def _erasure(view: AttentionView, request: Request, *, keeps: bool) -> Columns:
    """Return the AOPC (defined at the top of this module) of several orders of the tokens.

    There is one column per order:

    * `.attention`: the tokens by attention.
    * `.loo`: the tokens by signed leave-one-out with the same operator. The first token is the token whose removal
      lowers the probability of the predicted class most.
    * `.random`: the mean over several random orders.
    * `.shuffled`: the first random order.

    The columns `.decision.attention`, `.decision.loo` and so on contain means of changed decisions instead: a decision
    counts as 1 if another class is predicted, otherwise as 0. The columns `.attention.curve`, `.loo.curve` and
    `.random.curve` contain the values at the five shares of the text. `.decision.attention.curve` and the others with
    `.decision` contain the changed decisions at these shares. They are NaN if the output is not a decision.

    If the adapter lacks the capability that the operator needs, all columns are NaN, and the fact `erasure.<operator>`
    is "not possible".

    Args:
        view: B instances.
        request: The request. Its argument names the operator, that is, how tokens are erased.
        keeps: True keeps only the first tokens of an order (sufficiency); False erases them (comprehensiveness).
    """
    operator: Operator = request.argument
    shape = (len(view.instances), 2 + DRAWS, len(PERCENTS))
    fall = torch.full(shape, torch.nan, dtype=torch.float64, device=view.device)
    flipped = fall.clone()
    rows = orders_tokens(view).nonzero()[:, 0]
    possible = operator not in request.lacking
    if possible and len(rows):
        output = _outputs(view, rows, operator, keeps=keeps)
        predicted = view.predicted[rows]
        before = view.probabilities[rows, predicted]
        index = predicted[:, None, None, None].expand(*output.shape[:3], 1)
        fall[rows] = before[:, None, None] - output.gather(3, index)[..., 0]
        if view.adapter.capabilities.decides:
            flipped[rows] = (output.argmax(-1) != predicted[:, None, None]).double()
    scalars, vectors = {}, {}
    for prefix, values in (("", fall), ("decision.", flipped)):
        curves = {"attention": values[:, 0], "loo": values[:, 1], "random": values[:, 2:].mean(1)}
        for order, curve in curves.items():
            scalars[f"{request.name}.{prefix}{order}"] = curve.mean(1)
            vectors[f"{request.name}.{prefix}{order}.curve"] = curve
        scalars[f"{request.name}.{prefix}shuffled"] = values[:, 2].mean(1)
    facts = {} if possible else {f"erasure.{operator}": "not possible"}
    return Columns(scalars=scalars, vectors=vectors, facts=facts)


def _outputs(view: AttentionView, rows: Tensor, operator: Operator, *, keeps: bool) -> Tensor:
    """Return the (b, 2 + DRAWS, 5, C) class probabilities of b rows with tokens erased, for each order and share.

    The orders are: by attention, by leave-one-out, and DRAWS random orders.
    """
    without_one = view.batch.leave_one_out(operator)
    predicted = view.predicted[:, None, None].expand(*view.real.shape, 1)
    support = view.probabilities.gather(1, view.predicted[:, None]) - without_one.gather(2, predicted)[..., 0]
    orders = torch.stack([ranked(view, view.attention), ranked(view, support)], dim=1)
    orders = torch.cat([orders, random_orders(view, DRAWS, "erasure")], dim=1)[rows]
    counts = counts_at(view.lengths[rows])[:, None, :].expand(-1, orders.shape[1], -1)
    taken = first(orders, counts)
    keep = taken if keeps else ~taken
    row = rows[:, None, None].expand(taken.shape[:3]).reshape(-1)
    output = view.batch.erase(row, keep.reshape(-1, keep.shape[-1]), operator)
    return output.reshape(*taken.shape[:3], -1)
