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
    """Return how far the output moves if all tokens, or all tokens that are not attended, are masked.

    The output is the vector of the logits minus their mean over the classes. The attention that is shown keeps its
    weights. All columns are undefined for texts with a single token:

    * `.all`: the Euclidean distance between the output of the text, and that of a text of masked tokens.
    * `.others`: the distance if only the tokens outside the attended ones (see `attended`) are masked.
    * `.number`: the number of attended tokens.
    """
    clean = view.logits[:, None]
    variants = clean.repeat(1, 2, 1)
    rows = (view.lengths > 1).nonzero()[:, 0]
    keep = attended(view)
    if len(rows):
        kept = torch.cat([torch.zeros_like(keep[rows]), keep[rows]])
        logits = view.masked_with_attention_held(torch.cat([rows, rows]), kept)
        variants[rows] = torch.stack(torch.split(logits, len(rows)), dim=1).to(variants.dtype)
    open_classes = None if view.open_classes is None else view.open_classes[:, None].expand_as(variants)
    moved = centred_logits(without_rounding(variants, clean), open_classes) - centred_logits(clean, open_classes)
    distance = moved.norm(dim=-1).masked_fill(view.equal_to_clean(variants), 0.0)
    columns = {"all": distance[:, 0], "others": distance[:, 1], "number": keep.sum(1).double()}
    several = view.lengths > 1
    return Columns(
        scalars={f"{request.name}.{name}": column.masked_fill(~several, torch.nan) for name, column in columns.items()}
    )
