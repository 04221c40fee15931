"""Leave-one-out: how far the output moves when one token is gone (M eq. 6; JW code).

At inputs the token is deleted and the rest encoded again; at hidden states h_i is dropped and the remaining attention
renormalised, h fixed. The change is the total variation between the two class vectors, differences in float64. What
the logits' float32 cannot tell from no change is none: tokens that do nothing then tie, as they should.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from attnaudit.engine.attention_view import AttentionView
from attnaudit.engine.batch import probabilities
from attnaudit.engine.columns import Columns, Measure, PerBatch
from attnaudit.errors import CheckError, nearest
from attnaudit.measures.gradient import normalised
from attnaudit.registry import measures

#: Rounding of a float32 logit, as a share of the largest logit or of 1: batch mates alone move it up to half as far.
ROUNDING = 4 * torch.finfo(torch.float32).eps


def _change(variants: Tensor, view: AttentionView) -> Tensor:
    """(B, T, C) class probabilities -> (B, T) total variation to the clean ones."""
    clean = view.probabilities[:, None, :]
    rounding = ROUNDING * view.logits.abs().amax(1, keepdim=True).clamp(min=1)
    same = (variants.log() - clean.log()).abs().amax(-1) <= rounding
    return (0.5 * (variants - clean).abs().sum(-1)).masked_fill(same, 0.0)


def _columns(name: str, change: Tensor, real: Tensor) -> Columns:
    undefined = (change.isnan() & real).any(1, keepdim=True)
    scores = normalised(change.nan_to_num(0.0), real).masked_fill(undefined, float("nan"))
    return Columns(tokens={name: scores, f"{name}.change": change})


class DeleteToken(PerBatch):
    """Physical deletion on ids. Undefined with a single real token."""

    @property
    def depends_on_reading(self) -> bool:
        return False

    def compute(self, view: AttentionView, columns: Columns) -> Columns:
        return _columns(self.name, _change(view.batch.deleted, view), view.real)


@dataclass(frozen=True, kw_only=True)
class DropState(PerBatch):
    """h_i dropped, remaining weights renormalised. Where one token holds all attention nothing remains to
    renormalise: the context is then zero. Undefined with a single real token, as at inputs."""

    def compute(self, view: AttentionView, columns: Columns) -> Columns:
        count, t = view.real.shape
        found = torch.full((count, t), torch.nan, dtype=torch.float64, device=view.device)
        rows, gone = (view.real & (view.lengths > 1)[:, None]).nonzero(as_tuple=True)
        per_row = view.at_once
        for start in range(0, t, per_row):
            stop = min(t, start + per_row)
            dropped = torch.zeros((count, stop - start, t), dtype=torch.bool, device=view.device)
            dropped[:, torch.arange(stop - start), torch.arange(start, stop)] = True
            change = _change(probabilities(view.without(dropped)[0]), view)
            inside = (gone >= start) & (gone < stop)
            found[rows[inside], gone[inside]] = change[rows[inside], gone[inside] - start]
        return _columns(self.name, found, view.real)


@measures.register("leave_one_out")
def leave_one_out(argument: str) -> Measure:
    """leave_one_out.<place>"""
    forms: dict[str, type[DeleteToken] | type[DropState]] = {"inputs": DeleteToken, "hidden": DropState}
    if argument not in forms:
        raise CheckError(f"'leave_one_out.{argument}': expected .inputs or .hidden. {nearest(argument, forms)}")
    return forms[argument](name=f"leave_one_out.{argument}")
