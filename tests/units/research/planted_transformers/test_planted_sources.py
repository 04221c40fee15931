"""Planted models that answer from passages: the truth of the passages and of the readings."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("transformers", reason="needs transformers: pip install 'attnaudit[transformers]'")

from attnaudit import checks
from attnaudit.adapters.huggingface import transformer
from attnaudit.engine.measuring import measure
from attnaudit.instances import Dataset
from attnaudit.research.planted_transformers.planted_sources import TEMPLATE, source_model, verify
from attnaudit.targets import Target


def test_attention_that_decides_and_attention_that_does_not() -> None:
    planted = source_model("last_layer", "gpt2", 0, count=32)
    assert verify(planted) == ""
    adapter = transformer(planted.model, planted.tokenizer, template=TEMPLATE, target=Target(kind="string"))
    right, idle = (f"target@layer={one.layer},heads={one.heads}" for one in planted.readings[:2])
    gates = [checks.TopKDrop(reading=reading, at_least="random + 0.5") for reading in (right, idle)]
    gates += [checks.LinearDatamodellingScore(reading=reading, at_least="uniform + 0.2") for reading in (right, idle)]
    data = Dataset(name="planted", source="test", description="", instances=planted.rows)
    needs = [need for gate in gates for need in gate.needs_under_reading()]
    measured, _ = measure(adapter, data, needs, model="planted", seed=0, unit="sources")
    assert [gate.judge(measured).verdict for gate in gates] == ["pass", "fail", "pass", "fail"]
    cited = [int(np.argmax(row)) for row in measured.vector(f"attention/{right}")]
    assert cited == list(planted.deciding)


def test_a_false_truth_is_found() -> None:
    planted = source_model("bag_of_words", "llama", 0, count=8)
    wrong = tuple((place + 1) % 4 for place in planted.deciding)
    assert verify(planted) == ""
    object.__setattr__(planted, "deciding", wrong)
    assert "another passage has the largest effect" in verify(planted)
