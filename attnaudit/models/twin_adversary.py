"""The trained adversary of Wiegreffe & Pinter 2019, §4.

The adversary is a twin of a base model. It is trained to give the same outputs with different attention. Its loss is
L = TVD(ŷ_twin, ŷ_base) - λ KL(α_twin ‖ α_base), where TVD is the total variation distance between the class
probabilities ŷ, and α are the attention weights.
"""

from __future__ import annotations

import torch
from torch import Tensor

from attnaudit.errors import AuditError, nearest
from attnaudit.metrics.divergence import divergence_of_distributions
from attnaudit.models.pooled_classifier import ForwardPass, PooledClassifier
from attnaudit.models.training_job import InstanceLoss, Objective
from attnaudit.retraining import DIVERGENCES

#: Attention weights below this value are replaced by it before their logarithm is computed.
_SMALLEST_WEIGHT = 1e-9


def probabilities(logits: Tensor) -> Tensor:
    """Convert logits (B, C) to class probabilities (B, C). A single logit (B, 1) gives two classes (B, 2)."""
    if logits.shape[1] == 1:
        positive = torch.sigmoid(logits)
        return torch.cat([1 - positive, positive], dim=1)
    return logits.softmax(dim=1)


def twin_loss(base: PooledClassifier, *, weight: float, divergence: str = "kl") -> InstanceLoss:
    """Return a function that computes the (B,) losses of a twin: TVD minus λ times the divergence.

    A twin is a copy of `base` that is trained to have the same outputs with different attention. TVD is the total
    variation distance between the outputs of the twin and of `base`, over all classes. For a single sigmoid output, the
    published code of Wiegreffe & Pinter 2019 uses half of this TVD. Their λ therefore corresponds to 2λ here.

    Args:
        base: The base model, which is not trained.
        weight: λ, the weight of the divergence.
        divergence: "kl" for KL(α_twin ‖ α_base), with weights below 1e-9 replaced by 1e-9 (Wiegreffe & Pinter 2019; Wen
            et al. 2022). "jsd" for the Jensen-Shannon divergence (Tutek & Šnajder 2020). Both are in nats and cover the
            tokens that may receive attention.

    Raises:
        AuditError: The divergence is unknown.
    """
    if divergence not in DIVERGENCES:
        raise AuditError(f"Unknown divergence '{divergence}'. {nearest(divergence, DIVERGENCES)}")
    base_outputs = _BaseOutputs(base)

    def loss(model: PooledClassifier, traced: ForwardPass) -> Tensor:
        # Word dropout changes a text from epoch to epoch, so outputs for the changed text are not cached.
        logits, weights = base_outputs.cached(traced) if model.word_dropout == 0 else base_outputs.compute(traced)
        distance = 0.5 * (probabilities(traced.logits) - probabilities(logits)).abs().sum(dim=1)
        return distance - weight * _attention_divergence(divergence, traced.weights, weights)

    return loss


class _BaseOutputs:
    """The logits (B, C) and attention weights (B, T) of a base model, in evaluation mode and without gradients.

    The base model does not change while the twin is trained. `cached` therefore stores its outputs for each text, and
    runs it only for batches that contain a new text.
    """

    def __init__(self, base: PooledClassifier) -> None:
        self._base = base.eval()
        self._cache: dict[tuple[bytes, ...], tuple[Tensor, Tensor]] = {}

    @torch.no_grad()
    def compute(self, traced: ForwardPass) -> tuple[Tensor, Tensor]:
        base_pass = self._base.trace(traced.ids, traced.mask, traced.special, traced.query)
        return base_pass.logits, base_pass.weights

    def cached(self, traced: ForwardPass) -> tuple[Tensor, Tensor]:
        keys = [_row_key(traced, row) for row in range(len(traced.ids))]
        if any(key not in self._cache for key in keys):
            logits, weights = self.compute(traced)
            for row, key in enumerate(keys):
                self._cache[key] = (logits[row].clone(), weights[row][traced.mask[row]])
            return logits, weights
        outputs = [self._cache[key] for key in keys]
        weights = torch.zeros_like(traced.weights)
        weights[traced.mask] = torch.cat([row_weights for _, row_weights in outputs])
        return torch.stack([row_logits for row_logits, _ in outputs]), weights


def _row_key(traced: ForwardPass, row: int) -> tuple[bytes, ...]:
    """Return the key of a row in the cache: all inputs of the base model in this row, without padding."""
    mask, query = traced.mask[row], traced.query
    tensors = [traced.ids[row][mask], traced.special[row][mask]]
    if query is not None:
        tensors.append(query.ids[row][query.mask[row]])
        if query.open_classes is not None:
            tensors.append(query.open_classes[row])
    return tuple(tensor.numpy().tobytes() for tensor in tensors)


def twin_objective(base: PooledClassifier, *, weight: float, divergence: str = "kl") -> Objective:
    """Return an objective for `TrainingJob`: the mean of `twin_loss` over the batch. It ignores the labels.

    The arguments and errors are the same as those of `twin_loss`.
    """
    loss = twin_loss(base, weight=weight, divergence=divergence)

    def objective(model: PooledClassifier, traced: ForwardPass, _targets: Tensor, _loss: Tensor) -> Tensor:
        return loss(model, traced).mean()

    return objective


def _attention_divergence(name: str, twin_weights: Tensor, base_weights: Tensor) -> Tensor:
    """Return the (B,) divergences, in nats, between the weights (B, T) of the twin and of the base model."""
    if name == "jsd":
        return divergence_of_distributions(twin_weights, base_weights)
    log_ratio = torch.log(twin_weights.clamp(min=_SMALLEST_WEIGHT)) - torch.log(
        base_weights.clamp(min=_SMALLEST_WEIGHT)
    )
    return (twin_weights * log_ratio).sum(dim=1)
