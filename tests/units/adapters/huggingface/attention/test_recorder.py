"""A forward pass leaves no traces in the model or in other threads, even after an error."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("transformers", reason="needs transformers: pip install 'attnaudit[transformers]'")

from attnaudit.adapters.huggingface import transformer
from attnaudit.adapters.huggingface.attention.recorder import current_observer
from attnaudit.adapters.huggingface.attention.softmax_hook import is_innermost_attention
from attnaudit.adapters.huggingface.attention.weighted_values import expand_groups
from attnaudit.adapters.huggingface.passes.layer_states import map_tensors, repeat_rows
from attnaudit.adapters.protocol import TEXT, Site
from attnaudit.errors import AdapterError
from attnaudit.instances import Instance
from tests import architectures

LoadAdapter = Callable[[str], Any]
KERNELS = ("bert", "deberta-v2")


def _hooks(model: nn.Module) -> int:
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())


def _patched(model: nn.Module) -> int:
    return sum("forward" in m.__dict__ for m in model.modules())


@pytest.mark.parametrize("name", KERNELS)
def test_an_error_in_an_intervention_leaves_no_hooks(
    name: str, load_adapter: LoadAdapter, instances: list[Instance]
) -> None:
    adapter = load_adapter(name)
    inputs = adapter.collate(instances)
    before = adapter.run(inputs).logits

    def fail(_site: Site, _weights: Tensor, _allowed: Tensor) -> Tensor:
        raise ZeroDivisionError

    hooks = _hooks(adapter.model)
    with pytest.raises(ZeroDivisionError):
        adapter.run(inputs, intervene=fail, hidden=True, embeddings=adapter.embed(inputs))
    assert current_observer.get() is None
    assert (_hooks(adapter.model), _patched(adapter.model)) == (hooks, 0)
    assert torch.equal(adapter.run(inputs).logits, before)


@pytest.mark.parametrize("name", [*KERNELS, "t5"])
def test_a_replay_leaves_no_hooks(name: str, load_adapter: LoadAdapter, instances: list[Instance]) -> None:
    adapter = load_adapter(name)
    inputs = adapter.collate(instances)
    hooks = _hooks(adapter.model)
    with torch.no_grad():
        trace = adapter.run(inputs, hidden=True)
        for site in adapter.sites():
            queries = adapter.read_positions(inputs)
            weights = trace.attention[site.key][:, None, :, 0]
            adapter.replay(inputs, trace, site, torch.zeros_like(queries), weights)
    assert (_hooks(adapter.model), _patched(adapter.model)) == (hooks, 0)


@pytest.mark.parametrize("name", KERNELS)
def test_a_pass_inside_a_pass(name: str, load_adapter: LoadAdapter, instances: list[Instance]) -> None:
    """An intervention may run the model, too."""
    adapter = load_adapter(name)
    inputs = adapter.collate(instances)
    with torch.no_grad():
        expected = adapter.run(inputs)
        inner = []

        def again(site: Site, weights: Tensor, _allowed: Tensor) -> Tensor:
            inner.append(adapter.run(inputs).logits)
            return weights

        outer = adapter.run(inputs, intervene=again)
    assert torch.equal(outer.logits, expected.logits)
    assert all(torch.equal(logits, expected.logits) for logits in inner)


def test_passes_in_threads_do_not_see_each_other(load_adapter: LoadAdapter, instances: list[Instance]) -> None:
    adapter = load_adapter("bert")
    expected = {one.id: adapter.run(adapter.collate([one])).logits for one in instances}

    def run(one: Instance) -> bool:
        trace = adapter.run(adapter.collate([one]))
        return torch.equal(trace.logits, expected[one.id]) and len(trace.attention) == len(adapter.sites())

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(run, instances * 6))


def test_a_prepared_model_still_runs_without_the_adapter(load_adapter: LoadAdapter, instances: list[Instance]) -> None:
    adapter = load_adapter("llama")
    inputs = adapter.collate(instances)
    own, _ = architectures.build("llama")
    with torch.no_grad():
        arguments = adapter.runner.builder.arguments(inputs)
        torch.testing.assert_close(adapter.model(**arguments).logits, own(**arguments).logits)


def test_two_models_at_once(load_adapter: LoadAdapter, instances: list[Instance]) -> None:
    bert, electra = load_adapter("bert"), load_adapter("electra")
    inputs = bert.collate(instances)
    alone = bert.run(inputs).logits

    def run_electra(_site: Site, _weights: Tensor, _allowed: Tensor) -> None:
        assert len(electra.run(electra.collate(instances)).attention) == len(electra.sites())

    assert torch.equal(bert.run(inputs, intervene=run_electra).logits, alone)


def test_an_unknown_site_is_refused(load_adapter: LoadAdapter) -> None:
    with pytest.raises(
        AdapterError, match=r"no attention site 'layer\.9'\. Its sites are layer\.0, layer\.1, layer\.2"
    ):
        load_adapter("bert").runner.layout.call_index(Site(key="layer.9"))


def test_decoding_is_refused_in_favour_of_replay(load_adapter: LoadAdapter) -> None:
    with pytest.raises(AdapterError, match="Use replay"):
        load_adapter("bert").decode(torch.zeros(1, 2, 3), torch.zeros(1, 1, 2))
    with pytest.raises(AdapterError, match="Use replay"):
        load_adapter("bert").decoder_weights()


def test_value_vectors_need_a_trace_with_states(load_adapter: LoadAdapter, instances: list[Instance]) -> None:
    adapter = load_adapter("bert")
    with pytest.raises(AdapterError, match=r"run\(hidden=True\)"):
        adapter.value_vectors(adapter.run(adapter.collate(instances)), adapter.sites()[0])


def test_token_types_that_did_not_move_with_their_tokens_are_refused(load_adapter: LoadAdapter) -> None:
    adapter = load_adapter("bert")
    inputs = adapter.collate([Instance(id="a", text="good film", query="bad film")])
    shorter = adapter.delete(inputs, TEXT, [(0, 1)])
    shorter.extra["token_types"] = inputs.extra["token_types"]  # type: ignore[index]
    with pytest.raises(AdapterError, match="expected one entry per token"):
        adapter.run(shorter)


def test_a_model_built_in_training_mode_is_audited_in_evaluation_mode() -> None:
    model, tokenizer = architectures.build("bert")
    adapter = transformer(model.train(), tokenizer)
    assert not adapter.model.training


def test_only_the_innermost_of_nested_attention_modules_is_observed() -> None:
    class Attention(nn.Module):
        pass

    class OuterAttention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Attention()

    outer = OuterAttention()
    assert [is_innermost_attention(m) for m in (outer, outer.inner, nn.Linear(1, 1))] == [False, True, False]


def test_values_of_grouped_heads_are_given_to_each_head() -> None:
    value = torch.arange(2.0).reshape(1, 2, 1, 1)
    assert expand_groups(value, 4).flatten().tolist() == [0, 0, 1, 1]
    assert expand_groups(value, 2) is value


def test_nested_outputs_are_repeated_by_row() -> None:
    row, shared = torch.arange(2.0), torch.zeros(3)
    (repeated, [same]), string = map_tensors(((row, [shared]), "x"), lambda t: repeat_rows(t, 2, 2))
    assert (repeated.tolist(), same.tolist(), string) == ([0, 0, 1, 1], [0, 0, 0], "x")
    assert repeat_rows(torch.zeros(5, 2, 1), 2, 3, time_first=True).shape == (5, 6, 1)
