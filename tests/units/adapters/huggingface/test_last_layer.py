"""After its last attention, a model that reads a single token runs only on this token, and gives the same numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

pytest.importorskip("transformers", reason="needs transformers: pip install 'attnaudit[transformers]'")

from attnaudit.adapters.huggingface import probe
from attnaudit.adapters.huggingface.last_layer_probe import last_layer_at_read_token
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
