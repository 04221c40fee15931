"""Modules that carry information between tokens without visible weights are found by what they do."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers.modeling_outputs import SequenceClassifierOutput

from attnaudit.adapters.huggingface import transformer
from attnaudit.engine.batches.scopes import expanded
from attnaudit.errors import AdapterError
from tests import architectures, hybrids


class Neutral(nn.Module):
    """Mixes tokens. Nothing in its name says so."""

    def forward(self, states: Tensor) -> Tensor:
        return states + 0.3 * states.cumsum(1)


class Harmless(nn.Module):
    """Is called attention, but treats each token alone."""

    def forward(self, states: Tensor) -> Tensor:
        return states * states.softmax(-1)


HarmlessAttention = type("HarmlessAttention", (Harmless,), {})


class Pooling(nn.Module):
    """A head that pools all states with weights of its own."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.score, self.out = nn.Linear(width, 1), nn.Linear(width, 2)

    def forward(self, states: Tensor, mask: Tensor) -> Tensor:
        weights = self.score(states)[..., 0].masked_fill(mask == 0, -1e9).softmax(1)
        logits: Tensor = self.out((weights[..., None] * states).sum(1))
        return logits


def with_extra(module: nn.Module, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Any]:
    """Return a GPT-2 classifier whose second layer ends with a module."""
    model, tokenizer = architectures.build("gpt2")
    mlp = model.transformer.h[1].mlp
    mlp.extra, own = module, mlp.forward
    monkeypatch.setattr(mlp, "forward", lambda states: mlp.extra(own(states)))
    return model, tokenizer


@pytest.mark.parametrize("name", ["bert", "gpt2", "deberta", "xlnet", "t5", "gpt-oss"])
def test_models_that_mix_tokens_by_attention_alone(name: str) -> None:
    assert transformer(*architectures.build(name)).capabilities.unseen_mixers == ()


def test_state_space_layers_of_a_hybrid() -> None:
    adapter = transformer(*hybrids.planted_hybrid())
    assert adapter.capabilities.unseen_mixers == hybrids.MIXERS
    with pytest.raises(AdapterError, match="rollout needs the attention of every layer, but 2 modules of the model"):
        expanded(adapter, "rollout@query=last")
    assert len(expanded(adapter, "last@layer=*,heads=mean")) == 2


def test_a_module_is_found_by_what_it_does(monkeypatch: pytest.MonkeyPatch) -> None:
    adapter = transformer(*with_extra(Neutral(), monkeypatch))
    assert adapter.capabilities.unseen_mixers == ("transformer.h.1.mlp.extra (Neutral)",)


def test_a_name_is_no_evidence(monkeypatch: pytest.MonkeyPatch) -> None:
    adapter = transformer(*with_extra(HarmlessAttention(), monkeypatch))
    assert adapter.capabilities.unseen_mixers == ()


def test_mixing_in_the_code_of_a_model_and_in_modules_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    model, tokenizer = with_extra(Neutral(), monkeypatch)
    layer, own = model.transformer.h[0], model.transformer.h[0].forward
    monkeypatch.setattr(layer, "forward", lambda states, *args, **rest: own(states.cumsum(1), *args, **rest))
    adapter = transformer(model, tokenizer)
    assert adapter.capabilities.unseen_mixers == (
        "transformer.h.0 (GPT2Block)",
        "transformer.h.1.mlp.extra (Neutral)",
    )


def test_a_head_that_pools_with_weights_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    model, tokenizer = architectures.build("modernbert")
    assert transformer(model, tokenizer).capabilities.unseen_mixers == ()
    model.pooling = Pooling(architectures.HIDDEN)

    def forward(input_ids: Tensor, attention_mask: Tensor, **_rest: Any) -> Any:
        states = model.model(input_ids, attention_mask).last_hidden_state
        return SequenceClassifierOutput(logits=model.pooling(states, attention_mask))

    monkeypatch.setattr(model, "forward", forward)
    assert transformer(model, tokenizer).capabilities.unseen_mixers == ("pooling (Pooling)",)


class Head(nn.Module):
    """A head that gets the mean and the states of all tokens. Its own code changes the mean, and may add a maximum.

    The argument is the number of features whose maximum is added.
    """

    def __init__(self, *, largest_of: int) -> None:
        super().__init__()
        self.largest_of = largest_of
        self.first = nn.Linear(architectures.HIDDEN, 2)

    def forward(self, mean: Tensor, states: Tensor) -> Tensor:
        logits: Tensor = self.first(nn.functional.gelu(mean))
        return logits + states[..., : self.largest_of].amax(1) @ self.first.weight[:, : self.largest_of].T


#: What a head reads -> the number of features whose maximum it adds.
LARGEST_OF = {
    "mean and largest in a head": architectures.HIDDEN,
    "mean and largest of two in a head": 2,
    "mean and largest of one in a head": 1,
}


class Experts(nn.Module):
    """A module that changes some of the states. The number of these states depends on the text."""

    def __init__(self) -> None:
        super().__init__()
        self.expert = nn.GELU()

    def forward(self, states: Tensor) -> Tensor:
        chosen = states > 0
        result = states.clone()
        result[chosen] = self.expert(states[chosen])
        return result


class Wrapper(nn.Module):
    """A custom module around a BERT model. The arguments say what its code mixes, what its head reads, and whether its
    calls depend on the tokens."""

    def __init__(self, *, mixes: bool = False, pools: str = "mean", varies: bool = False) -> None:
        super().__init__()
        self.bert = architectures.build("bert")[0].bert
        self.mixes, self.pools, self.varies = mixes, pools, varies
        self.first, self.second = nn.Linear(architectures.HIDDEN, 2), nn.Linear(architectures.HIDDEN, 2)
        self.experts = Experts()
        self.head = Head(largest_of=LARGEST_OF.get(pools, 0))
        self.step = nn.Identity()

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        embedded = self.bert.get_input_embeddings()(input_ids)
        if self.varies:  # the number of calls depends on the tokens, as in a mixture of experts
            for _ in range(int(input_ids.sum()) % 97):
                embedded = self.step(embedded)
        if self.mixes:
            embedded = torch.cat([embedded[:, :1], embedded[:, 1:] + embedded[:, :-1]], 1)
        states = self.bert(inputs_embeds=embedded, attention_mask=attention_mask).last_hidden_state
        if "experts" in self.pools:
            states = self.experts(states)
        mask = attention_mask[..., None].to(states.dtype)
        read = (states * mask).sum(1) / mask.sum(1) if self.pools.startswith("mean") else states[:, 0]
        if "in a head" in self.pools:
            head_logits: Tensor = self.head(read, states.masked_fill(mask == 0, -1e9))
            return head_logits
        logits: Tensor = self.first(read)
        if self.pools == "first and embeddings":
            logits = logits + self.second((embedded * mask).sum(1))
        if self.pools == "mean and largest":
            logits = logits + self.second(states.masked_fill(mask == 0, -1e9).amax(1))
        return logits


def mixers_of(**arguments: Any) -> tuple[str, ...]:
    """Return the unseen mixers of a custom module around a BERT model."""
    torch.manual_seed(0)
    module, tokenizer = Wrapper(**arguments), architectures.build("bert")[1]
    return transformer(module, tokenizer, classes=["negative", "positive"]).capabilities.unseen_mixers


@pytest.mark.parametrize("pools", ["first", "mean", "mean in a head", "mean of experts"])
def test_a_custom_module_that_mixes_tokens_by_attention_alone(pools: str) -> None:
    assert mixers_of(pools=pools, varies=True) == ()


def test_a_custom_module_that_mixes_tokens_before_its_transformer() -> None:
    assert mixers_of(mixes=True, pools="first") == ("module (Wrapper)",)


def test_a_second_pooled_state_is_tested_if_the_first_one_is_a_sum() -> None:
    assert mixers_of(pools="mean and largest") == ("module (Wrapper)",)


def test_calls_that_depend_on_the_tokens_hide_no_pooling() -> None:
    assert mixers_of(pools="mean and largest", varies=True) == ("module (Wrapper)",)


@pytest.mark.parametrize("pools", LARGEST_OF)
def test_a_second_pooled_state_is_found_in_a_head_that_gets_a_mean(pools: str) -> None:
    assert mixers_of(pools=pools) == ("module.head (Head)",)


def test_a_sum_of_embeddings_that_is_added_to_the_state_of_the_first_token() -> None:
    assert mixers_of(pools="first and embeddings") == ("module (Wrapper)",)
