"""Leave-one-out: how much the output changes when one token is removed.

The change is the total variation between the class probabilities with and without the token. A change within the
rounding error of the logits counts as zero, so that all tokens without an effect tie. Sources: Meister et al.
2021, eq. 6; published code of Jain & Wallace 2019.
"""

from __future__ import annotations

import torch
from torch import Tensor

from attnaudit.engine.clean_pass import probabilities
from attnaudit.measures import AttentionView, Columns, Request, measure, one_of
from attnaudit.measures.gradient import PLACES, normalised
from attnaudit.precision import logit_rounding


@measure(
    "leave_one_out",
    argument=one_of(*PLACES),
    capabilities=lambda place: ("deletion",) if place == "inputs" else (),
    depends_on_reading=lambda place: bool(place == "hidden"),
)
def leave_one_out(view: AttentionView, request: Request) -> Columns:
    """Return how much the output changes without each token.

    At "inputs", the token is deleted, and the model runs on the remaining tokens. At "hidden", the attention weight of
    the token is set to 0, the other weights are renormalised, and the hidden states are fixed. If the token has all
    weight, the context vector without the token is zero.

    The columns are undefined for texts with a single real token:

    * `<name>`: the change of each token, divided by the sum over the real tokens.
    * `.change`: the change of each token, a total variation.
    """
    change = _change_by_deletion(view) if request.argument == "inputs" else _change_by_dropped_state(view)
    undefined = (change.isnan() & view.real).any(1, keepdim=True)
    shares = normalised(change.nan_to_num(0.0), view.real).masked_fill(undefined, float("nan"))
    return Columns(tokens={request.name: shares, f"{request.name}.change": change})


def _change_by_deletion(view: AttentionView) -> Tensor:
    """Return the (B, T) changes of the output if one token is deleted."""
    return _total_variation_to_clean(view.batch.leave_one_out("deletion"), view)


def _change_by_dropped_state(view: AttentionView) -> Tensor:
    """Return the (B, T) changes of the output if the weight of one token is set to 0.

    The other weights are renormalised.
    """
    count, width = view.real.shape
    change = torch.full((count, width), torch.nan, dtype=torch.float64, device=view.device)
    rows, dropped = (view.real & (view.lengths > 1)[:, None]).nonzero(as_tuple=True)
    for start in range(0, width, view.variants_per_pass):
        stop = min(width, start + view.variants_per_pass)
        removed = torch.zeros((count, stop - start, width), dtype=torch.bool, device=view.device)
        removed[:, torch.arange(stop - start), torch.arange(start, stop)] = True
        chunk = _total_variation_to_clean(probabilities(view.logits_without_weights(removed)[0]), view)
        inside = (dropped >= start) & (dropped < stop)
        change[rows[inside], dropped[inside]] = chunk[rows[inside], dropped[inside] - start]
    return change


def _total_variation_to_clean(variants: Tensor, view: AttentionView) -> Tensor:
    """Return the (B, V) total variation between the clean output and the (B, V, C) class probabilities of V variants.

    It is 0 if the two differ by at most the rounding error of the logits.
    """
    clean = view.probabilities[:, None, :]
    same = equal_within_rounding(variants, clean, view.logits[:, None, :], view.precision)
    return (0.5 * (variants - clean).abs().sum(-1)).masked_fill(same, 0.0)


def equal_within_rounding(first: Tensor, second: Tensor, logits: Tensor, precision: str) -> Tensor:
    """Return a (...) mask, True where two outputs differ by at most the rounding error of the logits.

    Args:
        first: (..., C) class probabilities.
        second: (..., C) class probabilities.
        logits: (..., C) logits of the clean pass. Their size determines the rounding error.
        precision: the floating-point type in which the model computes (see `Capabilities.precision`).
    """
    rounding = logit_rounding(precision) * logits.abs().amax(-1).clamp(min=1)
    return (first.log() - second.log()).abs().amax(-1) <= rounding
