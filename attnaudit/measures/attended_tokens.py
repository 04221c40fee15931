"""Measure how much of the output the attended tokens of a text give alone, while the attention weights are held fixed.

Attention may be on a token that only collects what other tokens contribute, such as a separator into whose state an
earlier layer copies them. If the other tokens are masked, such a token has nothing left to contribute.
"""

from __future__ import annotations

import torch
from torch import Tensor

from attnaudit.engine.batches.logits import centred_logits, without_rounding
from attnaudit.measures import AttentionView, Columns, Request, measure
from attnaudit.measures.erasure_curves import first, ranked

#: The attended tokens have at least this share of the attention.
ATTENDED = 0.8


def attended(view: AttentionView) -> Tensor:
    """Return a mask (B, T), True at the fewest units that together have at least 80% of the attention.

    Of several units with equal weights, random ones are taken.
    """
    order = ranked(view, view.attention)
    weights = torch.where(view.real, view.attention, 0.0).double().gather(1, order)
    total = weights.sum(1, keepdim=True)
    # A share that misses 80% by rounding only is not missed.
    before = weights.cumsum(1) - weights < (ATTENDED - 1e-6) * total
    return first(order, before.sum(1, keepdim=True))[:, 0] & view.real


@measure("attended_tokens", capabilities=("mask",), one_site=True)
def attended_tokens(view: AttentionView, request: Request) -> Columns:
    """Return how the output changes if all tokens that are not attended are masked.

    The output is the vector of the logits minus their mean over the classes. The attention that is shown keeps its
    weights. All columns are undefined for texts with a single token:

    * `.change`: the output if the tokens outside the attended ones (see `attended`) are masked, minus the output of the
      text. It is 0 for classes that are not possible answers.
    * `.number`: the number of attended tokens.
    * `.kept`, per token: 1 for attended tokens, 0 for all others.
    """
    clean = view.logits[:, None]
    variant = clean.clone()
    several = view.lengths > 1
    rows = several.nonzero()[:, 0]
    keep = attended(view)
    if len(rows):
        variant[rows, 0] = view.masked_with_attention_held(rows, keep[rows]).to(variant.dtype)
    open_classes = None if view.open_classes is None else view.open_classes[:, None]
    change = centred_logits(without_rounding(variant, clean), open_classes) - centred_logits(clean, open_classes)
    change = change.masked_fill(view.equal_to_clean(variant)[..., None], 0.0)[:, 0]
    return Columns(
        scalars={f"{request.name}.number": keep.sum(1).double().masked_fill(~several, torch.nan)},
        tokens={f"{request.name}.kept": keep.double().masked_fill(~several[:, None], torch.nan)},
        vectors={f"{request.name}.change": change.masked_fill(~several[:, None], torch.nan)},
    )
