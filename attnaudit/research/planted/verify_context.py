"""Verify the label of a planted model with contextual states, by exchanging tokens and states between two texts.

This is the exchange of `verify_exchange`, for models in which the order of the tokens matters. The two texts have the
same number of tokens, the same query and different predicted classes. The tokens that hold 80% of the attention of the
first text are replaced by the same number of tokens of the second text, the donor. The replacements are the donor's
tokens with the largest weights, in the order in which they occur in the donor. Attention weights do not change.

The contextual state of a token may carry information about other tokens. Two further measurements show which states
carry the label:

* The states at the tokens that hold the attention are exchanged instead of the tokens. The decision must become that
  of the donor, in faithful and in unfaithful models. In an unfaithful model, exchanging the tokens themselves does
  not have this effect.
* If an unfaithful model does not use its attention, the state of each single token must give the predicted class.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import torch
from torch import Tensor

from attnaudit.errors import ModelError
from attnaudit.instances import Dataset
from attnaudit.models.encoded_rows import EncodedRows
from attnaudit.models.pooled_classifier import ForwardPass, PooledClassifier, Query
from attnaudit.models.vocabulary import Vocabulary
from attnaudit.research.planted.context_attention import state_logits
from attnaudit.research.planted.kind import Kind, Recipe
from attnaudit.research.planted.verify_exchange import FOLLOWS_MINIMUM, HELD_WEIGHT, unmet_by_exchange
from attnaudit.research.planted.verify_label import ExchangeEvidence, LabelEvidence

CONTEXT_EXCHANGE = "exchange_in_context_with_attention_held"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pairs:
    """Texts, their donors, and the positions that are exchanged.

    Attributes:
        texts: (P,) index of each text that has a donor.
        donors: (P,) index of its donor.
        attended: For each pair, the attended positions of the text and the same number of positions of the donor.
        others: For each pair, the other positions of the text and of the donor.
    """

    texts: Tensor
    donors: Tensor
    attended: list[tuple[Tensor, Tensor]]
    others: list[tuple[Tensor, Tensor]]


def verify_in_context(
    kind: Kind, recipe: Recipe, model: PooledClassifier, vocabulary: Vocabulary, classes: tuple[str, ...], data: Dataset
) -> LabelEvidence:
    """Measure a stored model, and compare the measurements with the requirements of its label.

    Args:
        kind: The kind of the model.
        recipe: The recipe by which the model was made.
        model: The stored model. It has two classes.
        vocabulary: The vocabulary of the model.
        classes: The class names.
        data: The instances to measure on.
    """
    rows = EncodedRows(data, vocabulary, classes, recipe.architecture.form)
    ids, mask, special, query = rows.batch(range(len(rows.labels)))
    with torch.no_grad():
        traced = model.trace(ids, mask, special, query)
        correct = (_decide(traced.logits) == torch.tensor(rows.labels)).double().mean().item()
        found = exchange_in_context(model, traced, [instance.query for instance in data.instances])
    evidence = LabelEvidence(
        rank_agreement=None,
        effect_agreement=None,
        defined=0.0,
        confirmed=None,
        accuracy=correct,
        reference_accuracy=None,
        bypass_share=None,
        unmet=[],
        exchange=found,
    )
    unmet = unmet_by_exchange(kind, recipe, evidence)
    if found.states is not None and found.states < FOLLOWS_MINIMUM:
        unmet.append(
            "if the states of the attended tokens are replaced by those of another text, the decision becomes that of "
            f"the other text in {found.states:.3f} of the cases, expected {FOLLOWS_MINIMUM} or more"
        )
    if kind.truth == "unfaithful" and "used" in kind.fails and (found.alone or 0.0) < FOLLOWS_MINIMUM:
        unmet.append(
            f"the share of single states that give the predicted class is {found.alone or 0.0:.3f}, expected "
            f"{FOLLOWS_MINIMUM} or more"
        )
    return msgspec.structs.replace(evidence, unmet=unmet)


@torch.no_grad()
def exchange_in_context(model: PooledClassifier, traced: ForwardPass, queries: list[str | None]) -> ExchangeEvidence:
    """Exchange tokens and states between texts, and count how often a text gets the decision of its donor.

    Args:
        model: The model, which has one logit.
        traced: A forward pass of the model over all texts, padded on the right.
        queries: The query of each text; None for models that read no query.

    Raises:
        ModelError: The model has several logits.
    """
    if traced.logits.shape[1] != 1:
        raise ModelError(
            f"The model has {traced.logits.shape[1]} logits, but exchanging tokens between texts requires a model "
            "with one logit."
        )
    pairs = _pairs(traced, queries)
    weights, query = traced.weights[pairs.texts], _select(traced.query, pairs.texts)
    expected = _decide(traced.logits)[pairs.donors]

    def follows(hidden: Tensor) -> float:
        state = () if query is None else (model.encode_query(model.embedding(query.ids), query.mask),)
        context = torch.einsum("bt,btm->bm", weights, hidden)
        return (_decide(model.decode(context, *state)) == expected).double().mean().item()

    def exchanged(values: Tensor, places: list[tuple[Tensor, Tensor]]) -> Tensor:
        changed = values[pairs.texts]
        for row, (donor, (to, source)) in enumerate(zip(pairs.donors.tolist(), places, strict=True)):
            changed[row, to] = values[donor, source]
        return changed

    def encode(ids: Tensor) -> Tensor:
        hidden: Tensor = model.encoder(model.embedding(ids), traced.mask[pairs.texts])
        return hidden

    agree = (state_logits(model, traced) > 0) == (traced.logits > 0)
    alone = agree[traced.real].double().mean().item()
    if not len(pairs.texts):
        return ExchangeEvidence(attended=None, rest=None, rows=0, states=None, alone=alone)
    return ExchangeEvidence(
        attended=follows(encode(exchanged(traced.ids, pairs.attended))),
        rest=follows(encode(exchanged(traced.ids, pairs.others))),
        rows=len(pairs.texts),
        states=follows(exchanged(traced.hidden, pairs.attended)),
        alone=alone,
    )


def _decide(logits: Tensor) -> Tensor:
    """Return the (B,) predicted class of each row of logits (B, 1)."""
    return (logits[:, 0] > 0).long()


def _select(query: Query | None, rows: Tensor) -> Query | None:
    return None if query is None else Query(ids=query.ids[rows], mask=query.mask[rows])


def _pairs(traced: ForwardPass, queries: list[str | None]) -> _Pairs:
    """Find a donor for each text, and the positions to exchange. Possible donors are used in turn."""
    predicted, lengths = _decide(traced.logits).tolist(), traced.real.sum(dim=1).tolist()
    order = traced.weights.masked_fill(~traced.real, -1.0).argsort(dim=1, descending=True, stable=True)
    total = traced.weights.gather(1, order).cumsum(dim=1)
    counts = ((total < HELD_WEIGHT * (1 - 1e-6)).sum(dim=1) + 1).tolist()
    groups: dict[tuple[int, str | None, int], list[int]] = {}
    for index, query in enumerate(queries):
        groups.setdefault((lengths[index], query, predicted[index]), []).append(index)
    texts, donors, attended, others = [], [], [], []
    for index, query in enumerate(queries):
        candidates = groups.get((lengths[index], query, 1 - predicted[index]), [])
        if not candidates:
            continue
        donor = candidates[index % len(candidates)]
        texts.append(index)
        donors.append(donor)
        both = [order[row, : lengths[index]] for row in (index, donor)]
        attended.append((both[0][: counts[index]].sort().values, both[1][: counts[index]].sort().values))
        others.append((both[0][counts[index] :].sort().values, both[1][counts[index] :].sort().values))
    return _Pairs(
        texts=torch.tensor(texts, dtype=torch.long),
        donors=torch.tensor(donors, dtype=torch.long),
        attended=attended,
        others=others,
    )
