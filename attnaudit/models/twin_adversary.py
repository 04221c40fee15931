"""The trained adversary of Wiegreffe & Pinter 2019 (§5): a twin that answers as a base model does, while its attention
goes elsewhere: L = TVD(ŷ_twin, ŷ_base) - λ KL(α_twin ‖ α_base)."""

from __future__ import annotations

import torch
from torch import Tensor

from attnaudit.errors import AuditError, nearest
from attnaudit.metrics.divergence import divergence_of_distributions
from attnaudit.models.pooled_classifier import Pass, PooledClassifier
from attnaudit.models.training import Distance, Objective
from attnaudit.retraining import DIVERGENCES


def probabilities(logits: Tensor) -> Tensor:
    """(B, C) class probabilities; one logit is a sigmoid."""
    if logits.shape[1] == 1:
        positive = torch.sigmoid(logits)
        return torch.cat([1 - positive, positive], dim=1)
    return logits.softmax(dim=1)


def twin_loss(base: PooledClassifier, *, weight: float, divergence: str = "kl") -> Distance:
    """The loss (B,) of a twin of `base`, which takes no part in training: TVD of the outputs - weight (λ) times the
    divergence of the attentions, in nats over the tokens that may be attended to: "kl" is KL(α_twin ‖ α_base), with
    α_base kept above 1e-9 (Wiegreffe & Pinter 2019; Wen et al. 2022), "jsd" the Jensen-Shannon divergence (Tutek &
    Šnajder 2020). TVD is over both classes: Wiegreffe & Pinter's code halves it for one sigmoid output, so its λ is
    half of this one's. Raises AuditError for an unknown divergence."""
    if divergence not in DIVERGENCES:
        raise AuditError(f"Unknown divergence '{divergence}'. {nearest(divergence, DIVERGENCES)}")
    answers = _Answers(base)

    def of(model: PooledClassifier, traced: Pass) -> Tensor:
        logits, weights = answers.once(traced) if model.word_dropout == 0 else answers.anew(traced)
        distance = 0.5 * (probabilities(traced.logits) - probabilities(logits)).abs().sum(dim=1)
        return distance - weight * _divergence(divergence, traced.weights, weights)

    return of


class _Answers:
    """A base model's logits (B, C) and weights (B, T) in evaluation mode, without a graph. What `once` has seen is kept
    (a number for each token and class): the base does not change from epoch to epoch, and runs a text one time."""

    def __init__(self, base: PooledClassifier) -> None:
        self._base = base.eval()
        self._known: dict[tuple[bytes, ...], tuple[Tensor, Tensor]] = {}

    @torch.no_grad()
    def anew(self, traced: Pass) -> tuple[Tensor, Tensor]:
        wanted = self._base.trace(traced.ids, traced.mask, traced.special, traced.query)
        return wanted.logits, wanted.weights

    def once(self, traced: Pass) -> tuple[Tensor, Tensor]:
        keys = [_read(traced, row) for row in range(len(traced.ids))]
        if any(key not in self._known for key in keys):
            logits, weights = self.anew(traced)
            for row, key in enumerate(keys):
                self._known[key] = (logits[row].clone(), weights[row][traced.mask[row]])
            return logits, weights
        kept = [self._known[key] for key in keys]
        weights = torch.zeros_like(traced.weights)
        weights[traced.mask] = torch.cat([of_tokens for _, of_tokens in kept])
        return torch.stack([of_classes for of_classes, _ in kept]), weights


def _read(traced: Pass, row: int) -> tuple[bytes, ...]:
    """All that a base model reads of one row, without its padding."""
    mask, query = traced.mask[row], traced.query
    read = [traced.ids[row][mask], traced.special[row][mask]]
    if query is not None:
        read.append(query.ids[row][query.mask[row]])
        read += [] if query.open is None else [query.open[row]]
    return tuple(part.numpy().tobytes() for part in read)


def twin_objective(base: PooledClassifier, *, weight: float, divergence: str = "kl") -> Objective:
    """The mean of `twin_loss` over a batch, to train with."""
    loss = twin_loss(base, weight=weight, divergence=divergence)

    def of(model: PooledClassifier, traced: Pass, _targets: Tensor, _loss: Tensor) -> Tensor:
        return loss(model, traced).mean()

    return of


def _divergence(name: str, ours: Tensor, theirs: Tensor) -> Tensor:
    """(B,) in nats."""
    if name == "jsd":
        return divergence_of_distributions(ours, theirs)
    ratio = torch.log(ours.clamp(min=1e-9)) - torch.log(theirs.clamp(min=1e-9))
    return (ours * ratio).sum(dim=1)
