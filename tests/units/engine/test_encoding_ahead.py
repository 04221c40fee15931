"""The next shard is encoded in another thread, and the numbers stay the same."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from attnaudit.adapters.protocol import TEXT, Inputs
from attnaudit.engine.encoding_ahead import EncodingAhead, with_following
from attnaudit.engine.measurements import Measurements
from attnaudit.engine.measuring import measure
from attnaudit.engine.shard_measuring import SHARD_ROWS, ShardMeasurer
from attnaudit.engine.unit_strings import EncodedInstances
from attnaudit.errors import DataError
from attnaudit.instances import Dataset, Instance

NEEDS = ("attention", "gradient.meister.inputs")


def films(count: int) -> Dataset:
    texts = [f"{'good ' * (1 + number % 7)}film {'bad' * (number % 3)}" for number in range(count)]
    instances = tuple(Instance(id=f"{n:04d}", text=text) for n, text in enumerate(texts))
    return Dataset(name="films", source="synthetic", description="", instances=instances)


@pytest.fixture
def adapter() -> Any:
    pytest.importorskip("transformers", reason="needs transformers: pip install 'attnaudit[transformers]'")
    from attnaudit.adapters.huggingface import transformer
    from tests import architectures

    model, tokenizer = architectures.build("bert")
    return transformer(model, tokenizer)


@pytest.fixture
def ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """Encode ahead on the CPU, as on a GPU."""
    monkeypatch.setattr(ShardMeasurer, "encodes_ahead", property(lambda _: True))


def recorded_calls(adapter: Any, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int, bool]]:
    """Return a list to which each call of `encode_on_cpu` adds its thread, its number of texts, and whether the model
    was running."""
    calls: list[tuple[str, int, bool]] = []
    encode, run, running = adapter.encode_on_cpu, adapter.run, threading.Event()

    def encode_on_cpu(instances: Sequence[Instance]) -> Inputs:
        thread = threading.current_thread().name
        if thread.startswith("attnaudit"):
            assert running.wait(60)
        calls.append((thread, len(instances), running.is_set()))
        found: Inputs = encode(instances)
        return found

    def run_model(*given: Any, **options: Any) -> Any:
        running.set()
        found = run(*given, **options)
        running.clear()
        return found

    monkeypatch.setattr(adapter, "encode_on_cpu", encode_on_cpu)
    monkeypatch.setattr(adapter, "run", run_model)
    return calls


def require_equal(one: Measurements, other: Measurements) -> None:
    assert one.columns == other.columns
    assert list(one.tokens) == list(other.tokens)
    assert list(one.sources) == list(other.sources)
    for name, values in one.scalars.items():
        np.testing.assert_array_equal(values, other.scalars[name], err_msg=name)
    for name, rows in one.vectors.items():
        for row, expected in zip(rows, other.vectors[name], strict=True):
            np.testing.assert_array_equal(row, expected, err_msg=name)


def test_the_next_shard_is_encoded_in_another_thread_while_the_model_runs(
    adapter: Any, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    data = films(2 * SHARD_ROWS + 40)
    expected, _ = measure(adapter, data, NEEDS, model="m", seed=0)
    request.getfixturevalue("ahead")
    calls = recorded_calls(adapter, monkeypatch)
    found, _ = measure(adapter, data, NEEDS, model="m", seed=0)
    require_equal(found, expected)
    other = [(count, running) for thread, count, running in calls if thread.startswith("attnaudit-encoding")]
    assert other == [(SHARD_ROWS, True), (40, True)]
    first, *_ = calls
    assert (first[0], first[1]) == (threading.current_thread().name, SHARD_ROWS)


@pytest.mark.usefixtures("ahead")
def test_a_measure_that_needs_all_lengths_encodes_all_shards_before_the_first_pass(
    adapter: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ShardMeasurer, "uses_lengths", property(lambda _: True))
    calls = recorded_calls(adapter, monkeypatch)
    measure(adapter, films(SHARD_ROWS + 5), NEEDS, model="m", seed=0)
    assert {thread for thread, _, _ in calls} == {threading.current_thread().name}


@pytest.mark.usefixtures("ahead")
def test_an_error_in_the_other_thread_names_the_row(adapter: Any) -> None:
    data = films(SHARD_ROWS + 5)
    broken = replace(data.instances[-1], text="", where="films.csv, row 262")
    with pytest.raises(DataError, match=r"films\.csv, row 262: the text '' has no real tokens"):
        measure(adapter, replace(data, instances=(*data.instances[:-1], broken)), NEEDS, model="m", seed=0)


def test_models_that_must_find_the_target_or_have_a_decoder_do_not_encode_ahead(adapter: Any) -> None:
    from attnaudit.adapters.huggingface import transformer
    from tests import architectures

    measurer = ShardMeasurer(adapter, NEEDS, seed=0, device="cpu", batch_tokens=None, unit="tokens")
    assert adapter.encodes_on_cpu
    assert not measurer.encodes_ahead  # on a CPU
    model, tokenizer = architectures.build("t5")
    assert not transformer(model, tokenizer).encodes_on_cpu


def test_a_method_collate_of_the_user_is_not_passed_over(adapter: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    kind = type(adapter)

    class Shortens(kind):  # type: ignore[misc, valid-type]
        def collate(self, instances: Sequence[Instance]) -> Inputs:
            found: Inputs = super().collate([replace(one, text=one.text.split()[0]) for one in instances])
            return found

    monkeypatch.setattr(adapter, "__class__", Shortens)
    assert not adapter.encodes_on_cpu
    measured, _ = measure(adapter, films(5), (), model="m", seed=0)
    assert {tuple(tokens) for tokens in measured.tokens} == {("good",)}
    monkeypatch.setattr(adapter, "__class__", kind)
    assert adapter.encodes_on_cpu
    monkeypatch.setattr(adapter, "collate", adapter.collate)
    assert not adapter.encodes_on_cpu


def test_encoding_ahead_waits_and_raises_once() -> None:
    ahead, go = EncodingAhead(), threading.Event()

    def encode() -> EncodedInstances:
        assert go.wait(60)
        raise DataError("row 7")

    assert ahead.take(0) is None
    ahead.start(1, encode)
    assert ahead.take(2) is None
    go.set()
    ahead.wait()
    with pytest.raises(DataError, match="row 7"):
        ahead.take(1)
    assert ahead.take(1) is None
    encoded = EncodedInstances()
    ahead.start(3, lambda: encoded)
    assert ahead.take(3) is encoded


def test_each_item_comes_with_the_next_one() -> None:
    assert list(with_following("abc")) == [("a", "b"), ("b", "c"), ("c", None)]
    assert list(with_following([])) == []


def test_the_inputs_are_those_of_collate(adapter: Any) -> None:
    texts = films(5).instances
    found, expected = adapter.encode_on_cpu(texts), adapter.collate(texts)
    assert found.tokens == expected.tokens
    assert found.ids[TEXT].tolist() == expected.ids[TEXT].tolist()
