"""Verify the label of a planted model by exchanging tokens between two texts whose predicted classes differ.

The tokens that hold the attention of a text are the smallest set with 80% of the weight. Tokens are exchanged with a
second text, the donor, in two ways. The attention weights of the text do not change:

* The tokens that hold the attention are replaced by those of the donor, in the order of their weights. In a faithful
  model, the decision becomes that of the donor. In an unfaithful one, it does not.
* All other tokens are replaced by the other tokens of the donor. In an unfaithful model, the decision becomes that of
  the donor. In a faithful one, it does not.

If attention is right only on a share of the texts, the first exchange changes the decision on this share. If it is
right on a share of the evidence in each text, the logits are compared instead of the decisions: exchanging the attended
tokens changes them by this share of the change that both exchanges together make. No check of an audit uses this
intervention: checks mask, delete or permute, but take nothing from another text.
"""

from __future__ import annotations

import dataclasses
import heapq
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
import torch
from torch import Tensor

from attnaudit.adapters.pooled.pooled_adapter import PooledAttentionAdapter
from attnaudit.adapters.protocol import TEXT, Inputs, Trace
from attnaudit.arrays import Integers
from attnaudit.instances import Dataset, Instance
from attnaudit.models.vocabulary import UNKNOWN
from attnaudit.research.planted.kind import Exchange, Kind, Recipe
from attnaudit.research.planted.verify_label import ExchangeEvidence, LabelEvidence, accuracy_of, in_batches

EXCHANGE = "exchange_with_attention_held"
#: The name of the verification if logits are compared instead of decisions.
LOGIT_EXCHANGE = "logits_in_exchange_with_attention_held"
#: The share of the attention weight that the exchanged tokens hold.
HELD_WEIGHT = 0.8
#: A model follows the donors if its decision changes to theirs on at least this share of the texts. It does not follow
#: them if this share is at most one minus the constant.
FOLLOWS_MINIMUM = 0.9
#: The largest distance of the measured share of a graded model from the intended share.
SHARE_TOLERANCE = 0.07
#: The smallest number of texts in which tokens are exchanged.
FEWEST_ROWS = 20
#: The number of donors that texts of one length share, so that no single donor decides the outcome.
CANDIDATES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    """What a model does with one text.

    Attributes:
        attended: Positions of the attended tokens, in descending order of their weights.
        others: Positions of the other tokens that may be exchanged, in descending order of their weights.
        attended_ids: Token ids at `attended`.
        others_ids: Token ids at `others`.
        predicted: Index of the predicted class.
        kept: Whether the text has a word that stays in place.
    """

    attended: Integers
    others: Integers
    attended_ids: Integers
    others_ids: Integers
    predicted: int
    kept: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Exchanged:
    """What an exchange of tokens does to one text.

    Attributes:
        follows: Whether the decision becomes that of the donor.
        change: Change of the donor's logit minus that of the text's own predicted class.
    """

    follows: bool
    change: float


#: Exchange -> the attributes of `_Row` with the tokens that it exchanges.
_PARTS = {"attended": ("attended",), "others": ("others",), "both": ("attended", "others")}


def verify_by_exchange(kind: Kind, recipe: Recipe, adapter: PooledAttentionAdapter, data: Dataset) -> LabelEvidence:
    """Measure a stored model, and compare the measurements with the requirements of its label.

    Args:
        kind: The kind of the model. Its truth is not "trend".
        recipe: The recipe by which the model was made.
        adapter: The adapter of the stored model.
        data: The instances to measure on.
    """
    evidence = LabelEvidence(
        rank_agreement=None,
        effect_agreement=None,
        defined=0.0,
        confirmed=None,
        accuracy=accuracy_of(adapter, data),
        reference_accuracy=None,
        bypass_share=None,
        unmet=[],
        exchange=exchange_tokens(adapter, data, recipe.exchange),
    )
    return msgspec.structs.replace(evidence, unmet=unmet_by_exchange(kind, recipe, evidence))


def unmet_by_exchange(kind: Kind, recipe: Recipe, evidence: LabelEvidence) -> list[str]:
    """Return the requirements of a label that a model does not meet, as text.

    Args:
        kind: The kind of the model.
        recipe: The recipe of the model.
        evidence: The measurements on the model.
    """
    found = evidence.exchange
    assert found is not None
    share = {"faithful": 1.0, "unfaithful": 0.0}.get(kind.truth, recipe.share)
    if share is None:
        return [f"the recipe of the graded kind '{kind.name}' names no share"]
    unmet = []
    if found.attended is None and found.rows >= FEWEST_ROWS:
        unmet.append("replacing all tokens by those of other texts does not move the logits towards these texts")
    elif found.attended is None or found.rows < FEWEST_ROWS:
        unmet.append(f"tokens could be exchanged in {found.rows} texts, expected {FEWEST_ROWS} or more")
    expected = [("the attended tokens", found.attended, share)]
    if recipe.exchange.rest_decides or share == 1.0:
        expected.append(("the other tokens", found.rest, 1 - share))
    for tokens, value, intended in expected:
        if value is None:
            continue
        margin = SHARE_TOLERANCE if 0 < share < 1 else 1 - FOLLOWS_MINIMUM
        if abs(value - intended) > margin + 1e-9:
            outcome = (
                f"the logits change by {value:.3f} of the change that all tokens make"
                if recipe.exchange.of_evidence
                else f"the decision becomes that of the other text in {value:.3f} of the cases"
            )
            unmet.append(
                f"if {tokens} are replaced by those of another text, {outcome}, expected {intended:.2f} ± {margin:.2f}"
            )
    if evidence.accuracy < recipe.minimum_accuracy:
        unmet.append(f"accuracy {evidence.accuracy:.3f} is below {recipe.minimum_accuracy}")
    return unmet


@torch.no_grad()
def exchange_tokens(adapter: PooledAttentionAdapter, data: Dataset, exchange: Exchange) -> ExchangeEvidence:
    """Exchange tokens between the texts of a data set, and measure how the decisions, or the logits, follow the donors.

    The donor of a text is a text with another predicted class. It is one of the five such texts that are most similar
    to the text in the number of attended tokens and in the number of other tokens. Positions for which the donor has no
    token get the unknown word.

    Args:
        adapter: The adapter of the model.
        data: The instances.
        exchange: Which tokens stay in place, and which texts have nothing to exchange.
    """
    batches = in_batches(data)
    described = [_describe(adapter, batch, exchange) for batch in batches]
    rows = [row for batch in described for row in batch]
    absence = -1 if exchange.absence is None else adapter.capabilities.classes.index(exchange.absence)
    exchanged: dict[str, list[_Exchanged]] = {"attended": [], "others": [], "both": []}
    for batch, batch_rows in zip(batches, described, strict=True):
        donors = [
            None if row.predicted == absence else _donor(row, rows, index) for index, row in enumerate(batch_rows)
        ]
        if not any(donors):
            continue
        inputs = adapter.collate(batch)
        clean = adapter.run(inputs)
        for name, parts in _PARTS.items():
            if name != "both" or exchange.of_evidence:
                exchanged[name] += _exchange(adapter, inputs, clean, batch_rows, donors, parts)
    both = exchanged.pop("both")
    attended, rest = (
        _share_of_change(part, both) if exchange.of_evidence else _share_followed(part) for part in exchanged.values()
    )
    return ExchangeEvidence(attended=attended, rest=rest, rows=len(exchanged["attended"]))


def _share_followed(part: Sequence[_Exchanged]) -> float | None:
    """Return the share of texts whose decision becomes that of the donor."""
    return float(np.mean([one.follows for one in part])) if part else None


def _share_of_change(part: Sequence[_Exchanged], both: Sequence[_Exchanged]) -> float | None:
    """Return the change towards the donor, as a share of the change if all tokens are exchanged."""
    total = sum(one.change for one in both)
    return sum(one.change for one in part) / total if total > 0 else None


def _decide(logits: Tensor) -> list[int]:
    """Return the index of the predicted class of each row of logits (B, C) or (B, 1)."""
    decided: list[int] = ((logits[:, 0] > 0).long() if logits.shape[1] == 1 else logits.argmax(dim=1)).tolist()
    return decided


def _describe(adapter: PooledAttentionAdapter, batch: Sequence[Instance], exchange: Exchange) -> list[_Row]:
    """Run a batch, and return what the model does with each text."""
    inputs = adapter.collate(batch)
    trace = adapter.run(inputs)
    (site,) = adapter.sites()
    weights = trace.attention[site.key][:, 0, 0].double()
    decided, real = _decide(trace.logits), inputs.real()
    rows = []
    for index in range(len(batch)):
        tokens = inputs.tokens[TEXT][index]
        start = int(inputs.mask[TEXT][index].long().argmax())  # padding may be on the left
        places = real[index].nonzero().squeeze(1).numpy()
        stays = np.array([tokens[place - start] in exchange.kept for place in places.tolist()], dtype=bool)
        kept, places = bool(stays.any()), places[~stays]
        weight, ids = weights[index].numpy()[places], inputs.ids[TEXT][index].numpy()[places]
        order = np.argsort(-weight, kind="stable")
        places, ids = places[order], ids[order]
        total = np.cumsum(weight[order])
        count = int(np.searchsorted(total, HELD_WEIGHT * total[-1] * (1 - 1e-9)) + 1) if len(total) else 0
        rows.append(
            _Row(
                attended=places[:count],
                others=places[count:],
                attended_ids=ids[:count],
                others_ids=ids[count:],
                predicted=decided[index],
                kept=kept,
            )
        )
    return rows


def _donor(row: _Row, rows: Sequence[_Row], number: int) -> _Row | None:
    """Return the donor of a text. The best candidates take turns. None if no text has another predicted class."""

    def distance(other: _Row) -> tuple[int, int]:
        attended = len(other.attended_ids) - len(row.attended)
        others = len(other.others_ids) - len(row.others)
        return max(attended, 0) + max(others, 0), abs(attended) + abs(others)

    candidates = [other for other in rows if other.predicted != row.predicted and other.kept == row.kept]
    best = heapq.nsmallest(CANDIDATES, candidates, key=distance)
    return best[number % len(best)] if best else None


def _exchange(
    adapter: PooledAttentionAdapter,
    inputs: Inputs,
    clean: Trace,
    rows: Sequence[_Row],
    donors: Sequence[_Row | None],
    parts: Sequence[str],
) -> list[_Exchanged]:
    """Exchange tokens of each text that has a donor.

    Args:
        adapter: The adapter of the model.
        inputs: The B texts.
        clean: A pass of the model over these texts.
        rows: What the model does with each text.
        donors: The donor of each text; None for texts that are left out.
        parts: Which tokens are exchanged: "attended", "others" or both. Texts without such tokens are left out.
    """
    (site,) = adapter.sites()
    ids, used = inputs.ids[TEXT].clone(), []
    for index, (row, donor) in enumerate(zip(rows, donors, strict=True)):
        if donor is None or not any(len(getattr(row, part)) for part in parts):
            continue
        used.append((index, row.predicted, donor.predicted))
        for part in parts:
            places, given = getattr(row, part), getattr(donor, f"{part}_ids")[: len(getattr(row, part))]
            ids[index, torch.from_numpy(places)] = UNKNOWN
            ids[index, torch.from_numpy(places[: len(given)])] = torch.from_numpy(given)
    changed: Inputs = dataclasses.replace(inputs, ids={TEXT: ids})
    logits = adapter.run(changed, intervene=lambda *_: clean.attention[site.key]).logits
    before, after, decided = _per_class(clean.logits), _per_class(logits), _decide(logits)
    return [
        _Exchanged(
            follows=decided[index] == target,
            change=float((after - before)[index, target] - (after - before)[index, own]),
        )
        for index, own, target in used
    ]


def _per_class(logits: Tensor) -> Tensor:
    """Return (B, C) logits of the classes. If the model has a single logit, that of the first class is 0."""
    wide = logits.double()
    return torch.cat([torch.zeros_like(wide), wide], dim=1) if wide.shape[1] == 1 else wide
