"""Influences on many hidden states from one backward pass equal those from one backward pass for each position."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("transformers", reason="needs transformers: pip install 'attnaudit[transformers]'")

from attnaudit.adapters.loading import load_model
from attnaudit.engine.batches import attention_reading
from attnaudit.engine.measurements import Measurements
from attnaudit.engine.measuring import measure
from attnaudit.instances import Dataset, Instance
from tests import architectures

#: Encoders, causal models, a model whose attention the fused kernel cannot compute, and an encoder–decoder model.
NAMES = ("bert", "gpt2", "gpt-oss", *(pytest.param(name, marks=pytest.mark.slow) for name in ("llama", "t5")))
NEED = "influence.hidden"


@pytest.fixture(scope="module")
def load(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Any]:
    adapters: dict[str, Any] = {}

    def load_adapter(name: str) -> Any:
        if name not in adapters:
            folder: Path = architectures.save(name, tmp_path_factory.mktemp(name) / "model")
            adapters[name] = load_model(str(folder)).adapter
        return adapters[name]

    return load_adapter


def measured(adapter: Any, **options: Any) -> tuple[Measurements, dict[str, int]]:
    """Measure texts of different lengths, two of which have the same length."""
    texts = [*architectures.SENTENCES[4:7], architectures.SENTENCES[4]]
    instances = tuple(Instance(id=str(n), text=text) for n, text in enumerate(texts))
    data = Dataset(name="films", source="synthetic", description="", instances=instances)
    found, record = measure(adapter, data, [NEED], model="small", seed=0, **options)
    return found, record.passes


def require_same(found: Measurements, expected: Measurements) -> None:
    for column in ("entropy", "own_share", "rival_share", "co_indexed_entropy"):
        values = expected.scalars[f"{NEED}.{column}"]
        np.testing.assert_allclose(found.scalars[f"{NEED}.{column}"], values, atol=1e-5, err_msg=column)
    assert np.isfinite(expected.scalars[f"{NEED}.entropy"]).any()


@pytest.mark.parametrize("unit", ["tokens", "words"])
@pytest.mark.parametrize("name", NAMES)
def test_influences_equal_those_of_one_backward_pass_for_each_position(
    name: str, unit: str, load: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    adapter = load(name)
    assert adapter.capabilities.batches_gradients
    together, passes = measured(adapter, unit=unit)
    monkeypatch.setattr(adapter, "_capabilities", replace(adapter._capabilities, batches_gradients=False))
    each, more_passes = measured(adapter, unit=unit)
    require_same(together, each)
    assert passes["backward"] < more_passes["backward"]


def test_small_blocks_of_positions_give_the_same_influences(
    load: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    adapter = load("bert")
    at_once, passes = measured(adapter, batch_tokens=150)
    monkeypatch.setattr(attention_reading, "INFLUENCES_PER_BUDGET_TOKEN", 1)
    in_blocks, more_passes = measured(adapter, batch_tokens=150)
    require_same(in_blocks, at_once)
    assert passes["forward"] < more_passes["forward"]
