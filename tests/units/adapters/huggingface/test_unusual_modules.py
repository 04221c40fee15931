"""Architectures whose modules return or take their states in another form than those of most models.

I-BERT's embedding also returns a scale, the states of SqueezeBERT have the shape (B, m, T), DiffLlama applies the
weights of each layer to two tensors of values, and GraniteSWA scales the weighted sum of the values.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from typing import Any

import pytest

pytest.importorskip("transformers", reason="needs transformers: pip install 'attnaudit[transformers]'")

import torch
import transformers
from torch import Tensor

from attnaudit.adapters.huggingface import transformer
from attnaudit.adapters.protocol import TEXT, Site
from attnaudit.conformance import full
from attnaudit.instances import Instance
from tests import architectures

SMALL = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 64,
}
SETTINGS: dict[str, Mapping[str, Any]] = {
    "IBert": SMALL,
    "SqueezeBert": {**SMALL, "embedding_size": 32},
    "DiffLlama": {**SMALL, "num_key_value_heads": 2, "head_dim": 8},
}
INSTANCES = [Instance(id=str(i), text=text) for i, text in enumerate(architectures.SENTENCES[:5])]


def plain_model(kind: str) -> tuple[Any, Any]:
    """Return a small model with random weights, in eager attention, and its tokenizer."""
    tokenizer = architectures.tokenizer("unigram" if kind == "DiffLlama" else "wordpiece")
    config = getattr(transformers, f"{kind}Config")(
        vocab_size=len(tokenizer), pad_token_id=tokenizer.pad_token_id, num_labels=2, **SETTINGS[kind]
    )
    config._attn_implementation = "eager"
    torch.manual_seed(0)
    model = getattr(transformers, f"{kind}ForSequenceClassification")(config).eval()
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.2)
    return model, tokenizer


@pytest.mark.parametrize("kind", SETTINGS)
def test_logits_and_attention_are_those_of_the_plain_model(kind: str) -> None:
    model, _ = plain_model(kind)
    adapter = transformer(*plain_model(kind))
    inputs = adapter.collate(INSTANCES)
    trace = adapter.run(inputs)
    for row, mask in enumerate(inputs.mask[TEXT]):
        with torch.no_grad():
            alone = model(input_ids=inputs.ids[TEXT][row][mask][None], output_attentions=True)
        torch.testing.assert_close(trace.logits[row], alone.logits[0], atol=1e-5, rtol=0)
        assert len(alone.attentions) == len(adapter.sites())
        for site, returned in zip(adapter.sites(), alone.attentions, strict=True):
            # SqueezeBERT returns scores where other models return weights.
            expected = returned.softmax(-1) if kind == "SqueezeBert" else returned
            found = trace.attention[site.key][row][:, mask][:, :, mask]
            torch.testing.assert_close(found, expected[0], atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    "kind", ["DiffLlama", *(pytest.param(k, marks=pytest.mark.slow) for k in ("IBert", "SqueezeBert"))]
)
def test_the_full_conformance_suite_passes(kind: str) -> None:
    results = full(transformer(*plain_model(kind)), INSTANCES)
    assert [one for one in results if one.outcome == "fail"] == []
    assert sum(one.outcome == "pass" for one in results) > 20


def test_weights_that_are_replaced_are_applied_to_both_values(monkeypatch: pytest.MonkeyPatch) -> None:
    adapter = transformer(*plain_model("DiffLlama"))
    inputs = adapter.collate(INSTANCES[:1])
    first = adapter.sites()[0]

    def first_key(site: Site, weights: Tensor, _allowed: Tensor) -> Tensor | None:
        return torch.eye(weights.shape[-1])[0].expand_as(weights) if site.key == first.key else None

    with torch.no_grad():
        found = adapter.run(inputs, intervene=first_key).logits
        one_query = adapter.replay(
            inputs,
            adapter.run(inputs, hidden=True),
            first,
            adapter.read_positions(inputs),
            torch.eye(inputs.mask[TEXT].shape[1])[0].expand(1, 1, first.heads, -1),
        )
    model, _ = plain_model("DiffLlama")
    code = sys.modules[type(model).__module__]
    own, read = code.eager_attention_forward, int(adapter.read_positions(inputs))

    def replaced(only_read: bool) -> Tensor:
        def attend(module: Any, query: Tensor, key: Tensor, value: Tensor, *rest: Any, **named: Any) -> Any:
            output, weights = own(module, query, key, value, *rest, **named)
            if module is model.model.layers[0].self_attn:
                queries = [read] if only_read else list(range(output.shape[1]))
                wide = value.repeat_interleave(output.shape[2] // value.shape[1], dim=1)
                output = output.clone()
                output[:, queries] = wide[:, :, :1].transpose(1, 2)
            return output, weights

        monkeypatch.setattr(code, "eager_attention_forward", attend)
        with torch.no_grad():
            logits: Tensor = model(input_ids=inputs.ids[TEXT]).logits
        return logits

    torch.testing.assert_close(found, replaced(only_read=False), atol=1e-5, rtol=0)
    torch.testing.assert_close(one_query[:, 0], replaced(only_read=True), atol=1e-5, rtol=0)


def test_the_gradient_of_weights_counts_both_values() -> None:
    adapter = transformer(*plain_model("DiffLlama"))
    inputs = adapter.collate(INSTANCES[:1])
    first = adapter.sites()[0]
    at, step = (0, 1, 4, 2), 1e-3
    embeddings = adapter.embed(inputs)[TEXT].detach().requires_grad_(True)
    trace = adapter.run(inputs, embeddings={TEXT: embeddings})
    (gradient,) = torch.autograd.grad(trace.logits[0, 1], trace.attention[first.key])

    def logit(change: float) -> float:
        def intervene(site: Site, weights: Tensor, _allowed: Tensor) -> Tensor | None:
            if site.key != first.key:
                return None
            changed = weights.clone()
            changed[at] += change
            return changed

        with torch.no_grad():
            return float(adapter.run(inputs, intervene=intervene).logits[0, 1])

    slope = (logit(step) - logit(-step)) / (2 * step)
    assert abs(slope) > 1e-2
    assert float(gradient[at]) == pytest.approx(slope, rel=0.02)


def granite(tokenizer: Any) -> Any:
    """Return a small GraniteSWA model in eager attention, whose heads have different sinks."""
    settings = {**SMALL, "num_key_value_heads": 2, "sliding_window": 4}
    config = transformers.GraniteSWAConfig(vocab_size=len(tokenizer), pad_token_id=tokenizer.pad_token_id, **settings)
    config._attn_implementation = "eager"
    torch.manual_seed(0)
    model = transformers.GraniteSWAForCausalLM(config).eval()
    for layer in model.model.layers:
        layer.self_attn.sinks.data.copy_(torch.tensor([-2.0, 0.0, 0.5, 2.0]))
    return model


def granite_adapter(dtype: torch.dtype = torch.float32) -> Any:
    tokenizer = architectures.tokenizer("unigram")
    words = {"labels": architectures.LABELS, "template": architectures.TEMPLATE}
    return transformer(granite(tokenizer).to(dtype), tokenizer, **words)


@torch.no_grad()
def test_sinks_that_scale_the_output_are_part_of_the_weights() -> None:
    """GraniteSWA returns weights that sum to 1, and then scales the output by the share that its sink leaves."""
    tokenizer = architectures.tokenizer("unigram")
    ids = tokenizer("good it was", return_tensors="pt").input_ids
    expected = granite(tokenizer)(input_ids=ids, output_attentions=True)
    adapter = granite_adapter()
    inputs = adapter.collate([Instance(id="0", text="good")])
    assert torch.equal(inputs.ids[TEXT], ids)
    trace = adapter.run(inputs)
    kept = {site.key: trace.attention[site.key] for site in adapter.sites()}
    words = [tokenizer(word, add_special_tokens=False).input_ids[0] for word in architectures.LABELS.values()]
    torch.testing.assert_close(trace.logits[0], expected.logits[0, -1, words], atol=1e-5, rtol=0)
    for site, returned in zip(adapter.sites(), expected.attentions, strict=True):
        sums = kept[site.key].sum(-1)
        assert site.sinks
        assert float(sums.max()) < 1
        # A larger sink takes more of the attention of its head.
        assert bool((sums[0, 1:].diff(dim=0) < 0).all())
        torch.testing.assert_close(kept[site.key] / sums[..., None], returned, atol=1e-5, rtol=0)
    again = adapter.run(inputs, intervene=lambda site, _w, _a: kept[site.key]).logits
    torch.testing.assert_close(again, trace.logits, atol=1e-5, rtol=0)


def test_a_weighted_sum_of_zero_has_a_gradient() -> None:
    """The values of a zero embedding are zero, and a factor cannot be computed from their sum."""
    adapter = granite_adapter()
    inputs = adapter.collate(INSTANCES[:2])
    embeddings = torch.zeros_like(adapter.embed(inputs)[TEXT]).requires_grad_(True)
    trace = adapter.run(inputs, embeddings={TEXT: embeddings})
    (gradient,) = torch.autograd.grad(trace.logits[:, 0].sum(), embeddings)
    assert torch.isfinite(gradient).all()
    assert gradient.any()


@pytest.mark.parametrize(
    "adapter",
    [
        pytest.param(lambda: granite_adapter(torch.bfloat16), id="GraniteSWA"),
        pytest.param(
            lambda: transformer(plain_model("DiffLlama")[0].bfloat16(), plain_model("DiffLlama")[1]), id="Diff"
        ),
    ],
)
def test_half_precision_is_compared_with_the_same_weights(adapter: Callable[[], Any]) -> None:
    half = adapter()
    sentence = half.compare_with_float32(half.collate(INSTANCES))
    assert "the attention weights by at most" in sentence
    (difference,) = re.findall(r"recomputes differ from those of eager attention by at most ([\d.e-]+)", sentence)
    assert float(difference) < 0.02
