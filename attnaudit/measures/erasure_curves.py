"""Comprehensiveness and sufficiency of an order of the tokens, under two erasure operators (DeYoung et al. 2020,
ERASER).

r is the first k = ⌈f·n⌉ tokens of the order, at least one, f in 1, 5, 10, 20, 50%. Comprehensiveness is p(x) - p(x∖r)
and sufficiency p(x) - p(r), p the probability of the predicted class of x; AOPC is their mean over f (f = 0 is not
counted). At most ⌈n/2⌉ tokens are ever taken, so something always stays. Undefined with one token, and where all
attention weights are equal: they order nothing."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from attnaudit.engine.attention_view import AttentionView
from attnaudit.engine.batch import Operator
from attnaudit.engine.columns import Columns, Measure, PerBatch
from attnaudit.errors import CheckError, nearest
from attnaudit.registry import measures
from attnaudit.seeding import keyed_generator

#: Per cent of the tokens (ERASER).
PERCENTS = (1, 5, 10, 20, 50)
#: Random orders per instance.
DRAWS = 5
#: Weights that differ by less than this share of the largest are told apart by rounding alone.
TIED = 1e-6
OPERATORS: dict[str, Operator] = {"deletion": "deletion", "mask": "mask"}


def random_orders(view: AttentionView, draws: int, purpose: str) -> Tensor:
    """(B, draws, T) positions: the real tokens in an order drawn from the seed and the instance's id, then the rest."""
    rows, width = view.real.shape
    keys = np.full((rows, draws, width), 2.0)
    for b, row in enumerate(view.real.cpu().numpy()):
        generator = keyed_generator(view.seed, purpose, view.instances[b].id)
        keys[b][:, row.nonzero()[0]] = generator.random((draws, int(row.sum())))
    return torch.from_numpy(keys.argsort(axis=2, kind="stable")).to(view.device)


def ranked(view: AttentionView, scores: Tensor) -> Tensor:
    """(B, T) positions: the real tokens from the highest score to the lowest, then the rest. Ties are in an order drawn
    from the seed and the instance's id, since the place of a token says nothing about it. NaN counts as lowest."""
    known = torch.where(view.real & ~scores.isnan(), scores.double(), torch.full_like(scores.double(), -torch.inf))
    shuffle = random_orders(view, 1, "ties")[:, 0]
    best = known.gather(1, shuffle).sort(dim=1, descending=True, stable=True).indices
    return shuffle.gather(1, best)


def orders_tokens(view: AttentionView) -> Tensor:
    """(B,) True where attention orders the tokens at all: two or more of them, weights on them, not all equal."""
    reading = view.attention.nan_to_num(0.0)
    highest = reading.amax(1)
    lowest = reading.masked_fill(~view.real, torch.inf).amin(1)
    return (view.lengths > 1) & (highest - lowest > TIED * highest)


def first(order: Tensor, counts: Tensor) -> Tensor:
    """Orders (..., T) and counts (..., K) -> (..., K, T) True at the positions of the first k of the order."""
    places = torch.arange(order.shape[-1], device=order.device)
    inside = places < counts[..., None]
    taken = torch.zeros_like(inside)
    return taken.scatter(-1, order[..., None, :].expand_as(inside), inside)


def counts_at(lengths: Tensor) -> Tensor:
    """(B,) lengths -> (B, 5) numbers of tokens at each share: rounded up, at least one."""
    percents = torch.tensor(PERCENTS, device=lengths.device)
    return (-(-lengths[:, None] * percents // 100)).clamp_min(1)


@dataclass(frozen=True, kw_only=True)
class Erasure(PerBatch):
    """AOPC by order: .attention, .loo (signed leave-one-out under the same operator: the fall of the predicted class's
    probability, largest first), .random (mean over random orders) and .shuffled (the first of these). The same under
    .decision: 1 where the predicted class is another one, 0 where it stays, in place of the fall of the probability.
    vectors .attention.curve, .loo.curve, .random.curve: the five values before their mean. keeps: sufficiency."""

    operator: Operator
    keeps: bool

    def compute(self, view: AttentionView, columns: Columns) -> Columns:
        rows = len(view.instances)
        shape = (rows, 2 + DRAWS, len(PERCENTS))
        fall = torch.full(shape, torch.nan, dtype=torch.float64, device=view.device)
        changed = fall.clone()
        chosen = orders_tokens(view).nonzero()[:, 0]
        able = view.batch.can_erase(self.operator)
        if able and len(chosen):
            output = self._outputs(view, chosen)
            predicted = view.predicted[chosen]
            before = view.probabilities[chosen, predicted]
            index = predicted[:, None, None, None].expand(*output.shape[:3], 1)
            fall[chosen] = before[:, None, None] - output.gather(3, index)[..., 0]
            changed[chosen] = (output.argmax(-1) != predicted[:, None, None]).double()
        scalars, vectors = {}, {}
        for measured, values in (("", fall), ("decision.", changed)):
            orders = {"attention": values[:, 0], "loo": values[:, 1], "random": values[:, 2:].mean(1)}
            for name, curve in orders.items():
                scalars[f"{self.name}.{measured}{name}"] = curve.mean(1)
                vectors[f"{self.name}.{measured}{name}.curve"] = curve
            scalars[f"{self.name}.{measured}shuffled"] = values[:, 2].mean(1)
        lacking = {} if able else {f"erasure.{self.operator}": "not possible"}
        return Columns(scalars=scalars, vectors=vectors, facts=lacking)

    def _outputs(self, view: AttentionView, chosen: Tensor) -> Tensor:
        """(b, 2 + DRAWS, 5, C) class probabilities of the chosen instances without, or with only, the first tokens."""
        alone = view.batch.substituted if self.operator == "mask" else view.batch.deleted
        predicted = view.predicted[:, None, None].expand(*view.real.shape, 1)
        support = view.probabilities.gather(1, view.predicted[:, None]) - alone.gather(2, predicted)[..., 0]
        orders = torch.stack([ranked(view, view.attention), ranked(view, support)], dim=1)
        orders = torch.cat([orders, random_orders(view, DRAWS, "erasure")], dim=1)[chosen]
        counts = counts_at(view.lengths[chosen])[:, None, :].expand(-1, orders.shape[1], -1)
        taken = first(orders, counts)
        keep = taken if self.keeps else ~taken
        row = chosen[:, None, None].expand(taken.shape[:3]).reshape(-1)
        output = view.batch.erased(row, keep.reshape(-1, keep.shape[-1]), self.operator)
        return output.reshape(*taken.shape[:3], -1)


def _operator(family: str, argument: str) -> Operator:
    if argument not in OPERATORS:
        raise CheckError(f"'{family}.{argument}': expected .deletion or .mask. {nearest(argument, OPERATORS)}")
    return OPERATORS[argument]


@measures.register("comprehensiveness")
def comprehensiveness(argument: str) -> Measure:
    """comprehensiveness.<operator>"""
    operator = _operator("comprehensiveness", argument)
    return Erasure(name=f"comprehensiveness.{argument}", operator=operator, keeps=False)


@measures.register("sufficiency")
def sufficiency(argument: str) -> Measure:
    """sufficiency.<operator>"""
    return Erasure(name=f"sufficiency.{argument}", operator=_operator("sufficiency", argument), keeps=True)
