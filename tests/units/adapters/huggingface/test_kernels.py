"""What is audited is the model that ships: its own kernel, its own type of weights."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("transformers", reason="needs transformers: pip install 'attnaudit[transformers]'")

from attnaudit.adapters.huggingface import attention_interface, transformer
from attnaudit.adapters.loading import load_model
from attnaudit.errors import AdapterError, ModelError
from attnaudit.instances import Instance
from tests import architectures

Folder = Callable[[str], Path]


def _gaps(sentence: str) -> list[float]:
    return [float(n) for n in re.findall(r"differ by at most ([0-9.e+-]+)", sentence)]


def test_the_kernel_that_ships_gives_the_same_logits(adapter: Callable[[str], Any], instances: list[Instance]) -> None:
    found = adapter("llama")
    said = found.compare_with_original(found.collate(instances))
    assert said.startswith("sdpa kernel of the original model: ")
    assert _gaps(said)[0] < 1e-5
    assert attention_interface.current_implementation(found.model) == attention_interface.NAME


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_audited_in_full_and_the_difference_said(
    dtype: torch.dtype, tmp_path: Path, instances: list[Instance]
) -> None:
    model, tokenizer = architectures.build("bert")
    model.to(dtype).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    found = load_model(str(tmp_path)).adapter
    assert {p.dtype for p in found.modules[0].parameters()} == {torch.float32}
    said = found.compare_with_original(found.collate(instances))  # type: ignore[attr-defined]
    name = str(dtype).removeprefix("torch.")
    assert f"checkpoint is {name}, audited in float32" in said
    kernel, own = _gaps(said)
    assert kernel < 1e-5 < own < 0.5


def test_a_built_model_in_half_precision_is_left_as_it_is(instances: list[Instance]) -> None:
    model, tokenizer = architectures.build("bert")
    model.to(torch.bfloat16)
    found = transformer(model, tokenizer)
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
    assert "checkpoint is bfloat16, audited in float32" in found.compare_with_original(found.collate(instances))


def test_a_checkpoint_that_asks_for_flash_attention(folder: Folder, tmp_path: Path, instances: list[Instance]) -> None:
    shutil.copytree(folder("llama"), tmp_path / "model")
    path = tmp_path / "model" / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps({**config, "_attn_implementation": "flash_attention_2"}), encoding="utf-8")
    found = transformer(tmp_path / "model")
    said = found.compare_with_original(found.collate(instances))
    assert said.startswith("sdpa kernel of the original model: ")
    assert "flash_attention_2, which the checkpoint asks for, is not compared" in said


def test_logits_that_are_not_the_shipped_kernels(monkeypatch: pytest.MonkeyPatch, instances: list[Instance]) -> None:
    model, tokenizer = architectures.build("bert")
    found = transformer(model, tokenizer)
    inputs = found.collate(instances)
    found.compare_with_original(inputs)
    own = found.model.classifier.forward

    def other(states: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = own(states)
        return result + 0.01 * (attention_interface.current_implementation(found.model) != attention_interface.NAME)

    monkeypatch.setattr(found.model.classifier, "forward", other)
    with pytest.raises(AdapterError, match=r"differ by 0\.01 from those of the model's own sdpa kernel"):
        found.compare_with_original(inputs)


def test_a_fallback_model_is_compared_with_its_own_kernel(
    adapter: Callable[[str], Any], instances: list[Instance]
) -> None:
    found = adapter("deberta-v2")
    assert (
        found.compare_with_original(found.collate(instances))
        == "eager kernel of the original model: logits differ by at most 0.0e+00"
    )


def test_a_kernel_that_the_interface_cannot_reach_is_loaded_anew(
    adapter: Callable[[str], Any], instances: list[Instance]
) -> None:
    found = adapter("mpnet")
    asked: list[tuple[torch.dtype, str]] = []

    def again(dtype: torch.dtype, implementation: str) -> Any:
        asked.append((dtype, implementation))
        return architectures.build("mpnet")[0]

    original = found.original
    found.original = replace(original, implementation="sdpa", load=again)
    try:
        assert found.compare_with_original(found.collate(instances)).startswith("sdpa kernel of the original model")
    finally:
        found.original = original
    assert asked == [(torch.float32, "sdpa")]


def test_attention_that_is_seen_in_its_eager_form_only() -> None:
    model, tokenizer = architectures.build("mpnet")
    model.config._attn_implementation_internal = "sdpa"
    with pytest.raises(ModelError, match="Build the model with attn_implementation='eager'"):
        transformer(model, tokenizer)


def test_attention_over_blocks_is_refused() -> None:
    model, tokenizer = architectures.build("bert")
    model.config.attention_type = "block_sparse"
    with pytest.raises(ModelError, match="attends to blocks in long texts"):
        transformer(model, tokenizer)
