"""Leave-one-out: how much the output changes when one token is removed.

The change is the total variation between the class probabilities with and without the token. A change within the
rounding error of the logits counts as zero, so that all tokens without an effect tie. Sources: Meister et al.
2021, eq. 6; published code of Jain & Wallace 2019.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from attnaudit.engine.batches.logits import probabilities
from attnaudit.measures import AttentionView, Columns, Request, measure, one_of
from attnaudit.measures.gradient import PLACES, normalised
from attnaudit.measures.sampled_units import sampled_units
from attnaudit.unit_samples import split_sample, with_sample


@dataclass(frozen=True)
class LeaveOneOutArgument:
    """The argument of `leave_one_out`.

    Attributes:
        place: "inputs" or "hidden".
        size: The number of units in the sample of each instance; 0 for all units.
    """

    place: str
    size: int


def _parsed(text: str) -> LeaveOneOutArgument:
    place, size = split_sample(text)
    return LeaveOneOutArgument(one_of(*PLACES)(place), size)


@measure(
    "leave_one_out",
    argument=_parsed,
    canonical=lambda argument: with_sample(argument.place, argument.size),
    capabilities=lambda argument: ("deletion",) if argument.place == "inputs" else (),
    depends_on_reading=lambda argument: bool(argument.place == "hidden"),
)
def leave_one_out(view: AttentionView, request: Request) -> Columns:
    """Return how much the output changes without each token.

    At "inputs", the token is deleted, and the model runs on the remaining tokens. At "hidden", the attention weight of
    the token is set to 0, the other weights are renormalised, and the hidden states are fixed. If the token has all
    weight, the context vector without the token is zero. With ".sampled.N" at the end of the argument, only N random
    units of each instance are left out (see `sampled_units`). The columns are then NaN at the other units.

    The columns are undefined for texts with a single real token:

    * `<name>`: the change of each token, divided by the sum over the real tokens. If only a sample is measured, this
      sum is estimated from the sample.
    * `.change`: the change of each token, a total variation.
    """
    argument: LeaveOneOutArgument = request.argument
    units = sampled_units(view, argument.size)
    by_place = _change_by_deletion if argument.place == "inputs" else _change_by_dropped_state
    change = by_place(view, units)
    undefined = (change.isnan() & units).any(1, keepdim=True)
    shares = normalised(change.nan_to_num(0.0), units).masked_fill(undefined, float("nan"))
    if argument.size:
        shares = (shares * (units.sum(1) / view.lengths)[:, None]).masked_fill(view.real & ~units, float("nan"))
    return Columns(tokens={request.name: shares, f"{request.name}.change": change})


def _change_by_deletion(view: AttentionView, units: Tensor) -> Tensor:
    """Return the (B, T) changes of the output if one of the units (B, T) is deleted; NaN at the others."""
    return _total_variation_to_clean(view.batch.logits_leaving_one_out("deletion", units), view)


def _change_by_dropped_state(view: AttentionView, units: Tensor) -> Tensor:
    """Return the (B, T) changes of the output if the weight of one of the units (B, T) is set to 0; NaN at the others.

    The other weights are renormalised.
    """
    count, width = view.real.shape
    logits = view.logits.new_full((count, width, view.logits.shape[-1]), torch.nan)
    rows, dropped = (units & (view.lengths > 1)[:, None]).nonzero(as_tuple=True)
    columns = units.any(0).nonzero()[:, 0]  # positions at which a unit of some instance is left out
    if bool((units == view.real).all()):
        columns = torch.arange(width, device=view.device)
    place = torch.zeros(width, dtype=torch.long, device=view.device)
    place[columns] = torch.arange(len(columns), device=view.device)
    for part in torch.split(columns, view.variants_per_pass):
        removed = torch.zeros((count, len(part), width), dtype=torch.bool, device=view.device)
        removed[:, torch.arange(len(part)), part] = True
        chunk = view.logits_without_weights(removed)[0]
        start = int(place[part[0]])
        inside = (place[dropped] >= start) & (place[dropped] < start + len(part))
        logits[rows[inside], dropped[inside]] = chunk[rows[inside], place[dropped[inside]] - start]
    return _total_variation_to_clean(logits, view)


def _total_variation_to_clean(variants: Tensor, view: AttentionView) -> Tensor:
    """Return the (B, V) total variation between the clean output and the outputs with (B, V, C) logits of V variants.

    It is 0 if the two differ by at most the rounding error of the logits.
    """
    same = view.equal_to_clean(variants)
    change = probabilities(variants) - view.probabilities[:, None, :]
    return (0.5 * change.abs().sum(-1)).masked_fill(same, 0.0)
