"""Texts with masked tokens, which run with only as much padding as the longest of them needs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("transformers", reason="needs transformers: pip install 'attnaudit[transformers]'")

from attnaudit.adapters.huggingface.texts import input_builder
from attnaudit.adapters.padding import without_shared_padding
from attnaudit.adapters.protocol import TEXT, Inputs
from attnaudit.engine.batches.attention_view import AttentionView
from attnaudit.engine.batches.batch import Batch
from attnaudit.instances import Instance
from attnaudit.readings import parse
from tests.architectures import SENTENCES

INSTANCES = [Instance(id=str(n), text=text) for n, text in enumerate((SENTENCES[0][:11], *SENTENCES[1:4]))]


def _effects(adapter: Any, reading: str) -> list[Tensor]:
    """Return the outputs without each token: with live attention, and with the attention of a reading held."""
    batch = Batch(adapter, INSTANCES, range(len(INSTANCES)), seed=0, keep_graph=False, budget=64, pass_counts=Counter())
    rows, token = batch.real.nonzero(as_tuple=True)
    keep = batch.real[rows] & (torch.arange(batch.real.shape[1]) != token[:, None])
    held = AttentionView(batch, parse(reading)).masked_with_attention_held(rows, keep)
    return [batch.leave_one_out("mask"), held]


@pytest.mark.parametrize("reading", ["cls@layer=-1,heads=mean", "mean@layer=0,heads=0", "rollout@query=cls"])
@pytest.mark.parametrize("name", ["bert", pytest.param("deberta", marks=pytest.mark.slow)])
def test_outputs_do_not_depend_on_shared_padding(
    name: str, reading: str, load_adapter: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    widths: list[int] = []

    def watched(inputs: Inputs, stream: str, **rest: Any) -> Inputs:
        shorter = without_shared_padding(inputs, stream, **rest)
        widths.append(shorter.ids[TEXT].shape[1])
        return shorter

    adapter = load_adapter(name)
    monkeypatch.setattr(input_builder, "without_shared_padding", watched)
    found = _effects(adapter, reading)
    assert min(widths) < max(widths)
    monkeypatch.setattr(input_builder, "without_shared_padding", lambda inputs, _stream, **_rest: inputs)
    for one, expected in zip(found, _effects(adapter, reading), strict=True):
        torch.testing.assert_close(one, expected, atol=1e-6, rtol=0, equal_nan=True)


def test_only_the_entries_of_the_stream_become_shorter() -> None:
    mask = torch.tensor([[True, True, False, False], [True, False, False, False]])
    ids = torch.arange(8).view(2, 4)
    inputs = Inputs(
        ids={TEXT: ids, "query": ids},
        mask={TEXT: mask, "query": mask},
        special={TEXT: ~mask, "query": ~mask},
        extra={"types": ids, "flags": ids},
    )
    shorter = without_shared_padding(inputs, TEXT, per_token=("types",))
    assert torch.equal(shorter.ids[TEXT], ids[:, :2])
    assert torch.equal(shorter.extra["types"], ids[:, :2])
    assert torch.equal(shorter.ids["query"], ids)
    assert torch.equal(shorter.extra["flags"], ids)
    assert without_shared_padding(shorter, TEXT) is shorter
