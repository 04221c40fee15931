"""A pass leaves nothing behind: not after an error, not in another thread, not in the model."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("transformers", reason="needs transformers: pip install 'attnaudit[transformers]'")

from attnaudit.adapters.huggingface import transformer
from attnaudit.adapters.huggingface.layer_states import map_tensors, repeat_rows
from attnaudit.adapters.huggingface.recorder import current_observer, expand_groups
from attnaudit.adapters.huggingface.softmax_hook import is_innermost_attention
from attnaudit.adapters.protocol import TEXT, Site
from attnaudit.errors import AdapterError
from attnaudit.instances import Instance
from tests import architectures

Adapter = Callable[[str], Any]
KERNELS = ("bert", "deberta-v2")


def _hooks(model: nn.Module) -> int:
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())


def _patched(model: nn.Module) -> int:
    return sum("forward" in m.__dict__ for m in model.modules())


@pytest.mark.parametrize("name", KERNELS)
def test_an_error_in_an_intervention_leaves_nothing_behind(
    name: str, adapter: Adapter, instances: list[Instance]
) -> None:
    found = adapter(name)
    inputs = found.collate(instances)
    before = found.run(inputs).logits

    def fail(_site: Site, _weights: Tensor, _allowed: Tensor) -> Tensor:
        raise ZeroDivisionError

    hooks = _hooks(found.model)
    with pytest.raises(ZeroDivisionError):
        found.run(inputs, intervene=fail, hidden=True, embeddings=found.embed(inputs))
    assert current_observer.get() is None
    assert (_hooks(found.model), _patched(found.model)) == (hooks, 0)
    assert torch.equal(found.run(inputs).logits, before)


@pytest.mark.parametrize("name", [*KERNELS, "t5"])
def test_a_replay_leaves_nothing_behind(name: str, adapter: Adapter, instances: list[Instance]) -> None:
    found = adapter(name)
    inputs = found.collate(instances)
    hooks = _hooks(found.model)
    with torch.no_grad():
        trace = found.run(inputs, hidden=True)
        for site in found.sites():
            queries = found.read_positions(inputs)
            weights = trace.attention[site.key][:, None, :, 0]
            found.replay(inputs, trace, site, torch.zeros_like(queries), weights)
    assert (_hooks(found.model), _patched(found.model)) == (hooks, 0)


@pytest.mark.parametrize("name", KERNELS)
def test_a_pass_inside_a_pass(name: str, adapter: Adapter, instances: list[Instance]) -> None:
    """An intervention may run the model itself."""
    found = adapter(name)
    inputs = found.collate(instances)
    with torch.no_grad():
        expected = found.run(inputs)
        inner = []

        def again(site: Site, weights: Tensor, _allowed: Tensor) -> Tensor:
            inner.append(found.run(inputs).logits)
            return weights

        outer = found.run(inputs, intervene=again)
    assert torch.equal(outer.logits, expected.logits)
    assert all(torch.equal(logits, expected.logits) for logits in inner)


def test_passes_in_threads_do_not_see_each_other(adapter: Adapter, instances: list[Instance]) -> None:
    found = adapter("bert")
    expected = {one.id: found.run(found.collate([one])).logits for one in instances}

    def run(one: Instance) -> bool:
        trace = found.run(found.collate([one]))
        return torch.equal(trace.logits, expected[one.id]) and len(trace.attention) == len(found.sites())

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(run, instances * 6))


def test_a_model_still_runs_by_itself(adapter: Adapter, instances: list[Instance]) -> None:
    found = adapter("llama")
    inputs = found.collate(instances)
    own, _ = architectures.build("llama")
    arguments = found.runner.builder.arguments(inputs)
    with torch.no_grad():
        torch.testing.assert_close(found.model(**arguments).logits, own(**arguments).logits)


def test_two_models_at_once(adapter: Adapter, instances: list[Instance]) -> None:
    one, other = adapter("bert"), adapter("electra")
    inputs = one.collate(instances)
    alone = one.run(inputs).logits

    def run_other(_site: Site, _weights: Tensor, _allowed: Tensor) -> None:
        assert len(other.run(other.collate(instances)).attention) == len(other.sites())

    assert torch.equal(one.run(inputs, intervene=run_other).logits, alone)


def test_a_site_that_the_model_does_not_have(adapter: Adapter) -> None:
    message = r"no attention site 'layer\.9'\. Its sites are layer\.0, layer\.1, layer\.2"
    with pytest.raises(AdapterError, match=message):
        adapter("bert").runner.layout.call_index(Site(key="layer.9"))


def test_what_a_transformer_does_not_do(adapter: Adapter) -> None:
    with pytest.raises(AdapterError, match="Use replay"):
        adapter("bert").decode(torch.zeros(1, 2, 3), torch.zeros(1, 1, 2))
    with pytest.raises(AdapterError, match="Use replay"):
        adapter("bert").decoder_weights()


def test_value_vectors_need_a_trace_with_states(adapter: Adapter, instances: list[Instance]) -> None:
    found = adapter("bert")
    with pytest.raises(AdapterError, match=r"run\(hidden=True\)"):
        found.value_vectors(found.run(found.collate(instances)), found.sites()[0])


def test_token_types_of_another_width(adapter: Adapter) -> None:
    found = adapter("bert")
    inputs = found.collate([Instance(id="a", text="good film", query="bad film")])
    shorter = found.delete(inputs, TEXT, [(0, 1)])
    shorter.extra["token_types"] = inputs.extra["token_types"]  # type: ignore[index]
    with pytest.raises(AdapterError, match="expected one entry per token"):
        found.run(shorter)


def test_a_model_built_in_training_mode_is_audited_in_evaluation_mode() -> None:
    model, tokenizer = architectures.build("bert")
    found = transformer(model.train(), tokenizer)
    assert not found.model.training


def test_the_innermost_of_nested_attention_modules() -> None:
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
    (found, [same]), kept = map_tensors(((row, [shared]), "x"), lambda t: repeat_rows(t, 2, 2))
    assert (found.tolist(), same.tolist(), kept) == ([0, 0, 1, 1], [0, 0, 0], "x")
    assert repeat_rows(torch.zeros(5, 2, 1), 2, 3, time_first=True).shape == (5, 6, 1)
