"""Attention code of a user, without Transformers' attention interface: its weights may have three dimensions."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("transformers")

from transformers import BertConfig, PreTrainedModel
from transformers.modeling_outputs import SequenceClassifierOutput

from attnaudit.adapters.huggingface import transformer
from attnaudit.conformance import full
from attnaudit.errors import AdapterError
from attnaudit.instances import Instance
from tests import architectures

TEXTS = [Instance(id=str(n), text=text) for n, text in enumerate(architectures.SENTENCES)]
WIDTH = 32


class LegacyAttention(nn.Module):
    """Attention as older code writes it: rows and heads are one axis, and the weights (B·H, Q, K) are returned."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, hidden_states: Tensor, attention_mask: Tensor) -> tuple[Tensor, Tensor]:
        rows, width, _ = hidden_states.shape

        def split(states: Tensor) -> Tensor:
            heads = states.view(rows, width, self.heads, -1).transpose(1, 2)
            return heads.reshape(rows * self.heads, width, -1)

        query, key, value = (split(layer(hidden_states)) for layer in (self.query, self.key, self.value))
        scores = torch.bmm(query, key.transpose(1, 2)) / key.shape[-1] ** 0.5
        forbidden = (attention_mask == 0).repeat_interleave(self.heads, dim=0)[:, None, :]
        weights = self.weights(scores.masked_fill(forbidden, torch.finfo(scores.dtype).min))
        mixed = torch.bmm(weights, value).view(rows, self.heads, width, -1).transpose(1, 2)
        return self.out(mixed.reshape(rows, width, -1)), weights

    def weights(self, scores: Tensor) -> Tensor:
        return nn.functional.softmax(scores, dim=-1)


class Exponential(LegacyAttention):
    """Its weights are not computed by softmax()."""

    def weights(self, scores: Tensor) -> Tensor:
        powers = (scores - scores.amax(-1, keepdim=True)).exp()
        return powers / powers.sum(-1, keepdim=True)


class LegacyClassifier(PreTrainedModel):
    config_class = BertConfig

    def __init__(self, config: Any, heads: int = 4, kind: type[LegacyAttention] = LegacyAttention) -> None:
        super().__init__(config)
        self.embeddings = nn.Embedding(config.vocab_size, WIDTH)
        self.positions = nn.Embedding(64, WIDTH)
        self.layers = nn.ModuleList(kind(heads) for _ in range(2))
        self.classifier = nn.Linear(WIDTH, 2)

    def get_input_embeddings(self) -> nn.Module:
        return self.embeddings

    def forward(self, input_ids: Tensor, attention_mask: Tensor, **_: Any) -> SequenceClassifierOutput:
        states = self.embeddings(input_ids) + self.positions.weight[: input_ids.shape[1]]
        attentions = []
        for layer in self.layers:
            mixed, weights = layer(states, attention_mask)
            states = nn.functional.layer_norm(states + mixed, (WIDTH,))
            attentions.append(weights)
        return SequenceClassifierOutput(logits=self.classifier(states[:, 0]), attentions=tuple(attentions))


def built(**options: Any) -> tuple[Any, Any]:
    tokenizer = architectures.tokenizer("wordpiece")
    config = BertConfig(vocab_size=len(tokenizer), attn_implementation="eager", pad_token_id=tokenizer.pad_token_id)
    config.id2label = {0: "negative", 1: "positive"}
    torch.manual_seed(0)
    model = LegacyClassifier(config, **options).eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    return model, tokenizer


@pytest.mark.parametrize("heads", [4, 1])
def test_weights_of_three_dimensions_are_audited_as_the_model_computes_them(heads: int) -> None:
    model, tokenizer = built(heads=heads)
    adapter = transformer(model, tokenizer, classes=["negative", "positive"])
    assert [site.heads for site in adapter.sites()] == [heads, heads]
    assert adapter.capabilities.unseen_mixers == ()
    assert {one.check: one.detail for one in full(adapter, TEXTS) if one.outcome == "fail"} == {}
    inputs = adapter.collate(TEXTS)
    with torch.no_grad():
        output = model(**adapter.runner.builder.arguments(inputs))
        trace = adapter.run(inputs)
    torch.testing.assert_close(trace.logits, output.logits, rtol=0, atol=1e-6)
    for site, weights in zip(adapter.sites(), output.attentions, strict=True):
        expected = weights.view(len(TEXTS), heads, *weights.shape[1:]) * trace.allowed[site.key]
        torch.testing.assert_close(trace.attention[site.key], expected, rtol=0, atol=1e-6)


def test_weights_that_softmax_does_not_compute_are_refused_with_the_fix() -> None:
    with pytest.raises(AdapterError, match=r"class name that contains 'Attention'.*torch\.softmax\(\).*\(B·H, Q, K\)"):
        transformer(*built(kind=Exponential), classes=["negative", "positive"])
