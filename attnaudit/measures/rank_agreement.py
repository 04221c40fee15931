"""Agreement of the attention that is shown with a feature importance: Kendall's τ-b over the real tokens (JW, M)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from attnaudit.engine.attention_view import AttentionView
from attnaudit.engine.columns import Columns, Measure, PerBatch
from attnaudit.errors import CheckError, nearest
from attnaudit.measures.gradient import PLACES
from attnaudit.metrics import kendall, kendall_tau_b, near_tied_pairs
from attnaudit.registry import measures
from attnaudit.seeding import keyed_generator

#: Scores closer than this may be tied or not by rounding in float32 alone.
NEAR_TIE = 1e-6


def shuffled(view: AttentionView, values: Tensor, purpose: str) -> Tensor:
    """(B, T) values with those at real tokens in an order drawn from the seed and the instance's id."""
    index = np.tile(np.arange(values.shape[1]), (len(view.instances), 1))
    for b, row in enumerate(view.real.cpu().numpy()):
        where = row.nonzero()[0]
        index[b, where] = keyed_generator(view.seed, purpose, view.instances[b].id).permutation(where)
    return values.gather(1, torch.from_numpy(index).to(values.device))


@dataclass(frozen=True, kw_only=True)
class Agreement(PerBatch):
    """tau, p_value: attention against the importance. floor: shuffled attention against it. ceiling: the importance
    against a second one of another kind (gradient against leave-one-out) on the same instance. near_ties: the share of
    pairs of importance scores within rounding of each other."""

    importance: str
    rival: str

    def compute(self, view: AttentionView, columns: Columns) -> Columns:
        real = view.real
        reading, scores, rival = view.attention, columns.tokens[self.importance], columns.tokens[self.rival]
        observed = kendall(reading, scores, real)
        return Columns(
            scalars={
                f"{self.name}.tau": observed.tau,
                f"{self.name}.p_value": observed.p_value,
                f"{self.name}.floor": kendall_tau_b(shuffled(view, reading, "floor"), scores, real),
                f"{self.name}.ceiling": kendall_tau_b(scores, rival, real),
                f"{self.name}.near_ties": near_tied_pairs(scores, real, tolerance=NEAR_TIE),
            }
        )


@measures.register("agreement")
def agreement(argument: str) -> Measure:
    """agreement.<feature importance>"""
    importance, _, place = argument.rpartition(".")
    if place not in PLACES or not importance:
        raise CheckError(
            f"'agreement.{argument}': expected agreement.<feature importance>.<inputs or hidden>. "
            f"{nearest(place, PLACES)}"
        )
    rival = f"gradient.meister.{place}" if importance == "leave_one_out" else f"leave_one_out.{place}"
    return Agreement(name=f"agreement.{argument}", requires=(argument, rival), importance=argument, rival=rival)
