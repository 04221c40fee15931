"""The audited logits are those of the original model, with its own attention kernel and precision."""

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

from attnaudit.adapters.huggingface import transformer
from attnaudit.adapters.huggingface.attention import attention_interface
from attnaudit.adapters.huggingface.attention.fused_attention import FusedObserver
from attnaudit.adapters.huggingface.attention.recorder import observing
from attnaudit.adapters.loading import load_model
from attnaudit.errors import AdapterError, ModelError
from attnaudit.instances import Instance
from tests import architectures

Folder = Callable[[str], Path]


def _differences(sentence: str) -> list[float]:
    return [float(n) for n in re.findall(r"differ by at most ([0-9.e+-]+)", sentence)]


def test_the_original_kernel_gives_the_same_logits(
    load_adapter: Callable[[str], Any], instances: list[Instance]
) -> None:
    adapter = load_adapter("llama")
    sentence = adapter.compare_with_original(adapter.collate(instances))
    assert sentence.startswith("with the original model's sdpa kernel, ")
    assert _differences(sentence)[0] < 1e-5
    assert attention_interface.current_implementation(adapter.model) == attention_interface.NAME


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_float32_copy_of_half_precision_is_audited_on_request_and_the_difference_reported(
    dtype: torch.dtype, tmp_path: Path, instances: list[Instance]
) -> None:
    model, tokenizer = architectures.build("bert")
    model.to(dtype).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    (tmp_path / "attnaudit.toml").write_text('precision = "float32"', encoding="utf-8")
    adapter = load_model(str(tmp_path)).adapter
    assert {p.dtype for p in adapter.modules[0].parameters()} == {torch.float32}
    assert adapter.capabilities.precision == "float32"
    sentence = adapter.compare_with_original(adapter.collate(instances))  # type: ignore[attr-defined]
    name = str(dtype).removeprefix("torch.")
    assert f"the type of the weights is {name}, but the model is audited in float32" in sentence
    kernel, own = _differences(sentence)[:2]
    assert kernel < 1e-5 < own < 0.5
    found = re.search(
        rf"in {name}, .* the attention weights by at most (\S+), and 0 of 4 predictions differ, so a verdict near its "
        r"threshold could be different; .* eager attention by at most (\S+)",
        sentence,
    )
    assert found is not None
    from_audited, from_eager = (float(number) for number in found.groups())
    assert 1e-5 < from_eager < 0.1
    assert 1e-5 < from_audited < 0.1


def test_predictions_that_half_precision_changes_are_counted(instances: list[Instance]) -> None:
    model, tokenizer = architectures.build("bert")
    adapter = transformer(model.to(torch.bfloat16), tokenizer, precision="float32")
    inputs = adapter.collate(instances)
    original = adapter.original
    assert original.load is not None
    load = original.load

    def other_class(dtype: torch.dtype, implementation: str) -> Any:
        loaded = load(dtype, implementation)
        if dtype == torch.bfloat16:
            loaded.classifier.weight.data.neg_()
            loaded.classifier.bias.data.neg_()
        return loaded

    adapter.original = replace(original, load=other_class)
    sentence = adapter.compare_with_original(inputs)
    assert "and 4 of 4 predictions differ, so any verdict could be different; " in sentence


def test_a_model_in_memory_of_which_a_float32_copy_is_audited_does_not_change(instances: list[Instance]) -> None:
    model, tokenizer = architectures.build("bert")
    model.to(torch.bfloat16)
    adapter = transformer(model, tokenizer, precision="float32")
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
    sentence = adapter.compare_with_original(adapter.collate(instances))
    assert "the type of the weights is bfloat16, but the model is audited in float32" in sentence


def requesting(folder: Path, kernel: str, copy: Path) -> Path:
    """Copy a checkpoint, and let its config.json request an attention kernel."""
    shutil.copytree(folder, copy)
    path = copy / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps({**config, "_attn_implementation": kernel}), encoding="utf-8")
    return copy


@pytest.mark.parametrize(("name", "compared"), [("llama", "sdpa"), ("gemma2", "eager")])
def test_a_checkpoint_that_asks_for_flash_attention(
    name: str, compared: str, folder: Folder, tmp_path: Path, instances: list[Instance]
) -> None:
    adapter = transformer(requesting(folder(name), "flash_attention_2", tmp_path / "model"))
    sentence = adapter.compare_with_original(adapter.collate(instances))
    assert sentence.startswith(f"with the original model's {compared} kernel, ")
    assert "flash_attention_2, which the checkpoint requests, was not compared with the audited kernel" in sentence


def test_a_model_in_memory_with_flash_attention_whose_class_has_no_other_fused_kernel(
    instances: list[Instance],
) -> None:
    model, tokenizer = architectures.build("gemma2")
    model.config._attn_implementation = "flash_attention_2"
    adapter = transformer(model, tokenizer)
    sentence = adapter.compare_with_original(adapter.collate(instances))
    assert sentence.startswith("with the original model's eager kernel, ")
    assert "flash_attention_2, which the model uses, was not compared with the audited kernel" in sentence


@pytest.fixture
def uncompiled_masks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let Transformers build the masks of flex attention without compiling them, which takes seconds on a CPU."""

    def build(**arguments: Any) -> Any:
        return torch.nn.attention.flex_attention.create_block_mask(**{**arguments, "_compile": False})

    monkeypatch.setattr("transformers.masking_utils.create_block_mask", build)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.usefixtures("uncompiled_masks")
@pytest.mark.parametrize("name", ["llama", "gemma2"])
def test_a_checkpoint_that_asks_for_flex_attention_is_compared_with_it(
    name: str, monkeypatch: pytest.MonkeyPatch, folder: Folder, tmp_path: Path, instances: list[Instance]
) -> None:
    calls = []

    def uncompiled(*arguments: Any, training: bool = False, **options: Any) -> Any:
        """Run the kernel without its compilation, which takes half a minute on a CPU."""
        calls.append(training)
        options["kernel_options"] = None
        return torch.nn.attention.flex_attention.flex_attention(*arguments, **options)

    monkeypatch.setattr("transformers.integrations.flex_attention.compile_friendly_flex_attention", uncompiled)
    adapter = transformer(requesting(folder(name), "flex_attention", tmp_path / "model"))
    assert calls == []
    sentence = adapter.compare_with_original(adapter.collate(instances))
    assert re.fullmatch(
        r"with the original model's flex_attention kernel, the logits differ by at most \d\.\de[-+]\d\d from the "
        "audited ones",
        sentence,
    )
    assert len(calls) == adapter.model.config.num_hidden_layers


@pytest.mark.slow
def test_compiled_flex_attention_gives_the_audited_logits(
    folder: Folder, tmp_path: Path, instances: list[Instance]
) -> None:
    adapter = transformer(requesting(folder("bert"), "flex_attention", tmp_path / "model"))
    sentence = adapter.compare_with_original(adapter.collate(instances))
    assert sentence.startswith("with the original model's flex_attention kernel, the logits differ by at most ")


@pytest.mark.usefixtures("uncompiled_masks")
def test_flex_attention_that_cannot_be_compiled_on_this_machine(
    monkeypatch: pytest.MonkeyPatch, instances: list[Instance]
) -> None:
    def fails(*_arguments: Any, **_options: Any) -> Any:
        raise RuntimeError("InvalidCxxCompiler: No working C++ compiler found\nin PATH")

    model, tokenizer = architectures.build("bert")
    model.set_attn_implementation("flex_attention")
    monkeypatch.setattr("transformers.integrations.flex_attention.compile_friendly_flex_attention", fails)
    adapter = transformer(model, tokenizer)
    sentence = adapter.compare_with_original(adapter.collate(instances))
    assert sentence.startswith("with the original model's sdpa kernel, ")
    assert sentence.endswith(
        "; flex_attention, the model's own kernel, was not compared: it did not run here (InvalidCxxCompiler: No "
        "working C++ compiler found)"
    )


def test_logits_that_differ_from_the_original_kernel_are_refused(
    monkeypatch: pytest.MonkeyPatch, instances: list[Instance]
) -> None:
    model, tokenizer = architectures.build("bert")
    adapter = transformer(model, tokenizer)
    inputs = adapter.collate(instances)
    adapter.compare_with_original(inputs)
    own = adapter.model.classifier.forward

    def other(states: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = own(states)
        return result + 0.01 * (attention_interface.current_implementation(adapter.model) != attention_interface.NAME)

    monkeypatch.setattr(adapter.model.classifier, "forward", other)
    with pytest.raises(AdapterError, match=r"differ by 0\.01 from those of the model's own sdpa kernel"):
        adapter.compare_with_original(inputs)


def test_a_fallback_model_is_compared_with_its_own_kernel(
    load_adapter: Callable[[str], Any], instances: list[Instance]
) -> None:
    adapter = load_adapter("deberta-v2")
    assert (
        adapter.compare_with_original(adapter.collate(instances))
        == "with the original model's eager kernel, the logits differ by at most 0.0e+00 from the audited ones"
    )


def test_a_kernel_outside_the_interface_is_loaded_again(
    load_adapter: Callable[[str], Any], instances: list[Instance]
) -> None:
    adapter = load_adapter("mpnet")
    loaded: list[tuple[torch.dtype, str]] = []

    def load(dtype: torch.dtype, implementation: str) -> Any:
        loaded.append((dtype, implementation))
        return architectures.build("mpnet")[0]

    original = adapter.original
    adapter.original = replace(original, implementation="sdpa", load=load)
    try:
        assert adapter.compare_with_original(adapter.collate(instances)).startswith(
            "with the original model's sdpa kernel, "
        )
    finally:
        adapter.original = original
    assert loaded == [(torch.float32, "sdpa")]


def test_attention_that_can_only_be_observed_in_its_eager_form_needs_that_form() -> None:
    model, tokenizer = architectures.build("mpnet")
    model.config._attn_implementation_internal = "sdpa"
    with pytest.raises(ModelError, match="Build the model with attn_implementation='eager'"):
        transformer(model, tokenizer)


def test_attention_over_blocks_is_refused() -> None:
    model, tokenizer = architectures.build("bert")
    model.config.attention_type = "block_sparse"
    with pytest.raises(ModelError, match="attends to blocks of tokens in long texts"):
        transformer(model, tokenizer)


def test_models_inside_a_model_use_the_same_attention_function(monkeypatch: pytest.MonkeyPatch) -> None:
    model, _ = architectures.build("t5")
    stacks = [model.transformer.encoder, model.transformer.decoder]

    def only_its_own(name: str) -> None:  # as in some versions of Transformers
        model.config._attn_implementation = name

    monkeypatch.setattr(model, "set_attn_implementation", only_its_own)
    before = [attention_interface.current_implementation(one) for one in (model, *stacks)]
    with attention_interface.temporary_implementation(model, "eager"):
        assert {attention_interface.current_implementation(one) for one in (model, *stacks)} == {"eager"}
    assert before == ["sdpa"] * 3
    assert [attention_interface.current_implementation(one) for one in (model, *stacks)] == before


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("causal", [False, True])
def test_a_mask_is_that_of_eager_attention_and_built_once(
    causal: bool, padded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import masking_utils

    calls, own = [], masking_utils.sdpa_mask
    monkeypatch.setattr(masking_utils, "sdpa_mask", lambda **given: calls.append(1) or own(**given))
    mask = torch.ones(2, 5, dtype=torch.bool)
    mask[1, 3:] = not padded
    function = masking_utils.causal_mask_function if causal else masking_utils.bidirectional_mask_function
    given = {"batch_size": 2, "q_length": 5, "kv_length": 5, "mask_function": function, "attention_mask": mask}
    given |= {"allow_is_causal_skip": causal, "allow_is_bidirectional_skip": not causal, "dtype": torch.float32}
    with observing(FusedObserver(skips_masks=True)):
        found = attention_interface.attention_mask(**given)
    assert len(calls) == 1
    if not padded:
        assert found is None
    else:
        assert torch.equal(found, masking_utils.eager_mask(**given))
