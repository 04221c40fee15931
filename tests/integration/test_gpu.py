"""A GPU gives the numbers of the CPU, up to rounding, and the same numbers again."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from attnaudit.adapters.loading import load_model
from attnaudit.adapters.protocol import ModelAdapter
from attnaudit.conformance import full
from attnaudit.data import load, sample
from attnaudit.engine.measurements import Measurements
from attnaudit.engine.measuring import measure
from tests import pooled_models, small_models

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device"),
]
NEEDS = [
    *("agreement.gradient.meister.inputs", "agreement.leave_one_out.hidden", "permutation", "uniform", "flip"),
    *("top_token", "comprehensiveness.deletion", "influence.hidden", "token_probability", "conicity"),
]
#: Needs of models that have a mask token.
SUBSTITUTED = [
    *("pointing.held", "pointing.live", "pointing.shapley.2", "normalised_aopc.mask", "polarity.mask"),
    *("comprehensiveness.mask", "randomised", "ranked_hidden", "retained.frequent"),
]


def measured(
    model: str | ModelAdapter, device: str, *needs: str, query: str | None = None, **options: Any
) -> Measurements:
    adapter = load_model(model).adapter if isinstance(model, str) else model
    rows = sample(load("movie-reviews"), 24, 0)
    if query:
        asked = tuple(dataclasses.replace(one, query=query) for one in rows.instances)
        rows = dataclasses.replace(rows, instances=asked)
    return measure(adapter, rows, needs, model="model", seed=0, device=device, **options)[0]


def compare(build: Callable[[], str | ModelAdapter], *needs: str, **options: Any) -> None:
    cpu, cuda = (measured(build(), device, *needs, **options) for device in ("cpu", "cuda"))
    assert cpu.columns == cuda.columns
    apart = {}
    for name in cpu.scalars:
        # Values that differ only by rounding may have another rank or sign on another device.
        ranks = name.endswith((".tau", ".floor", ".gradient_loo", ".p_value"))
        near = 0.2 if name.startswith("polarity") else 0.05 if ranks else 2e-3
        if not np.allclose(cpu.scalars[name], cuda.scalars[name], atol=near, rtol=1e-6, equal_nan=True):
            apart[name] = float(np.nanmax(np.abs(cpu.scalars[name] - cuda.scalars[name])))
    assert apart == {}


def require_equal(found: Measurements, expected: Measurements) -> None:
    """Require that two measurements are equal to the last bit."""
    assert found.columns == expected.columns
    for name, values in expected.scalars.items():
        assert np.array_equal(found.scalars[name], values, equal_nan=True), name
    for name, rows in expected.vectors.items():
        assert all(np.array_equal(a, b, equal_nan=True) for a, b in zip(found.vectors[name], rows, strict=True)), name


def test_the_demo_model() -> None:
    compare(lambda: "demo", *NEEDS, *SUBSTITUTED, "adversarial.0.01", "adversarial.0.05")


def test_the_exact_adversary_is_the_same() -> None:
    cpu, cuda = (measured("demo", device, "adversarial.0.01") for device in ("cpu", "cuda"))
    np.testing.assert_allclose(cpu.scalar("adversarial.0.01.jsd"), cuda.scalar("adversarial.0.01.jsd"), atol=1e-4)


@pytest.mark.parametrize("name", ["bert", "llama", "t5", "deberta-v2"])
def test_transformers(name: str, tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason="needs transformers: pip install 'attnaudit[transformers]'")
    from tests import architectures

    folder = str(architectures.save(name, tmp_path / "model"))
    compare(lambda: folder, *NEEDS, "uniform.everywhere.live")


@pytest.mark.parametrize(
    "build",
    [
        pooled_models.several_heads,
        pooled_models.one_branch_per_class,
        pooled_models.memory_network,
        pooled_models.two_levels,
        pooled_models.pair,
        small_models.adapter,
    ],
)
def test_pooled_models(build: Callable[[], ModelAdapter]) -> None:
    needs = ("prediction", "permutation", "uniform", "gradient.meister.inputs", "leave_one_out.inputs")
    compare(build, *needs, query="is it good" if build is pooled_models.pair else None)


@pytest.mark.parametrize("unit", ["tokens", "words"])
@pytest.mark.parametrize("name", ["demo", "bert", "llama"])
def test_two_runs_give_the_same_bits(name: str, unit: str, tmp_path: Path) -> None:
    model = name
    if name != "demo":
        pytest.importorskip("transformers", reason="needs transformers: pip install 'attnaudit[transformers]'")
        from tests import architectures

        model = str(architectures.save(name, tmp_path / "model"))
    if name == "demo" and unit == "words":
        pytest.skip("the demo model's tokens are words")
    first, second = (measured(model, "cuda", *NEEDS, unit=unit) for _ in range(2))
    require_equal(second, first)


@pytest.mark.parametrize("name", ["demo", "bert"])
def test_other_batches_give_the_same_numbers(name: str, tmp_path: Path) -> None:
    model = name
    if name != "demo":
        pytest.importorskip("transformers", reason="needs transformers: pip install 'attnaudit[transformers]'")
        from tests import architectures

        model = str(architectures.save(name, tmp_path / "model"))
    needs = ("prediction", "gradient.meister.inputs", "leave_one_out.inputs", "permutation", "influence.hidden")
    whole = measured(model, "cuda", *needs)
    for batch_tokens in (1, 200):
        parts = measured(model, "cuda", *needs, batch_tokens=batch_tokens)
        for need, rows in whole.vectors.items():
            for a, b in zip(parts.vectors[need], rows, strict=True):
                np.testing.assert_allclose(a, b, atol=2e-5, err_msg=need)


@pytest.mark.parametrize("model", ["demo", "own"])
def test_conformance(model: str) -> None:
    adapter = load_model("demo").adapter if model == "demo" else small_models.adapter()
    for module in adapter.modules:
        module.to("cuda")
    tried = full(adapter, sample(load("movie-reviews"), 6, 0).instances)
    assert [one.detail for one in tried if one.outcome == "fail"] == []
