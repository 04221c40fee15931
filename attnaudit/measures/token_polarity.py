"""Polarity: does removing the most attended token raise the probability of the predicted class? (Liu et al. 2022)"""

from __future__ import annotations

import torch

from attnaudit.engine.batches.logits import log_odds
from attnaudit.measures import AttentionView, Columns, Request, measure, one_of
from attnaudit.measures.erasure_curves import TIED


@measure("polarity", argument=one_of("deletion", "mask"), capabilities=lambda operator: (operator,))
def polarity(view: AttentionView, request: Request) -> Columns:
    """Return whether the most attended token speaks against the prediction.

    A token speaks against the prediction if removing it raises the probability of the predicted class. A change within
    the rounding error of the logits does not count. The columns are:

    * `.attention`: 1 if the most attended token speaks against the prediction, otherwise 0. If several tokens have the
      largest weight, it is the share of these tokens that speak against the prediction.
    * `.random`: the share of all tokens that speak against the prediction.

    Both columns are undefined for texts with one token, and for texts without attention on real tokens.
    """
    without = view.batch.logits_leaving_one_out(request.argument)
    # The log-odds rise if the probability does, also where the probability rounds to 1.
    predicted = view.predicted[:, None]
    rise = log_odds(without, predicted.expand(without.shape[:2])) - log_odds(view.logits[:, None], predicted)
    against = ((rise > 0) & ~view.equal_to_clean(without) & view.real).double()
    attention = torch.where(view.real, view.attention, 0.0)
    top = (view.real & (attention >= (1 - TIED) * attention.amax(1, keepdim=True))).double()
    undefined = (view.lengths < 2) | attention.isnan().any(1)
    shares = {"attention": (against * top).sum(1) / top.sum(1), "random": against.sum(1) / view.lengths}
    return Columns(
        scalars={f"{request.name}.{k}": share.masked_fill(undefined, torch.nan) for k, share in shares.items()}
    )
