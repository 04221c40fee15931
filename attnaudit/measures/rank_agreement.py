"""Rank agreement of attention with a feature importance, measured by Kendall's τ-b over the real tokens.

Sources: Jain & Wallace 2019, §4.1; Meister et al. 2021.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from attnaudit.errors import CheckError, nearest
from attnaudit.measures import AttentionView, Columns, Request, measure
from attnaudit.measures.gradient import PLACES
from attnaudit.measures.sampled_units import sampled_units
from attnaudit.metrics import kendall, kendall_tau_b, near_tied_pairs
from attnaudit.metrics.sampled_kendall import sampled_tau_b
from attnaudit.seeding import keyed_generator
from attnaudit.unit_samples import split_sample, with_sample

#: If two scores differ by at most this amount, float32 rounding can create or break a tie between them.
NEAR_TIE = 1e-6
LEAVE_ONE_OUT = "leave_one_out"


@dataclass(frozen=True)
class AgreementArgument:
    """The argument of `agreement`.

    Attributes:
        importance: Name of the measure that attention is compared with.
        size: The number of units of each instance for which leave-one-out is measured; 0 for all units.
        rival: Name of a second feature importance at the same place (inputs or hidden states). The agreement of
            `importance` with this rival is a reference value. The rival is the gradient norm if `importance` is
            leave-one-out, and leave-one-out otherwise.
    """

    importance: str
    rival: str
    size: int = 0

    @property
    def samples_importance(self) -> bool:
        """Whether `importance` is measured for a sample of the units. If not, `rival` may be."""
        return self.size > 0 and self.importance.startswith(LEAVE_ONE_OUT)


def importance_and_rival(text: str) -> AgreementArgument:
    """Parse the name of a feature importance, such as "gradient.meister.inputs", and choose its rival.

    The name may end with the size of a sample of units, such as ".sampled.512", for which leave-one-out is measured.

    Raises:
        CheckError: The name does not end with ".inputs" or ".hidden", or the size of the sample is invalid.
    """
    text, size = split_sample(text)
    importance, _, place = text.rpartition(".")
    if place not in PLACES or not importance:
        raise CheckError(
            f"expected agreement.<feature importance>.<inputs or hidden>, but got '{text}'. {nearest(place, PLACES)}"
        )
    if importance == LEAVE_ONE_OUT:
        return AgreementArgument(with_sample(text, size), f"gradient.meister.{place}", size)
    return AgreementArgument(text, with_sample(f"{LEAVE_ONE_OUT}.{place}", size), size)


def _canonical(argument: AgreementArgument) -> str:
    return argument.importance if argument.samples_importance else with_sample(argument.importance, argument.size)


def shuffled_order(view: AttentionView) -> Tensor:
    """Return a random order (B, T) of the positions, in which only the real tokens of each instance change places.

    The order of an instance depends only on the seed of the audit, the id of the instance and the positions of its real
    tokens.
    """
    index = np.tile(np.arange(view.real.shape[1]), (len(view.instances), 1))
    for b, row in enumerate(view.real.cpu().numpy()):
        positions = row.nonzero()[0]
        index[b, positions] = keyed_generator(view.seed, "floor", view.instances[b].id).permutation(positions)
    return torch.from_numpy(index).to(view.device)


class _OfImportance(NamedTuple):
    """What the agreement under every reading of a batch shares, because it does not depend on the attention.

    Attributes:
        scores: (B, T) the feature importance.
        rival: (B, T) its rival.
        tau: (B,) τ-b between them.
        near_ties: (B,) share of nearly tied pairs of the importance.
        order: (B, T) the order in which the attention is shuffled.
    """

    scores: Tensor
    rival: Tensor
    tau: Tensor
    near_ties: Tensor
    order: Tensor


def _of_importance(view: AttentionView, request: Request) -> _OfImportance:
    """Return what the agreement under every reading shares. It is computed once for the same importance and rival."""
    argument: AgreementArgument = request.argument
    scores, rival = request.required.tokens[argument.importance], request.required.tokens[argument.rival]
    memo = request.views[0].memo if request.views else view.memo
    known: _OfImportance | None = memo.get(request.name)
    if known is None or known.scores is not scores or known.rival is not rival:
        known = memo[request.name] = _OfImportance(
            scores=scores,
            rival=rival,
            tau=kendall_tau_b(scores, rival, view.real),
            near_ties=near_tied_pairs(scores, view.real, tolerance=NEAR_TIE),
            order=shuffled_order(view),
        )
    return known


@measure(
    "agreement",
    argument=importance_and_rival,
    canonical=_canonical,
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

    If leave-one-out is measured for a sample of the units, every τ-b with leave-one-out is estimated from this sample
    (see `sampled_tau_b`). There is no p-value of such an estimate. There are two additional columns:

    * `.sampling_variance`: the variance of `.tau`, or of `.gradient_loo` if leave-one-out is the rival, over random
      samples of the units of the instance.
    * `.unresolved`: 1 if the sample is too small to estimate τ-b, and 0 otherwise.
    """
    argument: AgreementArgument = request.argument
    if argument.size:
        return _sampled_agreement(view, request)
    real, attention, shared = view.real, view.attention, _of_importance(view, request)
    observed = kendall(attention, shared.scores, real)
    return Columns(
        scalars={
            f"{request.name}.tau": observed.tau,
            f"{request.name}.p_value": observed.p_value,
            f"{request.name}.floor": kendall_tau_b(attention.gather(1, shared.order), shared.scores, real),
            f"{request.name}.gradient_loo": shared.tau,
            f"{request.name}.near_ties": shared.near_ties,
        }
    )


def _sampled_agreement(view: AttentionView, request: Request) -> Columns:
    argument: AgreementArgument = request.argument
    sample = sampled_units(view, argument.size)
    shares, attention, name = request.required.tokens[argument.importance], view.attention, request.name
    scores, rival = (_in_sample(view, request, one, sample) for one in (argument.importance, argument.rival))
    floor = attention.gather(1, shuffled_order(view))
    loo = _estimated(view, scores, rival, sample)
    columns = {f"{name}.gradient_loo": loo.tau}
    if argument.samples_importance:
        observed = _estimated(view, attention, scores, sample)
        columns[f"{name}.tau"] = observed.tau
        columns[f"{name}.floor"] = _estimated(view, floor, scores, sample).tau
        columns[f"{name}.near_ties"] = near_tied_pairs(shares, sample, tolerance=NEAR_TIE)
    else:
        observed = loo
        found = kendall(attention, scores, view.real)
        columns[f"{name}.tau"], columns[f"{name}.p_value"] = found.tau, found.p_value
        columns[f"{name}.floor"] = kendall_tau_b(floor, scores, view.real)
        columns[f"{name}.near_ties"] = near_tied_pairs(scores, view.real, tolerance=NEAR_TIE)
    columns[f"{name}.sampling_variance"] = observed.variance
    columns[f"{name}.unresolved"] = observed.unresolved
    return Columns(scalars=columns)


def _in_sample(view: AttentionView, request: Request, importance: str, sample: Tensor) -> Tensor:
    """Return the scores (B, T) of an importance.

    If leave-one-out is measured for only some units of an instance, return the changes of the output. Their shares are
    undefined if no unit of the sample changes the output, but the importance of the whole instance need not be.
    """
    scores = request.required.tokens[importance]
    if not importance.startswith(LEAVE_ONE_OUT):
        return scores
    part = (sample.sum(1) < view.lengths)[:, None]
    return torch.where(part, request.required.tokens[f"{importance}.change"], scores)


class _Estimates(NamedTuple):
    """Estimates of τ-b (B,), their variances (B,), and a column (B,) with 1 where the sample is too small."""

    tau: Tensor
    variance: Tensor
    unresolved: Tensor


def _estimated(view: AttentionView, x: Tensor, y: Tensor, sample: Tensor) -> _Estimates:
    """Estimate τ-b of (B, T) values from a sample (B, T) of the units. It is exact if all units are in the sample."""
    tau = kendall_tau_b(x, y, sample)
    variance, unresolved = torch.zeros_like(tau).masked_fill(tau.isnan(), torch.nan), torch.zeros_like(tau)
    for row in (sample.sum(1) < view.lengths).nonzero()[:, 0].tolist():
        some_x, some_y = x[row, sample[row]], y[row, sample[row]]
        if bool(some_x.isnan().any() | some_y.isnan().any()):
            continue  # one of the two is undefined for the whole instance
        tau[row], variance[row] = sampled_tau_b(some_x, some_y, int(view.lengths[row]))
        unresolved[row] = float(tau[row].isnan())
    return _Estimates(tau, variance, unresolved)
