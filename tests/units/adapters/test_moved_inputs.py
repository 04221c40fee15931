"""Batches that move to another device: the tensors of one type move together."""

from __future__ import annotations

import pytest
import torch

from attnaudit.adapters import padding
from attnaudit.adapters.padding import copied, moved
from attnaudit.adapters.protocol import TEXT, Inputs
from tests.pretended_device import OnDevice, pretended_device

CPU = torch.device("cpu")
TENSORS = [
    torch.arange(6).view(2, 3),
    torch.tensor([[True, False, True], [False, True, True]]),
    torch.tensor([[0.5], [1.5]]),
    torch.arange(8).view(2, 2, 2).transpose(0, 2),
    torch.zeros((2, 0), dtype=torch.bool),
]


def _inputs() -> Inputs:
    ids, mask, scores, pairs, _ = TENSORS
    return Inputs(
        ids={TEXT: ids}, mask={TEXT: mask}, special={TEXT: ~mask}, words={TEXT: ids + 1}, tokens={TEXT: [["a"], ["b"]]},
        extra={"scores": scores, "pairs": pairs},
    )  # fmt: skip


def test_tensors_keep_their_values_and_shapes_and_are_copied_once_for_each_type(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    copies = []
    one_copy = padding._to_device
    monkeypatch.setattr(padding, "_to_device", lambda *given: copies.append(given[0].dtype) or one_copy(*given))
    for found, expected in zip(copied(TENSORS, CPU), TENSORS, strict=True):
        assert found.dtype == expected.dtype
        assert torch.equal(found, expected)
    assert copies == [torch.int64, torch.bool, torch.float32]


def test_a_batch_moves_with_everything_that_it_has() -> None:
    inputs = _inputs()
    assert moved(inputs, CPU) is inputs
    with pretended_device() as device:
        there = moved(inputs, torch.device("cuda", 0))
        assert moved(there, torch.device("cuda", 0)) is there
        back = moved(there, CPU)
    assert device.mixes == []
    assert sum(device.reads.values()) == 3
    for name in ("ids", "mask", "special", "words", "passages", "extra"):
        expected = getattr(inputs, name)
        assert getattr(there, name).keys() == getattr(back, name).keys() == expected.keys()
        for key in expected:
            assert isinstance(getattr(there, name)[key], OnDevice)
            assert not isinstance(getattr(back, name)[key], OnDevice)
            assert torch.equal(getattr(back, name)[key], expected[key])
    assert there.tokens == inputs.tokens
