"""Train small Transformers to have a known circuit, as InterpBench does (Gupta et al. 2024).

Three terms are added to the loss of the classifier:

* The attention patterns of all heads are supervised, so that not only the effect of the heads but also their weights
  are known.
* Interchange-intervention training (Geiger et al. 2022): if the output of the head that should decide is taken from
  another text, the prediction must be the label of this other text.
* If the outputs of the heads that should not decide are taken from another text, the prediction must not change.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from attnaudit.research.planted_transformers.circuit_parts import Family, LabelledReading
from attnaudit.research.planted_transformers.circuit_texts import CLASS_NAMES, Rows
from attnaudit.research.planted_transformers.compile_weights import new_model
from attnaudit.research.planted_transformers.interchange import hooked_values

LAYERS, HEADS, WIDTH = 2, 2, 32
#: Steps of training, texts per step, and learning rate.
STEPS, BATCH, LEARNING_RATE = 240, 32, 2e-3
#: Standard deviation of the weights at the start. With the usual 0.02, small models often learn to predict one class
#: only.
SPREAD = 0.1
#: Weight of the loss of the patterns. The other losses have the weight 1.
PATTERN_WEIGHT = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedCircuit:
    """A circuit that a model is trained to have.

    Attributes:
        mechanism: The name of the mechanism.
        half: The half of the population that its models belong to.
        patterns: (layer, head) -> what the row that is read (the token from which the output is computed) attends to:
            "cues", "others" (all words but cues), "self" or "all". All other rows attend to themselves in every layer
            but the last, so that states do not mix.
        decides: The (layer, head) that decides.
        readings: The readings whose truth is known.
        families: The families that it is built in.
    """

    mechanism: str
    half: str
    patterns: dict[tuple[int, int], str]
    decides: tuple[int, int]
    readings: tuple[LabelledReading, ...]
    families: tuple[Family, ...] = ("bert", "gpt2")


def _unfaithful(role: str, layer: int, heads: int) -> LabelledReading:
    return LabelledReading(role=role, layer=layer, heads=heads, truth="unfaithful")


TRAINED: tuple[TrainedCircuit, ...] = (
    TrainedCircuit(
        mechanism="trained_last_layer",
        half="tuning",
        patterns={(0, 0): "self", (0, 1): "self", (1, 0): "cues", (1, 1): "others"},
        decides=(1, 0),
        readings=(
            LabelledReading(role="mover", layer=1, heads=0, truth="faithful"),
            _unfaithful("other_head", 1, 1),
        ),
    ),
    TrainedCircuit(
        mechanism="trained_first_layer",
        half="held_out",
        patterns={(0, 0): "cues", (0, 1): "others", (1, 0): "others", (1, 1): "self"},
        decides=(0, 0),
        readings=(
            LabelledReading(role="mover", layer=0, heads=0, truth="faithful"),
            _unfaithful("last_layer", 1, 0),
        ),
    ),
    TrainedCircuit(
        mechanism="trained_bag_of_words",
        half="held_out",
        patterns={(0, 0): "all", (0, 1): "self", (1, 0): "others", (1, 1): "others"},
        decides=(0, 0),
        readings=(_unfaithful("last_layer", 1, 0),),
    ),
)


def train_model(
    circuit: TrainedCircuit, family: Family, rows: Rows, cue_words: frozenset[str], tokenizer: Any, *, seed: int
) -> Any:
    """Return a model that is trained to have a circuit, in evaluation mode.

    Args:
        circuit: The circuit.
        family: The family of the model.
        rows: The training texts with their labels, of two classes.
        cue_words: The words that decide.
        tokenizer: The tokenizer.
        seed: The seed of the weights and of the order of the texts.
    """
    torch.manual_seed(seed)
    model = new_model(family, tokenizer, classes=CLASS_NAMES[:2], layers=LAYERS, heads=HEADS, width=WIDTH)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(std=SPREAD)
    model.set_attn_implementation("eager")
    model.eval()  # Dropout would disturb the interchanges.
    encoded = tokenizer([text for text, _ in rows], padding=True, return_tensors="pt")
    labels = torch.tensor([CLASS_NAMES.index(label) for _, label in rows])
    cue_ids = torch.tensor(sorted(tokenizer.convert_tokens_to_ids(list(cue_words))))
    optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, LEARNING_RATE, total_steps=STEPS)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(STEPS):
        index = torch.randperm(len(rows), generator=generator)[:BATCH]
        batch = {"input_ids": encoded["input_ids"][index], "attention_mask": encoded["attention_mask"][index]}
        loss = _loss(model, circuit, family, batch, labels[index], cue_ids, tokenizer)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    return model


def _loss(
    model: Any,
    circuit: TrainedCircuit,
    family: Family,
    batch: dict[str, Tensor],
    labels: Tensor,
    cue_ids: Tensor,
    tokenizer: Any,
) -> Tensor:
    values: dict[int, Tensor] = {}
    with (
        hooked_values(model, 0, HEADS, partial(values.__setitem__, 0)),
        hooked_values(model, 1, HEADS, partial(values.__setitem__, 1)),
    ):
        output = model(**batch, output_attentions=True)
    read = _read_positions(batch["attention_mask"], family)
    targets = _Targets(batch, cue_ids, tokenizer, family)
    loss = functional.cross_entropy(output.logits, labels)
    loss = loss + PATTERN_WEIGHT * _pattern_loss(circuit, output.attentions, targets, read)
    donor = torch.roll(torch.arange(len(labels)), 1)
    layer, head = circuit.decides
    patched = _logits_with_donor(model, batch, values[layer], output.attentions[layer], donor, layer, [head], read)
    loss = loss + functional.cross_entropy(patched, labels[donor])
    for other in range(LAYERS):
        heads = [h for h in range(HEADS) if (other, h) != circuit.decides]
        patched = _logits_with_donor(model, batch, values[other], output.attentions[other], donor, other, heads, read)
        loss = loss + functional.cross_entropy(patched, labels) / LAYERS
    return loss


def _read_positions(mask: Tensor, family: Family) -> Tensor:
    """Return the position (B,) of the token that the output is read from."""
    return torch.zeros(len(mask), dtype=torch.long) if family == "bert" else mask.sum(1) - 1


class _Targets:
    """The attention that heads are supervised with, as weights over the tokens of each text."""

    def __init__(self, batch: dict[str, Tensor], cue_ids: Tensor, tokenizer: Any, family: Family) -> None:
        ids, mask = batch["input_ids"], batch["attention_mask"].bool()
        special = torch.isin(ids, torch.tensor([tokenizer.cls_token_id, tokenizer.sep_token_id]))
        cues = torch.isin(ids, cue_ids)
        read = torch.zeros_like(mask)
        read[torch.arange(len(ids)), _read_positions(mask.long(), family)] = True
        self.weights = {
            "cues": _equal(cues & mask),
            "others": _equal(mask & ~special & ~cues),
            "self": _equal(read),
            "all": _equal(mask),
        }


def _equal(places: Tensor) -> Tensor:
    return places.float() / places.sum(1, keepdim=True).clamp_min(1)


def _pattern_loss(circuit: TrainedCircuit, attentions: Sequence[Tensor], targets: _Targets, read: Tensor) -> Tensor:
    """Return the mean cross-entropy between the attention of the heads and its targets.

    In the last layer, only the row that is read counts. In the other layers, all rows count.
    """
    rows = torch.arange(len(read))
    terms = []
    for (layer, head), pattern in circuit.patterns.items():
        weights = attentions[layer][:, head].clamp_min(1e-9).log()
        at_read = weights[rows, read]
        terms.append(-(targets.weights[pattern] * at_read).sum(1).mean())
        if layer < LAYERS - 1:
            # The other rows attend to themselves, so that the states of the tokens do not mix.
            terms.append(-weights.diagonal(dim1=1, dim2=2).mean())
    return torch.stack(terms).mean()


def _logits_with_donor(
    model: Any,
    batch: dict[str, Tensor],
    values: Tensor,
    attention: Tensor,
    donor: Tensor,
    layer: int,
    heads: Sequence[int],
    read: Tensor,
) -> Tensor:
    """Return the logits if each value vector of some heads is replaced by the output of the head in the donor text."""
    rows = attention[torch.arange(len(read)), :, read]
    moved = torch.einsum("bht,bthd->bhd", rows, values)[donor]
    chosen = torch.zeros(HEADS, dtype=torch.bool)
    chosen[list(heads)] = True
    changed = torch.where(chosen[None, None, :, None], moved[:, None], values)
    with hooked_values(model, layer, HEADS, lambda _own: changed):
        logits: Tensor = model(**batch).logits
    return logits
