"""The trained adversary of Wiegreffe & Pinter 2019 (§5): a twin that answers as a base model does, while its attention
goes elsewhere: L = TVD(ŷ_twin, ŷ_base) - λ KL(α_twin ‖ α_base)."""

from __future__ import annotations

import torch
from torch import Tensor

from attnaudit.zoo.model import Pass, PooledClassifier
from attnaudit.zoo.training import Objective


def probabilities(logits: Tensor) -> Tensor:
    """(B, C) class probabilities; one logit is a sigmoid."""
    if logits.shape[1] == 1:
        positive = torch.sigmoid(logits)
        return torch.cat([1 - positive, positive], dim=1)
    return logits.softmax(dim=1)


def twin_objective(base: PooledClassifier, *, weight: float) -> Objective:
    """The loss of a twin of `base`, which takes no part in training. weight: λ. KL in nats over the tokens that may
    be attended to, with α_base kept above 1e-9. TVD is over both classes: the published code halves it for one
    sigmoid output, so its λ is half of this one's."""
    base.eval()

    def of(_model: PooledClassifier, traced: Pass, _targets: Tensor, _loss: Tensor) -> Tensor:
        with torch.no_grad():
            wanted = base.trace(traced.ids, traced.mask, traced.special)
        distance = 0.5 * (probabilities(traced.logits) - probabilities(wanted.logits)).abs().sum(dim=1)
        ratio = torch.log(traced.weights.clamp(min=1e-9)) - torch.log(wanted.weights.clamp(min=1e-9))
        divergence = (traced.weights * ratio).sum(dim=1)
        return (distance - weight * divergence).mean()

    return of
