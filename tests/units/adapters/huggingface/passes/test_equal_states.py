"""Before the first attention of a pass, linear layers run once for equal states, and the logits stay the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("transformers", reason="needs transformers: pip install 'attnaudit[transformers]'")

from attnaudit.adapters.huggingface.passes.equal_states import FirstLinears, distinct_states
from attnaudit.adapters.huggingface.probes.equal_states_probe import first_linears_of_equal_states
from attnaudit.adapters.padding import repeated
from attnaudit.instances import Instance

Load = Callable[[str], Any]


@contextmanager
def rows_of(module: nn.Module) -> Iterator[list[int]]:
    """Inside the context, list the number of states of each call of a linear layer."""
    rows: list[int] = []
    inner = module.forward

    def forward(states: Tensor) -> Tensor:
        rows.append(states.shape[:-1].numel())
        return inner(states)

    module.__dict__["forward"] = forward
    try:
        yield rows
    finally:
        del module.__dict__["forward"]


@pytest.mark.parametrize("name", ["bert", "gpt2", "bart", pytest.param("llama", marks=pytest.mark.slow)])
def test_the_logits_are_those_of_all_states(name: str, load_adapter: Load, instances: list[Instance]) -> None:
    adapter = load_adapter(name)
    assert adapter.runner.first_linears is not None
    everything = replace(adapter.runner, first_linears=None)
    inputs = repeated(adapter.collate(instances), 3)
    with torch.no_grad():
        found, expected = adapter.runner.run(inputs), everything.run(inputs)
        torch.testing.assert_close(found.logits, expected.logits, atol=1e-5, rtol=1e-5)
        for key, weights in expected.attention.items():
            torch.testing.assert_close(found.attention[key], weights, atol=1e-5, rtol=1e-5)


def test_only_the_first_linear_layers_run_on_distinct_states(load_adapter: Load, instances: list[Instance]) -> None:
    adapter = load_adapter("bert")
    inputs = repeated(adapter.collate(instances[:1]), 3)
    tokens = inputs.ids["text"].shape[1]
    layers = adapter.model.bert.encoder.layer
    first, second = (layer.attention.self for layer in (layers[0], layers[1]))
    with rows_of(first.query) as queries, rows_of(first.value) as values, rows_of(second.query) as later:
        with torch.no_grad():
            adapter.run(inputs)
            assert (queries, values, later) == ([tokens], [tokens], [3 * tokens])
            adapter.run(adapter.collate(instances[:1]))
            assert queries[1:] == [tokens]
        adapter.run(inputs)  # with gradients
        assert queries[2:] == [3 * tokens]


def test_hooks_of_linear_layers_get_all_states(load_adapter: Load, instances: list[Instance]) -> None:
    adapter = load_adapter("bert")
    inputs = repeated(adapter.collate(instances[:1]), 3)
    layer = adapter.model.bert.encoder.layer[0].attention.self.query
    shapes: list[tuple[int, ...]] = []
    handle = layer.register_forward_hook(lambda module, args, output: shapes.extend((args[0].shape, output.shape)))
    with handle, torch.no_grad():
        adapter.run(inputs)
    rows = tuple(inputs.ids["text"].shape)
    assert [shape[:2] for shape in shapes] == [rows, rows]


def test_a_pass_that_skips_layers_shares_the_states_of_its_first_layer(
    load_adapter: Load, instances: list[Instance]
) -> None:
    adapter = load_adapter("bert")
    inputs = adapter.collate(instances[:1])
    site, tokens = adapter.sites()[1], inputs.ids["text"].shape[1]
    linear = adapter.model.bert.encoder.layer[1].attention.self.key
    with torch.no_grad():
        trace = adapter.run(inputs, hidden=True)
        assert adapter.replay_forms(site).from_layer
        weights = trace.attention[site.key].repeat_interleave(3, dim=0)
        with rows_of(linear) as rows:
            found = adapter.resume(inputs, trace, site, 3, lambda at, *_: weights if at.key == site.key else None)
    assert rows == [tokens]
    torch.testing.assert_close(found, trace.logits.expand_as(found), atol=1e-5, rtol=1e-5)


def test_a_linear_layer_that_mixes_states_is_found_by_the_probe(load_adapter: Load) -> None:
    adapter = load_adapter("bert")
    runner = replace(adapter.runner, first_linears=None)
    linear = adapter.model.bert.encoder.layer[0].attention.self.query
    before = linear.forward
    assert first_linears_of_equal_states(runner) is not None
    try:
        linear.forward = lambda states: before(states) + states.sum()
        assert first_linears_of_equal_states(runner) is None
    finally:
        del linear.__dict__["forward"]


def test_distinct_states_are_those_with_any_different_number() -> None:
    generator = torch.Generator().manual_seed(0)
    states = torch.randn((1, 5, 64), generator=generator).repeat(4, 1, 1)
    found = distinct_states(states)
    assert found is not None
    index, position = found
    assert sorted(index.tolist()) == [0, 1, 2, 3, 4]
    assert torch.equal(states.flatten(0, 1)[index][position], states.flatten(0, 1))

    changed = states.clone()
    changed[2, 3, 0] += 1e-3  # a feature that is hashed
    assert len(distinct_states(changed)[0]) == 6  # type: ignore[index]
    changed = states.clone()
    changed[2, 3, 63] += 1e-3  # a feature that is not hashed: the states are compared, and none are shared
    assert distinct_states(changed) is None


def test_states_are_not_shared_if_most_of_them_differ() -> None:
    assert distinct_states(torch.randn((4, 5, 64), generator=torch.Generator().manual_seed(0))) is None


@pytest.mark.parametrize("states", [torch.zeros((4, 5, 64), dtype=torch.bfloat16), torch.zeros((4, 64))])
def test_other_types_and_shapes_are_not_shared(states: Tensor) -> None:
    assert distinct_states(states) is None


def test_no_hooks_are_added_on_another_device() -> None:
    linear = nn.Linear(2, 2, device="meta")
    with torch.no_grad(), FirstLinears(modules=(linear,)).once_for_equal_states():
        assert not linear._forward_pre_hooks
    linear = nn.Linear(2, 2)
    with torch.no_grad(), FirstLinears(modules=(linear,)).once_for_equal_states():
        assert linear._forward_pre_hooks
