"""After its last attention, a model that reads a single token runs only on this token, and gives the same numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

pytest.importorskip("transformers", reason="needs transformers: pip install 'attnaudit[transformers]'")

from attnaudit.adapters.huggingface.attention import function_call
from attnaudit.adapters.huggingface.outputs.read_tokens import read_positions
from attnaudit.adapters.huggingface.probes import probe
from attnaudit.adapters.huggingface.probes.last_layer_probe import last_layer_at_read_token, with_single_query
from attnaudit.errors import AdapterError
from attnaudit.instances import Instance

Load = Callable[[str], Any]


@pytest.mark.parametrize("name", ["bert", "gpt2", "mistral", "bart", pytest.param("llama", marks=pytest.mark.slow)])
def test_logits_and_gradients_are_those_of_all_tokens(name: str, load_adapter: Load, instances: list[Instance]) -> None:
    adapter = load_adapter(name)
    last_layer = adapter.runner.last_layer
    assert last_layer is not None
    everything = replace(adapter.runner, last_layer=None)
    for texts in (instances, instances[1:2]):
        inputs = adapter.collate(texts)
        embedded = adapter.embed(inputs)["text"].detach()
        found = []
        for runner in (adapter.runner, everything):
            leaf = embedded.clone().requires_grad_(True)
            logits = runner.run(inputs, embeddings={"text": leaf}, hidden=True).logits
            (gradient,) = torch.autograd.grad(logits.square().sum(), leaf)
            found.append((logits.detach(), gradient))
        for ours, theirs in zip(*found, strict=True):
            torch.testing.assert_close(ours, theirs, atol=5e-5, rtol=1e-4)


def test_the_modules_after_the_attention_run_on_one_token(load_adapter: Load, instances: list[Instance]) -> None:
    adapter = load_adapter("bert")
    inputs = adapter.collate(instances)
    shapes: list[tuple[int, ...]] = []
    last = adapter.model.bert.encoder.layer[-1]
    handle = last.intermediate.dense.register_forward_hook(lambda _m, _a, output: shapes.append(tuple(output.shape)))
    with torch.no_grad():
        adapter.run(inputs)
    handle.remove()
    assert shapes == [(len(instances), 1, last.intermediate.dense.out_features)]


@pytest.mark.parametrize("name", ["bert", "gpt2", "mistral", "bart", "llama"])
def test_without_gradients_the_last_attention_computes_only_the_query_that_is_read(
    name: str, load_adapter: Load, instances: list[Instance], monkeypatch: pytest.MonkeyPatch
) -> None:
    adapter = load_adapter(name)
    last_layer = adapter.runner.last_layer
    everything = replace(adapter.runner, last_layer=None)
    queries: list[tuple[str, int]] = []
    fused = function_call._fused

    def noted(call: Any) -> Any:
        queries.append(("last" if call.module is last_layer.attention else "other", call.query.shape[2]))
        return fused(call)

    monkeypatch.setattr(function_call, "_fused", noted)
    site = adapter.sites()[-1]
    for texts in (instances, instances[1:2]):
        inputs = adapter.collate(texts)
        mask = adapter.runner.builder.output_mask(inputs)
        read = read_positions(mask, last_layer.read_tokens)[:, None]
        for sites, shown in (((), None), ((site.key,), {site.key: read})):
            queries.clear()
            with torch.no_grad():
                found = adapter.runner.run(inputs, sites=sites, queries=shown)
                assert {count for which, count in queries if which == "last"} == {1}
                expected = everything.run(inputs, sites=sites, queries=shown)
            torch.testing.assert_close(found.logits, expected.logits, atol=2e-6, rtol=1e-6)
            for key, weights in expected.attention.items():
                torch.testing.assert_close(found.attention[key], weights, atol=1e-6, rtol=0)


def test_the_linear_layer_of_the_queries_runs_on_one_token_unless_other_queries_are_shown(
    load_adapter: Load, instances: list[Instance]
) -> None:
    adapter = load_adapter("bert")
    attention = adapter.model.bert.encoder.layer[-1].attention.self
    assert adapter.runner.last_layer.of_queries == (attention.query,)
    shapes: dict[str, list[int]] = {"query": [], "key": [], "value": []}
    linear = torch.nn.functional.linear

    def noted(states: Any, weight: Any, bias: Any = None) -> Any:
        for name, found in shapes.items():
            if weight is getattr(attention, name).weight:
                found.append(states.shape[1])
        return linear(states, weight, bias)

    inputs, site = adapter.collate(instances), adapter.sites()[-1]
    width, last = inputs.ids["text"].shape[1], inputs.mask["text"].sum(1, keepdim=True) - 1
    with pytest.MonkeyPatch.context() as patched, torch.no_grad():
        patched.setattr(torch.nn.functional, "linear", noted)
        adapter.runner.logits(inputs)
        adapter.runner.run(inputs, sites=(site.key,), queries={site.key: last})
        adapter.runner.run(inputs)
        with attention.query.register_forward_hook(lambda *_: None):  # a hook expects the states of all tokens
            adapter.runner.logits(inputs)
    assert shapes["query"] == [1, width, width, width]
    assert shapes["key"] == shapes["value"] == [width] * 4


@pytest.mark.parametrize("name", ["bert", "llama", "gpt2"])
def test_the_linear_layers_of_the_queries_are_found_although_the_logits_hardly_depend_on_the_attention(
    name: str, load_adapter: Load
) -> None:
    """Logits alone cannot tell the keys and values from the queries if the last attention hardly matters."""
    adapter = load_adapter(name)
    runner, last_layer = adapter.runner, adapter.runner.last_layer
    outputs = {"bert": "attention.output.dense", "llama": "self_attn.o_proj", "gpt2": "attn.c_proj"}
    weight = last_layer.layer.get_submodule(outputs[name]).weight
    before = weight.detach().clone()
    try:
        weight.data.mul_(1e-6)
        plain = replace(runner, last_layer=None)
        found = with_single_query(plain, replace(last_layer, single_query=False, of_queries=()))
    finally:
        weight.data.copy_(before)
    assert found.single_query
    assert found.of_queries == last_layer.of_queries
    expected = {"bert": ["attention.self.query"], "llama": ["self_attn.q_proj"], "gpt2": []}[name]
    assert [label for label, one in last_layer.layer.named_modules() if one in found.of_queries] == expected


def test_a_linear_layer_that_computes_more_than_queries_gives_no_logits(
    load_adapter: Load, instances: list[Instance]
) -> None:
    """If a layer were found wrongly, the audit would end with an error instead of a wrong number."""
    adapter = load_adapter("bert")
    inputs, key = adapter.collate(instances), adapter.model.bert.encoder.layer[-1].attention.self.key
    wrong = replace(adapter.runner, last_layer=replace(adapter.runner.last_layer, of_queries=(key,)))
    with torch.no_grad():
        assert bool(adapter.runner.logits(inputs).isfinite().all())
        assert bool(wrong.logits(inputs).isnan().all())


def test_a_model_that_averages_its_states_runs_on_all_tokens(load_adapter: Load) -> None:
    adapter = load_adapter("bert")
    runner = replace(adapter.runner, last_layer=None)
    pooler, before = adapter.model.bert.pooler, adapter.model.bert.pooler.forward
    try:
        pooler.forward = lambda states: before(states.mean(1, keepdim=True))
        assert probe.find_read_tokens(runner) != "first"
        # Even if the probe named a single token, the logits would not agree.
        assert last_layer_at_read_token(runner, "first") is None
    finally:
        del pooler.__dict__["forward"]


def test_a_model_that_reads_another_token_later_is_refused(load_adapter: Load, instances: list[Instance]) -> None:
    adapter = load_adapter("bert")
    inputs = adapter.collate(instances)
    pooler, before = adapter.model.bert.pooler, adapter.model.bert.pooler.forward
    try:
        pooler.forward = lambda states: before(states[:, 1:])
        with pytest.raises(AdapterError, match="depend on tokens other than the first one"):
            adapter.run(inputs)
    finally:
        del pooler.__dict__["forward"]


def test_a_text_with_the_padding_token_runs_on_all_tokens(load_adapter: Load, instances: list[Instance]) -> None:
    """GPT-2 finds the last token of a row by the padding token, and then reads a token before the last one."""
    adapter = load_adapter("gpt2")
    inputs = adapter.collate(instances)
    ids = inputs.ids["text"].clone()
    rows = torch.arange(len(ids))
    last = inputs.mask["text"].sum(1) - 1
    ids[rows, last] = adapter.runner.builder.pad_id
    changed = replace(inputs, ids={"text": ids})
    with torch.no_grad():
        expected = replace(adapter.runner, last_layer=None).logits(changed)
        torch.testing.assert_close(adapter.runner.logits(changed), expected, atol=0, rtol=0)
