"""Logits that are not finite only under replaced attention or erased tokens are an error that names the row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from attnaudit.adapters import Inputs, PooledAttentionAdapter, Site, Trace
from attnaudit.adapters.protocol import TEXT, Intervention
from attnaudit.engine.batches.batch import ERASED, REPLACED
from attnaudit.engine.batches.failures import refuse_not_finite
from attnaudit.engine.measuring import measure
from attnaudit.errors import AdapterError
from attnaudit.instances import Dataset, Instance
from tests.small_models import TEXTS, dataset, parts
from tests.units.conformance.conformance_models import PLAIN, SmallTransformer

#: The longest text, which is the only one that is affected, and its place in the file.
LONGEST = max(range(len(TEXTS)), key=lambda i: len(TEXTS[i].split()))
WORDS_OF_LONGEST = len(TEXTS[LONGEST].split())


class FragileDecoder(PooledAttentionAdapter):
    """Decodes the longest text to NaN, except in a pass without replaced attention."""

    def __init__(self, value: float) -> None:
        made: dict[str, Any] = parts()
        decoder = made["decoder"]
        made["modules"] = tuple(made[name] for name in ("embedding", "encoder", "attention", "decoder"))
        made["decoder"] = lambda context: decoder(context)
        super().__init__(**made)
        self.value, self.own = value, False

    def run(
        self,
        inputs: Inputs,
        *,
        embeddings: Mapping[str, Tensor] | None = None,
        intervene: Intervention | None = None,
        hidden: bool = False,
    ) -> Trace:
        self.own = intervene is None
        trace = super().run(inputs, embeddings=embeddings, intervene=intervene, hidden=hidden)
        self.own = False
        return trace

    def decode(self, hidden: Tensor, weights: Tensor, decoder_condition: Tensor | None = None) -> Tensor:
        logits = super().decode(hidden, weights, decoder_condition)
        if self.own or hidden.shape[1] < WORDS_OF_LONGEST:
            return logits
        longest = hidden[:, -1].abs().sum(-1) > 0
        return torch.where(longest.repeat_interleave(len(logits) // len(hidden))[:, None, None], self.value, logits)


DECODED = [
    "uniform",
    "uniform.layer",
    "uniform.everywhere.live",
    "uniform.everywhere.frozen",
    "permutation",
    "permutation.layer",
    "permutation.everywhere.live",
    "permutation.everywhere.frozen",
    "adversarial.0.05",
    "adversarial.jain_wallace.0.05",
    "flip",
    "top_token",
    "leave_one_out.hidden",
    "token_probability",
]


@pytest.mark.parametrize("need", DECODED)
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_a_pooled_model_that_fails_under_replaced_attention_only(need: str, value: float) -> None:
    message = rf"^films\.csv:{LONGEST + 2}: the model's logits are not finite \(NaN or infinite\) {REPLACED}"
    with pytest.raises(AdapterError, match=message):
        measure(FragileDecoder(value), dataset(), [need], model="lstm", seed=0)


class FragileTransformer(SmallTransformer):
    """Gives NaN for the longest text where the attention of a layer was replaced by other weights."""

    def used(
        self, site: Site, weights: Tensor, allowed: Tensor, intervene: Intervention | None
    ) -> tuple[Tensor, Tensor]:
        used, shown = super().used(site, weights, allowed, intervene)
        longest = allowed[:, 0, 0].sum(1) == LONGEST_TOKENS
        changed = (used - weights).abs().flatten(1).amax(1) > 1e-4
        return torch.where((longest & changed)[:, None, None, None], torch.nan, used), shown


LONGEST_TOKENS = max(int(SmallTransformer().collate([one]).mask[TEXT].sum()) for one in PLAIN)
LONGEST_ROW = next(one.id for one in PLAIN if int(SmallTransformer().collate([one]).mask[TEXT].sum()) == LONGEST_TOKENS)


def transformer_rows() -> Dataset:
    rows = tuple(replace(one, where=f"films.csv:{one.id}") for one in PLAIN)
    return Dataset(name="films", source="synthetic", description="", instances=rows)


@pytest.mark.parametrize("need", [*DECODED, "uniform/mean@layer=-1", "permutation/last@layer=0"])
@pytest.mark.parametrize("replays", [True, False])
def test_a_transformer_that_fails_under_replaced_attention_only(need: str, replays: bool) -> None:
    message = rf"^films\.csv:{LONGEST_ROW}: the model's logits are not finite \(NaN or infinite\) {REPLACED}"
    with pytest.raises(AdapterError, match=message):
        measure(FragileTransformer(replays=replays), transformer_rows(), [need], model="small", seed=0)


class FragileReader(PooledAttentionAdapter):
    """Gives NaN for rows from which tokens were erased, if more than half of the longest text is left."""

    def __init__(self, **changes: Any) -> None:
        super().__init__(**{**parts(), "mask_id": 1, **changes})  # type: ignore[arg-type]

    def run(self, inputs: Inputs, *, embeddings: Any = None, **given: Any) -> Trace:
        trace = super().run(inputs, embeddings=embeddings, **given)
        return trace if embeddings is not None else replace(trace, logits=self.spoilt(trace.logits, inputs.mask[TEXT]))

    def logits_without(self, inputs: Inputs, shared: object, rows: Tensor, keep: Tensor) -> Tensor:
        return self.spoilt(super().logits_without(inputs, shared, rows, keep), inputs.mask[TEXT][rows])

    def spoilt(self, logits: Tensor, mask: Tensor) -> Tensor:
        return torch.where((mask.sum(1) >= WORDS_OF_LONGEST - 1)[:, None], torch.nan, logits)


@pytest.mark.parametrize(
    "need",
    [
        "leave_one_out.inputs",
        "comprehensiveness.deletion",
        "comprehensiveness.mask",
        "sufficiency.mask",
    ],
)
@pytest.mark.parametrize("shares", [False, True])
def test_a_model_that_fails_with_erased_tokens_only(need: str, shares: bool) -> None:
    def encoder(embedded: Tensor, mask: Tensor) -> Tensor:
        return torch.tanh(torch.cat([embedded] * 2, -1)[..., :10])

    model = FragileReader(encoder=encoder, reach=0) if shares else FragileReader()
    assert model.capabilities.shares_states == shares
    message = rf"^films\.csv:{LONGEST + 2}: the model's logits are not finite \(NaN or infinite\) {ERASED}"
    with pytest.raises(AdapterError, match=message):
        measure(model, dataset(), [need], model="lstm", seed=0)


ROWS = [Instance(id=str(i), text="good", where=f"films.csv:{i}") for i in range(3)]


def test_logits_that_are_undefined_because_the_weights_are_undefined_are_accepted() -> None:
    logits, weights = torch.zeros((3, 2, 2)), torch.full((3, 2, 1, 4), 0.25)
    logits[1, 1, 0] = torch.nan
    with pytest.raises(AdapterError, match=r"^films\.csv:1: "):
        refuse_not_finite(logits, ROWS, REPLACED, given=weights)
    weights[1, 1, 0, 3] = torch.nan
    refuse_not_finite(logits, ROWS, REPLACED, given=weights)
    logits[2, 0] = torch.inf
    with pytest.raises(AdapterError, match=r"^films\.csv:2: "):
        refuse_not_finite(logits, ROWS, REPLACED, given=weights)


def test_a_variant_is_named_by_its_row() -> None:
    logits = torch.tensor([[0.0], [torch.nan], [0.0]])
    with pytest.raises(AdapterError, match=r"^films\.csv:0: .*with some of its tokens erased for 'good'"):
        refuse_not_finite(logits, ROWS, ERASED, rows=torch.tensor([2, 0, 1]))
