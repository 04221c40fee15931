"""The fused kernel computes the sites whose weights are not needed, and changes no result."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("transformers", reason="needs transformers: pip install 'attnaudit[transformers]'")

from attnaudit.adapters.huggingface.attention import recorder
from attnaudit.adapters.huggingface.attention.function_call import FunctionCall
from attnaudit.adapters.huggingface.attention.fused_attention import FusedObserver
from attnaudit.adapters.protocol import TEXT
from attnaudit.engine.measuring import measure
from attnaudit.instances import Dataset, Instance
from attnaudit.readings import named

Load = Callable[[str], Any]

MORE = ("roberta", "mistral", "qwen3", "bart")
#: Architectures whose attention function does what the fused kernel does.
FUSED = ("bert", "gpt2", "llama", *(pytest.param(name, marks=pytest.mark.slow) for name in MORE))
#: Architectures with caps on the scores, with attention sinks, or without an attention function.
NOT_FUSED = ("gemma2", "gpt-oss", pytest.param("mpnet", marks=pytest.mark.slow))


@pytest.mark.parametrize("name", FUSED)
def test_passes_for_few_sites_give_the_same_results(name: str, load_adapter: Load, instances: list[Instance]) -> None:
    adapter = load_adapter(name)
    assert adapter.capabilities.selects_sites
    inputs = adapter.collate(instances)
    with torch.no_grad():
        whole = adapter.run(inputs)
        last = adapter.sites()[-1].key
        for sites in ((), (last,)):
            trace = adapter.run(inputs, sites=sites)
            torch.testing.assert_close(trace.logits, whole.logits, atol=1e-5, rtol=1e-5)
            assert set(sites) <= set(trace.attention)
            assert len(trace.attention) < len(whole.attention)
            for key, weights in trace.attention.items():
                torch.testing.assert_close(weights, whole.attention[key], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", NOT_FUSED)
def test_attention_that_the_fused_kernel_would_change_is_not_fused(name: str, load_adapter: Load) -> None:
    assert not load_adapter(name).capabilities.selects_sites


def test_caps_that_the_scores_of_the_synthetic_texts_do_not_reach_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    from attnaudit.adapters.huggingface import transformer
    from attnaudit.adapters.huggingface.attention import fused_attention
    from tests import architectures

    def ignores_caps(call: FunctionCall) -> torch.Tensor:
        return original(replace(call, rest={**call.rest, "softcap": None}))

    original = fused_attention.fused_attention
    monkeypatch.setattr(fused_attention, "fused_attention", ignores_caps)
    model, tokenizer = architectures.build("gemma2", attn_logit_softcapping=50.0)
    adapter: Any = transformer(model, tokenizer)
    comparison = fused_attention.FusedComparison()
    with torch.no_grad():
        adapter.runner.logits(adapter.runner.builder.synthetic(), comparison)
    assert comparison.largest_difference > 1e-4
    assert not adapter.capabilities.selects_sites


def test_measures_do_not_depend_on_the_kernel(
    load_adapter: Load, instances: list[Instance], monkeypatch: pytest.MonkeyPatch
) -> None:
    adapter = load_adapter("bert")
    needs = (
        "gradient.meister.inputs",
        "leave_one_out.inputs",
        "permutation",
        "pointing.held",
        "pointing.live",
        "rearrangement",
        "rearrangement.everywhere.frozen",
        "rearrangement.layer",
        named("permutation", "mean@layer=0,heads=0"),
        named("permutation", "cls@layer=1,heads=2"),
        *(named("attention", f"{kind}@query=cls,layer=1,heads=mean") for kind in ("norms", "gradients")),
    )
    data = Dataset(name="texts", description="", source="", instances=tuple(instances))
    calls: list[int] = []
    kernel = recorder.fused_attention

    def counted(call: FunctionCall) -> torch.Tensor:
        calls.append(1)
        return kernel(call)

    monkeypatch.setattr(recorder, "fused_attention", counted)
    fused, _ = measure(adapter, data, needs, model="model", seed=0)
    assert calls
    monkeypatch.setattr(adapter, "runner", replace(adapter.runner, fuses=False, selects_queries=False))
    eager, _ = measure(adapter, data, needs, model="model", seed=0)
    assert fused.scalars.keys() == eager.scalars.keys()
    for name, values in fused.scalars.items():
        np.testing.assert_allclose(values, eager.scalars[name], atol=2e-5, rtol=1e-4, err_msg=name)
    for name, rows in fused.vectors.items():
        for row, expected in zip(rows, eager.vectors[name], strict=True):
            np.testing.assert_allclose(row, expected, atol=2e-5, rtol=1e-4, err_msg=name)


def test_readings_of_other_layers_record_their_layers(load_adapter: Load, instances: list[Instance]) -> None:
    adapter = load_adapter("bert")
    inputs = adapter.collate(instances)
    first = adapter.sites()[0].key
    with torch.no_grad():
        trace = adapter.run(inputs, sites=(first,))
    assert set(trace.attention) == {first}
    assert inputs.ids[TEXT].shape[1] == trace.attention[first].shape[-1]


def test_observers_of_function_calls_refuse_a_softmax() -> None:
    observer, weights = FusedObserver(), torch.ones(1, 1, 2, 2)
    with pytest.raises(TypeError, match="FusedObserver received the softmax of Linear, but it handles only calls"):
        observer.on_softmax(torch.nn.Linear(1, 1), weights, weights)
    with pytest.raises(TypeError, match="FusedObserver received the values of a softmax"):
        observer.on_values(weights, weights)
