"""Measures of single hidden states: the prediction from one state alone, and the similarity of the states."""

from __future__ import annotations

import torch

from attnaudit.engine.batches.logits import probabilities
from attnaudit.measures import AttentionView, Columns, Request, measure


@measure("token_probability")
def token_probability(view: AttentionView, request: Request) -> Columns:
    """Return the probability of the predicted class if the decoder reads the hidden state of a single token.

    The single token gets all attention weight. Source: Tutek & Šnajder 2020, §5. The columns are:

    * `<name>`: the mean of this probability over the real tokens.
    * `.alone`: this probability for each token (figure 2 of the paper).
    * `.whole`: the probability for the whole input.

    All columns are defined even for texts with one token.
    """
    rows, width = view.real.shape
    alone = torch.zeros((rows, width), dtype=torch.float64, device=view.device)
    step = view.variants_per_pass
    for start in range(0, width, step):
        positions = torch.arange(start, min(width, start + step), device=view.device)
        shares = torch.zeros((rows, len(positions), width), dtype=torch.float64, device=view.device)
        shares[:, torch.arange(len(positions), device=view.device), positions] = 1.0
        output = probabilities(view.logits_without_special_weights(shares))
        index = view.predicted[:, None, None].expand(*output.shape[:2], 1)
        alone[:, positions] = output.gather(2, index)[..., 0]
    whole = view.probabilities.gather(1, view.predicted[:, None])[:, 0]
    mean = (alone * view.real).sum(1) / view.lengths
    return Columns(
        scalars={request.name: mean, f"{request.name}.whole": whole},
        tokens={f"{request.name}.alone": alone},
    )


@measure("conicity")
def conicity(view: AttentionView, request: Request) -> Columns:
    """Return the conicity of the hidden states: the mean cosine of the real tokens' states to their mean state.

    The value is in [-1, 1]. A zero state has no direction, so its cosine counts as 0. The value is undefined for texts
    with one token, and for texts whose mean state is zero. The column `.orthogonal` is 1/√n, the conicity of n
    orthogonal states of equal length. Source: Mohankumar et al. 2020.
    """
    states = view.hidden.detach().double() * view.real[..., None]
    mean = states.sum(1) / view.lengths[:, None]
    mean_norm = mean.norm(dim=-1)
    norms = states.norm(dim=-1) * mean_norm[:, None]
    cosine = torch.where(norms > 0, (states * mean[:, None, :]).sum(-1) / norms.clamp_min(1e-300), 0.0)
    value = (cosine * view.real).sum(1) / view.lengths
    undefined = (view.lengths < 2) | (mean_norm <= 0)
    orthogonal = view.lengths.double().rsqrt()
    return Columns(
        scalars={
            request.name: value.masked_fill(undefined, torch.nan),
            f"{request.name}.orthogonal": orthogonal.masked_fill(undefined, torch.nan),
        }
    )
