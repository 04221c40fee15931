"""Rank agreement of attention with a feature importance, measured by Kendall's τ-b over the real tokens.

Sources: Jain & Wallace 2019, §4.1; Meister et al. 2021.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from attnaudit.errors import CheckError, nearest
from attnaudit.measures import AttentionView, Columns, Request, measure
from attnaudit.measures.gradient import PLACES
from attnaudit.metrics import kendall, kendall_tau_b, near_tied_pairs
from attnaudit.seeding import keyed_generator

#: If two scores differ by at most this amount, float32 rounding can create or break a tie between them.
NEAR_TIE = 1e-6


@dataclass(frozen=True)
class AgreementArgument:
    """The argument of `agreement`.

    Attributes:
        importance: name of the measure that attention is compared with.
        rival: name of a second feature importance at the same place (inputs or hidden states). The agreement of
            `importance` with this rival is a reference value. The rival is the gradient norm if `importance` is
            leave-one-out, and leave-one-out otherwise.
    """

    importance: str
    rival: str


def importance_and_rival(text: str) -> AgreementArgument:
    """Parse the name of a feature importance, such as "gradient.meister.inputs", and choose its rival.

    Raises:
        CheckError: the name does not end with ".inputs" or ".hidden".
    """
    importance, _, place = text.rpartition(".")
    if place not in PLACES or not importance:
        raise CheckError(
            f"expected agreement.<feature importance>.<inputs or hidden>, but got '{text}'. {nearest(place, PLACES)}"
        )
    rival = f"gradient.meister.{place}" if importance == "leave_one_out" else f"leave_one_out.{place}"
    return AgreementArgument(text, rival)


def shuffled(view: AttentionView, values: Tensor, purpose: str) -> Tensor:
    """Shuffle (B, T) values among the real tokens of each instance.

    The shuffle of an instance depends only on the seed of the audit, the purpose, the id of the instance and the
    positions of its real tokens.
    """
    index = np.tile(np.arange(values.shape[1]), (len(view.instances), 1))
    for b, row in enumerate(view.real.cpu().numpy()):
        positions = row.nonzero()[0]
        index[b, positions] = keyed_generator(view.seed, purpose, view.instances[b].id).permutation(positions)
    return values.gather(1, torch.from_numpy(index).to(values.device))


@measure(
    "agreement",
    argument=importance_and_rival,
    requires=lambda argument: (argument.importance, argument.rival),
)
def agreement(view: AttentionView, request: Request) -> Columns:
    """Return the rank agreement of attention with a feature importance.

    The columns are:

    * `.tau`: Kendall's τ-b of attention with the importance.
    * `.p_value`: the p-value of `.tau`.
    * `.floor`: τ-b of shuffled attention with the importance.
    * `.gradient_loo`: τ-b between gradient and leave-one-out importance (see `AgreementArgument.rival`).
    * `.near_ties`: the share of pairs of tokens whose importance scores are equal up to rounding.
    """
    argument: AgreementArgument = request.argument
    real, attention = view.real, view.attention
    scores, rival = request.required.tokens[argument.importance], request.required.tokens[argument.rival]
    observed = kendall(attention, scores, real)
    return Columns(
        scalars={
            f"{request.name}.tau": observed.tau,
            f"{request.name}.p_value": observed.p_value,
            f"{request.name}.floor": kendall_tau_b(shuffled(view, attention, "floor"), scores, real),
            f"{request.name}.gradient_loo": kendall_tau_b(scores, rival, real),
            f"{request.name}.near_ties": near_tied_pairs(scores, real, tolerance=NEAR_TIE),
        }
    )
