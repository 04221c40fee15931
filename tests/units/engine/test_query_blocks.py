"""Weights that are computed in blocks of queries give the measures of weights that are held."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("transformers", reason="needs transformers: pip install 'attnaudit[transformers]'")

from attnaudit.adapters import query_blocks
from attnaudit.adapters.loading import load_model
from attnaudit.engine.measurements import Measurements
from attnaudit.engine.measuring import measure
from attnaudit.instances import Dataset, Instance
from tests import architectures

#: Encoders, causal models without and with groups of heads and a sliding window, models that the fused kernel cannot
#: compute, and an encoder–decoder model with position biases.
NAMES = (
    "bert",
    *(
        pytest.param(name, marks=pytest.mark.slow)
        for name in ("gpt-oss", "gpt2", "llama", "mistral", "modernbert", "gemma2", "t5", "bart")
    ),
)
MEASURES = ("permutation", "uniform", "uniform.everywhere.live", "uniform.everywhere.frozen", "uniform.layer")
READINGS = ("mean@layer=-1,heads=mean", "mean@layer=0,heads=1", "norms@query=mean,layer=0,heads=mean")


@pytest.fixture(scope="module")
def load(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Any]:
    adapters: dict[str, Any] = {}

    def load_adapter(name: str) -> Any:
        if name not in adapters:
            folder: Path = architectures.save(name, tmp_path_factory.mktemp(name) / "model")
            adapters[name] = load_model(str(folder)).adapter
            adapters[name].model.requires_grad_(False)
        return adapters[name]

    return load_adapter


@pytest.fixture
def in_blocks(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Return a function after which the weights of every site are computed in blocks of about three queries."""

    def limit() -> None:
        monkeypatch.setattr(query_blocks, "LARGEST_SITE", 0)
        monkeypatch.setattr(query_blocks, "LARGEST_BLOCK", 3 * 3 * 4 * 12)

    return limit


def measured(adapter: Any, needs: list[str]) -> Measurements:
    instances = tuple(Instance(id=str(n), text=text) for n, text in enumerate(architectures.SENTENCES[4:7]))
    data = Dataset(name="films", source="synthetic", description="", instances=instances)
    return measure(adapter, data, needs, model="small", seed=0)[0]


@pytest.mark.parametrize("name", NAMES)
def test_every_measure_equals_that_of_weights_that_are_held(
    name: str, load: Callable[[str], Any], in_blocks: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    adapter = load(name)
    assert adapter.capabilities.query_blocks
    stack = ",stack=encoder" if name in ("t5", "bart") else ""
    needs = [f"{one}/{reading}{stack}" for one in MEASURES for reading in READINGS]
    needs += [f"{one}/rollout@query={query}{stack}" for one in ("permutation", "uniform") for query in ("cls", "mean")]
    # ModernBERT normalises its embeddings, so scaling one changes nothing. The product of gradient and input is then 0
    # except for rounding errors, and its shares cannot be compared.
    needs += ["permutation", "leave_one_out.inputs"]
    needs += [f"gradient.{'meister' if name == 'modernbert' else 'jain_wallace'}.inputs"]
    if adapter.capabilities.mask:
        needs += [f"pointing.held/{READINGS[0]}{stack}", "pointing.held"]
    held = measured(adapter, needs)
    in_blocks()
    run, largest = adapter.runner.run, 0

    def recorded(*arguments: Any, **options: Any) -> Any:
        nonlocal largest
        trace = run(*arguments, **options)
        largest = max([largest, *(weights.shape[2] for weights in trace.attention.values())])
        return trace

    monkeypatch.setattr(type(adapter.runner), "run", lambda _self, *given, **options: recorded(*given, **options))
    blocked = measured(adapter, needs)
    if adapter.capabilities.selects_queries:
        assert largest <= 1
    assert held.scalars.keys() == blocked.scalars.keys()
    for column, values in held.scalars.items():
        np.testing.assert_allclose(blocked.scalars[column], values, atol=1e-5, err_msg=column)
    for column, rows in held.vectors.items():
        for expected, found in zip(rows, blocked.vectors[column], strict=True):
            np.testing.assert_allclose(found, expected, atol=1e-5, err_msg=column)
