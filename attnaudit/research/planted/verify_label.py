"""Measure whether a planted model is as faithful or unfaithful as intended. If it is not, it gets no label.

The rank agreement is Kendall's τ-b of attention with the magnitudes of the contributions. It is computed for each
instance over its real tokens, and averaged over the instances on which it is defined.

An intervention verifies the contributions. It replaces the embedding of one token by zeros, which carry no evidence by
construction. Attention keeps the weights that it has without the intervention. The change of the logit is measured. No
check of an audit uses this intervention. Checks delete or substitute tokens, or drop states and renormalise the
weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import torch
from torch import Tensor

from attnaudit.adapters.pooled.pooled_adapter import PooledAttentionAdapter
from attnaudit.adapters.protocol import TEXT
from attnaudit.instances import Dataset, Instance
from attnaudit.metrics import kendall_tau_b
from attnaudit.models.planted_states import PlantedEncoder
from attnaudit.models.pooled_classifier import PooledClassifier
from attnaudit.models.vocabulary import Vocabulary
from attnaudit.research.planted.construction import logit_terms
from attnaudit.research.planted.kind import Kind, Recipe

#: The smallest rank agreement of a faithful model, and the largest rank agreement of an unfaithful model.
FAITHFUL_MINIMUM, UNFAITHFUL_MAXIMUM = 0.9, 0.1
#: The intervention must confirm the order of at least this share of the token pairs with different contributions.
CONFIRMED_MINIMUM = 0.9
#: A bypass must account for at least this share of the logit's variance.
BYPASS_MINIMUM = 0.95
#: A model with a lower accuracy than this has learned nothing.
ACCURACY_MINIMUM = 0.6
#: The accuracy of a deceptive model may be lower than that of its reference by at most this much.
ACCURACY_LOSS_MAXIMUM = 0.03
#: The rank agreement must be defined on at least this share of the instances.
DEFINED_MINIMUM = 0.8
INTERVENTION = "neutral_embedding_with_attention_held"
_BATCH = 100
#: An effect counts as a rounding error if it is at most this share of the largest effect in the same instance.
_ROUNDING = 1e-10


class ExchangeEvidence(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of exchanging tokens between texts whose predicted classes differ. Attention weights are held fixed.

    Attributes:
        attended: The share of texts whose decision becomes that of the donor if the tokens that hold the attention are
            exchanged. None if no text could be exchanged. If the share of a graded model is one of the evidence, this
            is the change of the logits, divided by the change if all tokens are exchanged.
        rest: The same if all other tokens are exchanged. None also if no text has other tokens.
        rows: The number of texts in which tokens were exchanged.
        states: The share of texts whose decision becomes that of the donor if the states at the attended tokens are
            exchanged, instead of the tokens themselves. None if it was not measured (see `verify_context`).
        alone: The share of tokens whose state alone gives the predicted class of their text. None if it was not
            measured.
    """

    attended: float | None
    rest: float | None
    rows: int
    states: float | None = None
    alone: float | None = None


class LabelEvidence(msgspec.Struct, frozen=True, kw_only=True):
    """The measurements that decide whether a planted model gets its label.

    For a model of unknown truth ("trend"), only the accuracy is measured.

    Attributes:
        rank_agreement: The mean τ-b of attention with the magnitudes of the known contributions. None if it is
            undefined on all instances, or not measured.
        effect_agreement: The mean τ-b of attention with the magnitudes of the measured effects. None if it is
            undefined on all instances, or was not measured.
        defined: The share of instances on which the rank agreement is defined. 0 if it was not measured.
        confirmed: The share of token pairs that effects and contributions order in the same way, averaged over
            instances. None if it is undefined on all instances, or was not measured.
        accuracy: The share of instances whose predicted class is their label.
        reference_accuracy: The accuracy of the reference, the same model without deception. None if the recipe has no
            reference.
        bypass_share: The share of the logit's variance that is due to the evidence of the whole text. None if no hidden
            state carries such evidence, or if it was not measured.
        unmet: The requirements of the label that are not met, as text. The list is empty if the model gets its label.
        exchange: The outcome of exchanging tokens between texts (see `verify_exchange`). None if it was not measured.
    """

    rank_agreement: float | None
    effect_agreement: float | None
    defined: float
    confirmed: float | None
    accuracy: float
    reference_accuracy: float | None
    bypass_share: float | None
    unmet: list[str]
    exchange: ExchangeEvidence | None = None


@dataclass(frozen=True, slots=True)
class _BatchEvidence:
    """The measurements on one batch.

    Attributes:
        real: (B, T) True at real tokens.
        weights: (B, T) attention weights.
        contribution: (B, T) magnitude of the contribution that is known by construction.
        effect: (B, T) magnitude of the effect that the intervention measures.
        own: (B,) part of the logit that comes from the tokens' own evidence.
        text: (B,) part of the logit that comes from the evidence of the whole text.
    """

    real: Tensor
    weights: Tensor
    contribution: Tensor
    effect: Tensor
    own: Tensor
    text: Tensor


def verify_label(
    kind: Kind,
    recipe: Recipe,
    model: PooledClassifier,
    vocabulary: Vocabulary,
    adapter: PooledAttentionAdapter,
    data: Dataset,
    *,
    reference_accuracy: float | None = None,
) -> LabelEvidence:
    """Measure a stored model, and compare the measurements with the requirements of its label.

    The model and the adapter are converted to float64 in place. Rounding then does not determine the ranks of tiny
    weights.

    Args:
        kind: The kind of the model.
        recipe: The recipe by which the model was made.
        model: The stored model.
        vocabulary: The vocabulary of the model.
        adapter: The adapter of the same checkpoint.
        data: The instances to measure on.
        reference_accuracy: The accuracy of the reference, the same model without deception. None if the recipe has no
            reference.
    """
    accuracy = accuracy_of(adapter, data)
    for module in (model, *adapter.modules):
        module.double()
    if recipe.contribution is None:
        return LabelEvidence(
            rank_agreement=None,
            effect_agreement=None,
            defined=0.0,
            confirmed=None,
            accuracy=accuracy,
            reference_accuracy=reference_accuracy,
            bypass_share=None,
            unmet=[],
        )
    batches = [_measure_batch(recipe, model, vocabulary, adapter, batch) for batch in in_batches(data)]
    taus = torch.cat([kendall_tau_b(batch.weights, batch.contribution, batch.real) for batch in batches])
    effect_taus = torch.cat([kendall_tau_b(batch.weights, batch.effect, batch.real) for batch in batches])
    bypass_share = None
    if isinstance(model.encoder, PlantedEncoder) and model.encoder.planted.label != "nowhere":
        text_variance = torch.cat([batch.text for batch in batches]).var().item()
        own_variance = torch.cat([batch.own for batch in batches]).var().item()
        bypass_share = text_variance / (text_variance + own_variance)
    evidence = LabelEvidence(
        rank_agreement=_mean(taus),
        effect_agreement=_mean(effect_taus),
        defined=taus.isfinite().double().mean().item(),
        confirmed=_mean(torch.cat([_same_order_share(batch) for batch in batches])),
        accuracy=accuracy,
        reference_accuracy=reference_accuracy,
        bypass_share=bypass_share,
        unmet=[],
    )
    return msgspec.structs.replace(evidence, unmet=unmet_requirements(kind, evidence))


def unmet_requirements(kind: Kind, evidence: LabelEvidence) -> list[str]:
    """Return the requirements of a label that a model does not meet, as text. The label "trend" has none.

    Args:
        kind: The kind of the model.
        evidence: The measurements on the model.
    """
    if kind.truth == "trend":
        return []
    unmet = []
    for name, value in (
        ("rank agreement", evidence.rank_agreement),
        ("agreement with the effect", evidence.effect_agreement),
    ):
        if value is None:
            unmet.append(f"{name} is undefined")
        elif kind.truth == "faithful" and value < FAITHFUL_MINIMUM:
            unmet.append(f"{name} {value:.3f} is below {FAITHFUL_MINIMUM}")
        elif kind.truth == "unfaithful" and value > UNFAITHFUL_MAXIMUM:
            unmet.append(f"{name} {value:.3f} is above {UNFAITHFUL_MAXIMUM}")
    if evidence.defined < DEFINED_MINIMUM:
        unmet.append(
            f"rank agreement is defined on {evidence.defined:.0%} of the instances, expected {DEFINED_MINIMUM:.0%} or "
            "more"
        )
    if evidence.confirmed is None or evidence.confirmed < CONFIRMED_MINIMUM:
        share = evidence.confirmed or 0
        unmet.append(
            f"the intervention confirms the order of {share:.3f} of the pairs of tokens, expected {CONFIRMED_MINIMUM} "
            "or more"
        )
    if kind.needs_bypass and (evidence.bypass_share is None or evidence.bypass_share < BYPASS_MINIMUM):
        share = evidence.bypass_share or 0
        unmet.append(f"the bypass accounts for {share:.3f} of the logit's variance, expected {BYPASS_MINIMUM} or more")
    if evidence.accuracy < ACCURACY_MINIMUM:
        unmet.append(f"accuracy {evidence.accuracy:.3f} is below {ACCURACY_MINIMUM}")
    reference = evidence.reference_accuracy
    if reference is not None and evidence.accuracy < reference - ACCURACY_LOSS_MAXIMUM:
        unmet.append(f"accuracy is {evidence.accuracy:.3f}, but {reference:.3f} without deceptive training")
    return unmet


@torch.no_grad()
def accuracy_of(adapter: PooledAttentionAdapter, data: Dataset) -> float:
    """Return the share of instances whose predicted class is their label. Unlabelled instances count as wrong."""
    correct = 0
    for batch in in_batches(data):
        logits = adapter.run(adapter.collate(batch)).logits
        predicted = (logits[:, 0] > 0).long() if logits.shape[1] == 1 else logits.argmax(dim=1)
        correct += sum(
            adapter.capabilities.classes[index] == instance.label
            for index, instance in zip(predicted.tolist(), batch, strict=True)
        )
    return correct / len(data.instances)


@torch.no_grad()
def neutral_effect(adapter: PooledAttentionAdapter, batch: Sequence[Instance]) -> Tensor:
    """Measure the effect of each token on the logit of the last class.

    The embedding of one token at a time is replaced by zeros, while attention keeps its original weights.

    Returns:
        (B, T) The decrease of the logit, positive if the logit falls. It is 0 at tokens that are not real.
    """
    inputs = adapter.collate(batch)
    clean = adapter.run(inputs)
    (site,) = adapter.sites()
    embedded = adapter.embed(inputs)[TEXT]
    effect = torch.zeros(embedded.shape[:2], dtype=embedded.dtype)
    for position in range(embedded.shape[1]):
        if not bool(inputs.real()[:, position].any()):
            continue
        changed = embedded.clone()
        changed[:, position] = 0.0
        run = adapter.run(inputs, embeddings={TEXT: changed}, intervene=lambda *_: clean.attention[site.key])
        effect[:, position] = clean.logits[:, -1] - run.logits[:, -1]
    return effect * inputs.real()


def _mean(values: Tensor) -> float | None:
    finite = values[values.isfinite()]
    return finite.double().mean().item() if len(finite) else None


def in_batches(data: Dataset) -> list[list[Instance]]:
    """Return the instances in batches. The texts of a batch have similar lengths."""
    by_length = sorted(data.instances, key=lambda instance: (len(instance.text.split()), instance.id))
    return [by_length[start : start + _BATCH] for start in range(0, len(by_length), _BATCH)]


@torch.no_grad()
def _measure_batch(
    recipe: Recipe,
    model: PooledClassifier,
    vocabulary: Vocabulary,
    adapter: PooledAttentionAdapter,
    batch: Sequence[Instance],
) -> _BatchEvidence:
    assert recipe.contribution is not None
    inputs = adapter.collate(batch)
    traced = model.trace(inputs.ids[TEXT], inputs.mask[TEXT], inputs.special[TEXT])
    real = inputs.real()
    contribution = recipe.contribution(model, vocabulary, traced).abs() * real
    own, text = torch.zeros(len(batch)), torch.zeros(len(batch))
    if isinstance(model.encoder, PlantedEncoder):
        own, text = (term.sum(dim=1) for term in logit_terms(model, traced))
    return _BatchEvidence(
        real=real,
        weights=traced.weights,
        contribution=contribution,
        effect=_without_rounding_errors(neutral_effect(adapter, batch).abs()),
        own=own,
        text=text,
    )


def _without_rounding_errors(values: Tensor) -> Tensor:
    """Set a value to zero if it is tiny in comparison with the largest value of its row."""
    return values.masked_fill(values <= _ROUNDING * values.amax(dim=1, keepdim=True), 0.0)


def _same_order_share(evidence: _BatchEvidence) -> Tensor:
    """Compare the order of the effects with the order of the contributions, over pairs of real tokens of an instance.

    Returns:
        (B,) The share of the pairs with different contributions that the effects order in the same way. A pair with
        equal effects counts as one half. NaN if all contributions of an instance are equal.
    """
    higher = evidence.contribution[:, :, None] > evidence.contribution[:, None, :]
    pairs = evidence.real[:, :, None] & evidence.real[:, None, :] & higher
    gap = evidence.effect[:, :, None] - evidence.effect[:, None, :]
    same_order = ((gap > 0).double() + 0.5 * (gap == 0).double()) * pairs
    return same_order.sum(dim=(1, 2)) / pairs.sum(dim=(1, 2))
