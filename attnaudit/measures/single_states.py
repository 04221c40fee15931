"""What single hidden states tell: the prediction from one state alone, and how alike the states are."""

from __future__ import annotations

import torch

from attnaudit.engine.attention_view import AttentionView
from attnaudit.engine.batch import probabilities
from attnaudit.engine.columns import Columns, Measure, PerBatch
from attnaudit.measures.prediction import no_argument
from attnaudit.registry import measures


class TokenProbability(PerBatch):
    """Mean over the real tokens of the probability of the predicted class when the decoder is applied to that token's
    state alone (T §5). .alone: that probability, token by token (T figure 2). .whole: the probability of the predicted
    class from the whole input. Also defined for one token."""

    def compute(self, view: AttentionView, columns: Columns) -> Columns:
        rows, width = view.real.shape
        found = torch.zeros((rows, width), dtype=torch.float64, device=view.device)
        step = view.at_once
        for start in range(0, width, step):
            here = torch.arange(start, min(width, start + step), device=view.device)
            alone = torch.zeros((rows, len(here), width), dtype=torch.float64, device=view.device)
            alone[:, torch.arange(len(here), device=here.device), here] = 1.0
            output = probabilities(view.alone(alone))
            index = view.predicted[:, None, None].expand(*output.shape[:2], 1)
            found[:, here] = output.gather(2, index)[..., 0]
        whole = view.probabilities.gather(1, view.predicted[:, None])[:, 0]
        mean = (found * view.real).sum(1) / view.lengths
        return Columns(
            scalars={self.name: mean, f"{self.name}.whole": whole},
            tokens={f"{self.name}.alone": found},
        )


class Conicity(PerBatch):
    """Mean cosine of the real tokens' states to their mean (Mohankumar et al. 2020), in [-1, 1]. .orthogonal: 1/√n,
    what n orthogonal states of one length have. A zero state has no direction and counts 0. Undefined with one token,
    and where the mean state is zero."""

    def compute(self, view: AttentionView, columns: Columns) -> Columns:
        states = view.hidden.detach().double() * view.real[..., None]
        mean = states.sum(1) / view.lengths[:, None]
        length = mean.norm(dim=-1)
        norms = states.norm(dim=-1) * length[:, None]
        cosine = torch.where(norms > 0, (states * mean[:, None, :]).sum(-1) / norms.clamp_min(1e-300), 0.0)
        conicity = (cosine * view.real).sum(1) / view.lengths
        undefined = (view.lengths < 2) | (length <= 0)
        orthogonal = view.lengths.double().rsqrt()
        return Columns(
            scalars={
                self.name: conicity.masked_fill(undefined, torch.nan),
                f"{self.name}.orthogonal": orthogonal.masked_fill(undefined, torch.nan),
            }
        )


@measures.register("token_probability")
def token_probability(argument: str) -> Measure:
    return TokenProbability(name=no_argument("token_probability", argument))


@measures.register("conicity")
def conicity(argument: str) -> Measure:
    return Conicity(name=no_argument("conicity", argument))
