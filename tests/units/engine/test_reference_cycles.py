"""Measuring frees its memory at once: no tensor waits for the garbage collector, which runs rarely."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from attnaudit.adapters.loading import load_model
from attnaudit.checks.policies.policy import load_policy
from attnaudit.engine.shard_measuring import Shard, ShardMeasurer
from tests import architectures
from tests.small_models import TEXTS, dataset

POLICIES = Path(__file__).parents[3] / "audits"


def pooled(_folder: Path) -> Any:
    return load_model("demo").adapter


def gpt2(folder: Path) -> Any:
    return load_model(str(architectures.save("gpt2", folder))).adapter


@pytest.mark.parametrize(
    ("model", "policy"), [(pooled, "policy.toml"), pytest.param(gpt2, "transformer.toml", marks=pytest.mark.slow)]
)
def test_no_tensor_is_part_of_a_cycle(model: Any, policy: str, tmp_path: Path) -> None:
    checks = load_policy(POLICIES / policy)
    needs = sorted({need for check in checks for need in check.needs_under_reading()})
    measurer = ShardMeasurer(model(tmp_path), needs, seed=0, device="cpu", batch_tokens=None, unit="tokens")
    instances = dataset(TEXTS[:2]).instances
    measurer.start([len(one.text.split()) for one in instances])
    shard = Shard(index=0, first=0, instances=instances)
    measurer.measure(shard)  # the first time, libraries are imported and caches are filled
    gc.collect()
    gc.disable()
    try:
        measurer.measure(shard)
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        left = [one for one in gc.garbage if isinstance(one, Tensor)]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
    assert not left
