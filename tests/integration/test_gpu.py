"""A GPU gives the numbers of the CPU, up to rounding."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from attnaudit.adapters.loading import load_model
from attnaudit.data import load, sample
from attnaudit.engine.measurements import Measurements
from attnaudit.engine.measuring import measure

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device"),
]
NEEDS = [
    *("agreement.gradient.meister.inputs", "agreement.leave_one_out.hidden", "permutation", "uniform", "flip"),
    *("top_token", "comprehensiveness.deletion", "influence.hidden", "token_probability", "conicity"),
]


def measured(model: str, device: str, *needs: str) -> Measurements:
    rows = sample(load("movie-reviews"), 24, 0)
    return measure(load_model(model).adapter, rows, needs, model="model", seed=0, device=device)[0]


def compare(model: str, *needs: str) -> None:
    cpu, cuda = measured(model, "cpu", *needs), measured(model, "cuda", *needs)
    assert cpu.columns == cuda.columns
    for name in cpu.scalars:
        # Values that differ only by rounding may be ranked differently on another device.
        near = 0.02 if name.endswith((".tau", ".floor", ".gradient_loo", ".p_value")) else 2e-3
        np.testing.assert_allclose(cpu.scalars[name], cuda.scalars[name], atol=near, err_msg=name)


def test_the_demo_model() -> None:
    compare("demo", *NEEDS, "adversarial.0.01", "adversarial.0.05")


def test_the_exact_adversary_is_the_same() -> None:
    cpu, cuda = (measured("demo", device, "adversarial.0.01") for device in ("cpu", "cuda"))
    np.testing.assert_allclose(cpu.scalar("adversarial.0.01.jsd"), cuda.scalar("adversarial.0.01.jsd"), atol=1e-4)


@pytest.mark.parametrize("name", ["bert", "llama", "t5", "deberta-v2"])
def test_transformers(name: str, tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason="needs transformers: pip install 'attnaudit[transformers]'")
    from tests import architectures

    compare(str(architectures.save(name, tmp_path / "model")), *NEEDS, "uniform.everywhere.live")
