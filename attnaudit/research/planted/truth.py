"""Is a planted model what its construction claims? Measured on the stored model, by an intervention of its own.

Rank agreement is Kendall's τ-b of attention with |contribution|, per instance over real tokens (ties count as ties),
mean over the instances where it is defined. Verification: one token's embedding is replaced by zeros (no evidence, by
construction) while attention is held at its clean values, and the change of the logit is read off the model itself.
No check of an audit does that: they delete, substitute, or drop states and renormalise.
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
from attnaudit.research.planted.construction import terms
from attnaudit.research.planted.kinds import Kind, Recipe

#: A faithful model agrees at least so much, an unfaithful one at most so much.
FAITHFUL, UNFAITHFUL = 0.9, 0.1
#: Share of token pairs, ordered by the claimed contribution, that the intervention must order alike.
CONFIRMED = 0.9
#: Share of the logit's variance that a deciding bypass carries.
DECIDES = 0.95
#: Accuracy below this says that nothing was learned; and how much less than its honest reference a model may have.
LEARNED, EQUAL_ACCURACY = 0.6, 0.03
#: Share of instances on which the agreement must be defined.
DEFINED = 0.8
INTERVENTION = "neutral_embedding_with_attention_held"
_BATCH = 100
#: Effects below this share of the instance's largest are rounding.
_ROUNDING = 1e-10


class Truth(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured. rank_agreement and effect_agreement: τ-b of attention with the claimed contribution and with
    the measured effect. confirmed: see CONFIRMED. reasons: the bars that were missed; empty if the label holds."""

    rank_agreement: float | None
    effect_agreement: float | None
    defined: float
    confirmed: float | None
    accuracy: float
    reference_accuracy: float | None
    bypass_share: float | None
    reasons: list[str]


@dataclass(frozen=True, slots=True)
class _Rows:
    """Of one batch, each (B, T) but the last three (B,)."""

    real: Tensor
    weights: Tensor
    claimed: Tensor
    effect: Tensor
    own: Tensor
    text: Tensor


def measure_truth(
    kind: Kind,
    recipe: Recipe,
    model: PooledClassifier,
    vocabulary: Vocabulary,
    adapter: PooledAttentionAdapter,
    data: Dataset,
    *,
    reference_accuracy: float | None = None,
) -> Truth:
    """Hold a stored model against the bars of its kind's label, on `data`. Turns model and adapter into float64, so
    that ranks of tiny weights are not rounding."""
    accuracy = accuracy_of(adapter, data)
    for module in (model, *adapter.modules):
        module.double()
    if recipe.contribution is None:
        return Truth(
            rank_agreement=None,
            effect_agreement=None,
            defined=0.0,
            confirmed=None,
            accuracy=accuracy,
            reference_accuracy=reference_accuracy,
            bypass_share=None,
            reasons=[],
        )
    agreement: list[Tensor] = []
    effects: list[Tensor] = []
    confirmed: list[Tensor] = []
    own: list[Tensor] = []
    text: list[Tensor] = []
    for batch in _batches(data):
        rows = _measure(recipe, model, vocabulary, adapter, batch)
        agreement.append(kendall_tau_b(rows.weights, rows.claimed, rows.real))
        effects.append(kendall_tau_b(rows.weights, rows.effect, rows.real))
        confirmed.append(_ordered_alike(rows))
        own.append(rows.own)
        text.append(rows.text)
    taus = torch.cat(agreement)
    share = None
    if isinstance(model.encoder, PlantedEncoder) and model.encoder.planted.label != "nowhere":
        of_text, of_own = torch.cat(text).var().item(), torch.cat(own).var().item()
        share = of_text / (of_text + of_own)
    found = Truth(
        rank_agreement=_mean(taus),
        effect_agreement=_mean(torch.cat(effects)),
        defined=taus.isfinite().double().mean().item(),
        confirmed=_mean(torch.cat(confirmed)),
        accuracy=accuracy,
        reference_accuracy=reference_accuracy,
        bypass_share=share,
        reasons=[],
    )
    return msgspec.structs.replace(found, reasons=missed(kind, found))


def missed(kind: Kind, found: Truth) -> list[str]:
    """The bars of the kind's label that the measured values miss, in words."""
    if kind.truth == "trend":
        return []
    reasons = []
    for name, value in (
        ("rank agreement", found.rank_agreement),
        ("agreement with the effect", found.effect_agreement),
    ):
        if value is None:
            reasons.append(f"{name} is undefined")
        elif kind.truth == "faithful" and value < FAITHFUL:
            reasons.append(f"{name} {value:.3f} is below {FAITHFUL}")
        elif kind.truth == "unfaithful" and value > UNFAITHFUL:
            reasons.append(f"{name} {value:.3f} is above {UNFAITHFUL}")
    if found.defined < DEFINED:
        reasons.append(f"defined on {found.defined:.0%} of the instances, expected {DEFINED:.0%}")
    if found.confirmed is None or found.confirmed < CONFIRMED:
        reasons.append(f"the intervention confirms {found.confirmed or 0:.3f} of the order, expected {CONFIRMED}")
    if kind.needs_share and (found.bypass_share is None or found.bypass_share < DECIDES):
        reasons.append(f"the bypass carries {found.bypass_share or 0:.3f} of the variance, expected {DECIDES}")
    if found.accuracy < LEARNED:
        reasons.append(f"accuracy {found.accuracy:.3f} is below {LEARNED}")
    if found.reference_accuracy is not None and found.accuracy < found.reference_accuracy - EQUAL_ACCURACY:
        reasons.append(f"accuracy {found.accuracy:.3f}, but {found.reference_accuracy:.3f} without the deception")
    return reasons


def _mean(values: Tensor) -> float | None:
    kept = values[values.isfinite()]
    return kept.double().mean().item() if len(kept) else None


def _batches(data: Dataset) -> list[list[Instance]]:
    ordered = sorted(data.instances, key=lambda one: (len(one.text.split()), one.id))
    return [ordered[start : start + _BATCH] for start in range(0, len(ordered), _BATCH)]


@torch.no_grad()
def accuracy_of(adapter: PooledAttentionAdapter, data: Dataset) -> float:
    """Share of labelled instances whose predicted class is their label."""
    right = 0
    for batch in _batches(data):
        logits = adapter.run(adapter.collate(batch)).logits
        answers = (logits[:, 0] > 0).long() if logits.shape[1] == 1 else logits.argmax(dim=1)
        right += sum(
            adapter.capabilities.classes[answer] == one.label
            for answer, one in zip(answers.tolist(), batch, strict=True)
        )
    return right / len(data.instances)


@torch.no_grad()
def _measure(
    recipe: Recipe,
    model: PooledClassifier,
    vocabulary: Vocabulary,
    adapter: PooledAttentionAdapter,
    batch: Sequence[Instance],
) -> _Rows:
    assert recipe.contribution is not None
    inputs = adapter.collate(batch)
    traced = model.trace(inputs.ids[TEXT], inputs.mask[TEXT], inputs.special[TEXT])
    real = inputs.real()
    claimed = recipe.contribution(model, vocabulary, traced).abs() * real
    own, text = torch.zeros(len(batch)), torch.zeros(len(batch))
    if isinstance(model.encoder, PlantedEncoder):
        own, text = (term.sum(dim=1) for term in terms(model, traced))
    return _Rows(
        real=real,
        weights=traced.weights,
        claimed=claimed,
        effect=_rounded(neutral_effect(adapter, batch).abs()),
        own=own,
        text=text,
    )


@torch.no_grad()
def neutral_effect(adapter: PooledAttentionAdapter, batch: Sequence[Instance]) -> Tensor:
    """(B, T): how far the (last) logit falls when a token's embedding is zeros and attention is held; 0 elsewhere."""
    inputs = adapter.collate(batch)
    clean = adapter.run(inputs)
    (site,) = adapter.sites()
    embedded = adapter.embed(inputs)[TEXT]
    effect = torch.zeros(embedded.shape[:2], dtype=embedded.dtype)
    for place in range(embedded.shape[1]):
        if not bool(inputs.real()[:, place].any()):
            continue
        changed = embedded.clone()
        changed[:, place] = 0.0
        run = adapter.run(inputs, embeddings={TEXT: changed}, intervene=lambda *_: clean.attention[site.key])
        effect[:, place] = clean.logits[:, -1] - run.logits[:, -1]
    return effect * inputs.real()


def _rounded(values: Tensor) -> Tensor:
    """Zero where a value is rounding beside the row's largest."""
    return values.masked_fill(values <= _ROUNDING * values.amax(dim=1, keepdim=True), 0.0)


def _ordered_alike(rows: _Rows) -> Tensor:
    """(B,) of the pairs that differ in claimed contribution, the share whose effects differ the same way; a tie is a
    half. NaN where no pair differs."""
    pairs = rows.real[:, :, None] & rows.real[:, None, :] & (rows.claimed[:, :, None] > rows.claimed[:, None, :])
    gap = rows.effect[:, :, None] - rows.effect[:, None, :]
    alike = ((gap > 0).double() + 0.5 * (gap == 0).double()) * pairs
    return alike.sum(dim=(1, 2)) / pairs.sum(dim=(1, 2))
