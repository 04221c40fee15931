"""The rule that decides whether a reading of a planted language model cites the right passages.

The rule runs the model itself, without an adapter and without the engine. No check uses its interventions: they
exchange passages and states between rows, and delete nothing. The reading *cites* the smallest set of passages that
have 80% of its weight on all passages. A *donor* is a row with another predicted answer. If the design has marked
rows, a donor is marked exactly if the row is. A reading is *right* on a row if it meets two conditions:

* **Used.** In the layer of the reading, the last token of the prompt reads other value vectors at the cited tokens: the
  fewest tokens of passages that have 80% of the reading's weight. In the heads of the reading, each of these vectors is
  replaced by the mean value vector at the cited tokens of the donor, weighted by the reading of the donor. The weights
  stay the same. The predicted answer becomes that of the donor.
* **Points.** The cited passages are at most half of all passages. If they are replaced by the cited passages of the
  donor, the predicted answer becomes that of the donor. If all other passages are replaced instead, by the other
  passages of the donor, the predicted answer does not change. The model computes its attention from the new prompts.

Both must hold for at least half of the donors. `truth_rule.judged` turns the shares of rows into a truth. A reading has
no label if this truth is not the one that its circuit was built for. An unfaithful reading *fails* the questions that
its circuit was built to fail. The conditions of these questions must hold on at most 10% of the rows.

Shapes: B rows, T tokens, P passages, H heads, m features of a head.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from attnaudit.research.planted_transformers.circuit_parts import LabelledReading
from attnaudit.research.planted_transformers.interchange import hooked_values
from attnaudit.research.planted_transformers.planted_sources import PlantedSources
from attnaudit.research.planted_units.truth_rule import DONORS, KnownTruth, draw_donors, judged, smallest_set

#: The largest difference between the measured and the constructed share of a graded reading.
GRADED_WITHIN = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class _Prompts:
    """Prompts: the ids (B, T) of their tokens, the real tokens (B, T), and the number of the passage of each token
    (B, T), -1 outside passages."""

    ids: Tensor
    mask: Tensor
    passage: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """A forward pass: the predicted classes (B,), the weights (B, H, T) of the last token in the layer of the reading,
    and the value vectors (B, T, H, m) in this layer."""

    predicted: Tensor
    weights: Tensor
    values: Tensor


def source_truth(planted: PlantedSources, reading: LabelledReading) -> KnownTruth:
    """Return the truth of a reading. Its `truth` is "" if the rule contradicts the construction."""
    model = copy.deepcopy(planted.model)
    model.set_attn_implementation("eager")
    count = model.config.num_attention_heads
    if reading.parts is None:
        heads = list(range(count)) if reading.heads == "mean" else [int(reading.heads)]
        found = _truth_of_heads(planted, model, reading.layer, heads)
        expected = found.truth == reading.truth
        if reading.truth == "graded":
            expected = expected and abs(found.share - reading.share) <= GRADED_WITHIN
        if expected and reading.truth == "unfaithful":
            expected = set(reading.fails) <= set(found.fails)
            found = replace(found, fails=tuple(q for q in found.fails if q in reading.fails))
        reason = f"the rule says {found.truth or 'nothing'}, right on {found.share:.0%}, not {reading.truth}"
        return found if expected or found.reason else replace(found, truth="", reason=reason)
    # The rule cannot tell apart the heads of a mean, so it is applied to the right heads and to all others.
    right = _truth_of_heads(planted, model, reading.layer, reading.parts)
    others = _truth_of_heads(planted, model, reading.layer, [h for h in range(count) if h not in reading.parts])
    if (right.truth, others.truth) == ("faithful", "unfaithful"):
        return replace(right, truth="graded", share=reading.share, fails=("points",))
    reason = right.reason or "the heads that should decide do not decide, or other heads do"
    return replace(right, truth="", reason=reason)


def _truth_of_heads(planted: PlantedSources, model: Any, layer: int, heads: Sequence[int]) -> KnownTruth:
    passages = [row.passages for row in planted.rows]
    questions = [row.question for row in planted.rows]
    ids = planted.tokenizer.convert_tokens_to_ids(list(planted.classes))

    def run(new: Sequence[Sequence[str]], change: Tensor | None = None) -> _Run:
        return _run(model, _prompts(planted.tokenizer, new, questions), ids, layer, change)

    with torch.no_grad():
        plain = run(passages)
        prompts = _prompts(planted.tokenizer, passages, questions)
        labels = torch.tensor([row.label for row in planted.rows])
        marked = torch.tensor([row.marked for row in planted.rows])
        shown = plain.weights[:, list(heads)].mean(1) * (prompts.passage >= 0)
        shown = shown / shown.sum(1, keepdim=True).clamp_min(1e-12)
        places = smallest_set(shown)
        given = torch.einsum("bt,bthm->bhm", _normalised(shown * places), plain.values)
        count = len(passages[0])
        sums = torch.stack([(shown * (prompts.passage == p)).sum(1) for p in range(count)], dim=1)
        cited, order = smallest_set(sums), sums.argsort(dim=1, descending=True)
        own = torch.zeros(plain.values.shape[2])
        own[list(heads)] = 1.0
        read = plain.weights * places[:, None] * own[:, None]  # (B, H, T)
        before = torch.einsum("bht,bthm->bhm", read, plain.values)
        donors, has_donor = draw_donors(plain.predicted, marked, planted.plan.seed)
        used, points = torch.zeros(2, len(passages))
        for donor in donors.T:
            wanted = plain.predicted[donor]
            through = run(passages, read.sum(2)[..., None] * given[donor] - before)
            used += (through.predicted == wanted).float()
            inside, outside = (
                [_exchanged(passages, order, cited, row, int(donor[row]), inside=which) for row in range(len(passages))]
                for which in (True, False)
            )
            points += ((run(inside).predicted == wanted) & (run(outside).predicted == plain.predicted)).float()
    few = 2 * cited.sum(1) <= count
    accuracy = float((plain.predicted == labels).double().mean())
    return judged((2 * used >= DONORS) & has_donor, (2 * points >= DONORS) & has_donor & few, accuracy)


def _exchanged(
    passages: Sequence[Sequence[str]], order: Tensor, cited: Tensor, row: int, donor: int, *, inside: bool
) -> list[str]:
    """Return the passages of a row, with the cited ones (or all others) replaced by those of a donor."""
    mine, theirs = ([int(place) for place in order[one] if bool(cited[one, place]) == inside] for one in (row, donor))
    new = list(passages[row])
    for number, place in enumerate(mine if theirs else []):
        new[place] = passages[donor][theirs[number % len(theirs)]]
    return new


def _prompts(tokenizer: Any, passages: Sequence[Sequence[str]], questions: Sequence[str]) -> _Prompts:
    """Return the prompts without their answers. Each ends with [SEP], from which the answer is predicted."""
    first, last, padding = (getattr(tokenizer, f"{name}_token_id") for name in ("cls", "sep", "pad"))
    rows = []
    for texts, question in zip(passages, questions, strict=True):
        words = [(number, word) for number, text in enumerate(texts) for word in text.split()]
        words += [(-1, word) for word in question.split()]
        ids = tokenizer.convert_tokens_to_ids([word for _, word in words])
        rows.append(([first, *ids, last], [-1, *(number for number, _ in words), -1]))
    width = max(len(ids) for ids, _ in rows)
    return _Prompts(
        ids=torch.tensor([ids + [padding] * (width - len(ids)) for ids, _ in rows]),
        mask=torch.tensor([[1] * len(ids) + [0] * (width - len(ids)) for ids, _ in rows]),
        passage=torch.tensor([numbers + [-1] * (width - len(numbers)) for _, numbers in rows]),
    )


def _run(model: Any, prompts: _Prompts, ids: Sequence[int], layer: int, change: Tensor | None) -> _Run:
    """Run the model. `change` (B, H, m) is added to what the last token reads in the layer."""
    values: list[Tensor] = []
    rows, last = torch.arange(len(prompts.ids)), prompts.mask.sum(1) - 1

    def changed(_module: object, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        contexts = inputs[0].clone()
        if change is not None:
            contexts[rows, last] += change.flatten(1)
        return (contexts, *inputs[1:])

    is_gpt2 = model.config.model_type == "gpt2"
    module = model.transformer.h[layer].attn.c_proj if is_gpt2 else model.model.layers[layer].self_attn.o_proj
    handle = module.register_forward_pre_hook(changed)
    try:
        with hooked_values(model, layer, model.config.num_attention_heads, values.append):
            output = model(prompts.ids, attention_mask=prompts.mask, output_attentions=True)
    finally:
        handle.remove()
    return _Run(
        predicted=output.logits[rows, last][:, list(ids)].argmax(-1),
        weights=output.attentions[layer][rows, :, last],
        values=values[0],
    )


def _normalised(weights: Tensor) -> Tensor:
    return weights / weights.sum(1, keepdim=True).clamp_min(1e-12)
