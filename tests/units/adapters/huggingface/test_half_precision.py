"""Models in float16 and bfloat16 are audited as they ship, and compared with float32."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("transformers", reason="needs transformers: pip install 'attnaudit[transformers]'")

from attnaudit.adapters.huggingface import transformer
from attnaudit.adapters.huggingface.half_precision import in_float32
from attnaudit.adapters.loading import fingerprint, load_model
from attnaudit.adapters.protocol import TEXT
from attnaudit.conformance import quick
from attnaudit.engine.measuring import measure
from attnaudit.errors import AdapterError, ModelError
from attnaudit.instances import Dataset, Instance
from attnaudit.precision import EPSILONS, tolerance
from tests import architectures

#: Checks that need these numbers come from a clean pass, from erasures, from replaced attention and from gradients.
NEEDS = ("leave_one_out.inputs", "gradient.meister.inputs", "attention")


def saved(name: str, dtype: torch.dtype, folder: Path) -> Any:
    """Save a checkpoint in half precision, and return the same model, untouched by an audit, and its tokenizer."""
    architectures.save(name, folder)
    model, tokenizer = architectures.build(name)
    model.to(dtype).save_pretrained(folder)
    return model, tokenizer


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("bert", torch.bfloat16),
        pytest.param("gpt2-lm", torch.float16, marks=pytest.mark.slow),
        ("llama", torch.bfloat16),
        pytest.param("gpt2", torch.bfloat16, marks=pytest.mark.slow),
        pytest.param("bert", torch.float16, marks=pytest.mark.slow),
        pytest.param("llama", torch.float16, marks=pytest.mark.slow),
    ],
)
def test_a_checkpoint_in_half_precision_is_audited_as_it_ships(
    name: str, dtype: torch.dtype, tmp_path: Path, instances: list[Instance]
) -> None:
    plain, _ = saved(name, dtype, tmp_path)
    adapter: Any = load_model(str(tmp_path)).adapter
    precision = str(dtype).removeprefix("torch.")
    assert adapter.capabilities.precision == precision
    assert adapter.description.endswith(f" heads, {precision}")
    assert {p.dtype for p in adapter.model.parameters()} == {dtype}
    results = {one.check: one.detail for one in quick(adapter, instances)}
    assert results["half_precision"].startswith(f"audited in {precision}: ")
    # An independent pass of the same model in the same precision, with Transformers' own fused kernel.
    for one in instances:
        inputs = adapter.collate([one])
        with torch.no_grad():
            trace = adapter.run(inputs)
            expected = plain(input_ids=inputs.ids[TEXT], attention_mask=inputs.mask[TEXT].long()).logits
        if name == "gpt2-lm":
            expected = expected[:, -1, list(adapter.runner.head.token_ids.values())]
        assert trace.logits.dtype == torch.float32
        assert {weights.dtype for weights in trace.attention.values()} == {torch.float32}
        size = max(1.0, float(expected.abs().max()))
        assert float((trace.logits - expected.float()).abs().max()) <= tolerance(precision) * size


def test_the_report_compares_with_eager_rows_and_with_float32(instances: list[Instance]) -> None:
    model, tokenizer = architectures.build("llama")
    adapter = transformer(model.to(torch.bfloat16), tokenizer)
    inputs = adapter.collate(instances)
    sentence = adapter.compare_with_float32(inputs)
    found = re.search(
        r"in float32, the logits differ by at most (\S+), the attention weights by at most (\S+), and 0 of 4 "
        r"predictions differ, so a verdict near its threshold could be different; .* eager attention by at most (\S+)",
        sentence,
    )
    assert found is not None, sentence
    logits, weights, eager = (float(one) for one in found.groups())
    with torch.no_grad():
        half, own = adapter.run(inputs).logits, model.dtype
        model.float()
        wide = adapter.run(inputs).logits
        model.to(own)
    assert abs(float((half - wide).abs().max()) - logits) <= 0.01 * logits
    assert 0 < eager < 0.05
    assert 0 < weights < 0.05


def test_predictions_that_differ_from_float32_are_counted(
    monkeypatch: pytest.MonkeyPatch, instances: list[Instance]
) -> None:
    model, tokenizer = architectures.build("bert")
    adapter = transformer(model.to(torch.bfloat16), tokenizer)
    weight = model.classifier.weight

    def negated(self: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
        factor = -1 if weight.dtype == torch.float32 else 1
        return torch.nn.functional.linear(args[0], factor * weight, factor * self.bias)

    monkeypatch.setattr(type(model.classifier), "forward", torch.nn.Linear.forward)
    monkeypatch.setattr(model.classifier, "forward", negated.__get__(model.classifier))
    sentence = adapter.compare_with_float32(adapter.collate(instances))
    assert "and 4 of 4 predictions differ, so any verdict could be different; " in sentence


def test_a_model_computes_in_float32_only_inside_the_context(instances: list[Instance]) -> None:
    model, tokenizer = architectures.build("bert")
    adapter = transformer(model.to(torch.bfloat16), tokenizer)
    before, tensors = fingerprint(adapter), [p.data.data_ptr() for p in model.parameters()]
    with in_float32(model), in_float32(model):
        assert {p.dtype for p in model.parameters()} == {torch.float32}
    with pytest.raises(ZeroDivisionError), in_float32(model):
        raise ZeroDivisionError
    quick(adapter, instances)
    assert fingerprint(adapter) == before
    assert [p.data.data_ptr() for p in model.parameters()] == tensors


def test_measured_numbers_are_near_those_of_float32(instances: list[Instance]) -> None:
    numbers = []
    for dtype in (torch.bfloat16, torch.float32):
        model, tokenizer = architectures.build("llama")
        model.to(torch.bfloat16)  # so that both models have the same weights
        adapter = transformer(model.to(dtype), tokenizer)
        data = Dataset(name="data", source="", description="", instances=instances)
        numbers.append(measure(adapter, data, NEEDS, model="model", seed=0)[0])
    half, wide = numbers
    for need, most in zip(NEEDS, (0.2, 0.2, tolerance("bfloat16")), strict=True):
        apart = np.abs(np.concatenate(half.vector(need)) - np.concatenate(wide.vector(need)))
        assert 0 < np.nanmax(apart) < most  # not 0, because the model in half precision was not measured in float32


def test_gradients_of_confident_predictions_do_not_vanish_in_float16(instances: list[Instance]) -> None:
    norms = []
    for dtype in (torch.float16, torch.float32):
        model, tokenizer = architectures.build("bert")
        with torch.no_grad():
            model.classifier.bias.copy_(torch.tensor([0.0, 12.0]))  # p(positive) is about 1 - 6e-6
        model.half()  # so that both models have the same weights
        adapter = transformer(model.to(dtype), tokenizer)
        data = Dataset(name="data", source="", description="", instances=instances)
        found, _ = measure(adapter, data, ["gradient.meister.inputs"], model="model", seed=0)
        norms.append(np.concatenate(found.vector("gradient.meister.inputs")))
    half, wide = norms
    np.testing.assert_allclose(half, wide, rtol=0.05, atol=0.01)


class DependsOnTheBatch(torch.nn.Module):
    """A classifier head that adds 10% of the mean of the batch, but only in half precision."""

    def __init__(self, head: torch.nn.Module) -> None:
        super().__init__()
        self.head = head

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.head(states)
        return logits if states.dtype == torch.float32 else logits + 0.1 * len(states)


def test_results_that_depend_on_the_batch_beyond_rounding_are_refused(instances: list[Instance]) -> None:
    model, tokenizer = architectures.build("bert")
    model.classifier = DependsOnTheBatch(model.classifier)
    adapter = transformer(model.to(torch.bfloat16), tokenizer)
    with pytest.raises(AdapterError) as caught:
        quick(adapter, instances)
    message = "\n".join(map(str, [caught.value, *caught.value.lines]))
    assert "half_precision: a row alone, not in a batch: the logits differ by" in message
    assert "the tolerance of bfloat16" in message
    assert "precision='float32'" in message


def test_a_peft_folder_keeps_the_precision_of_its_base_model(tmp_path: Path, instances: list[Instance]) -> None:
    peft = pytest.importorskip("peft")
    saved("bert", torch.bfloat16, tmp_path / "base")
    model, _ = architectures.build("bert")
    config = peft.LoraConfig(r=2, target_modules=["query", "value"], task_type="SEQ_CLS", init_lora_weights=False)
    wrapped = peft.get_peft_model(model, config)
    wrapped.peft_config["default"].base_model_name_or_path = str(tmp_path / "base")
    wrapped.save_pretrained(tmp_path / "lora")
    adapter = load_model(str(tmp_path / "lora")).adapter
    assert adapter.capabilities.precision == "bfloat16"
    assert any(one.check == "half_precision" for one in quick(adapter, instances))


@pytest.mark.parametrize(("precision", "audited"), [(None, "bfloat16"), ("float32", "float32")])
def test_float32_embeddings_do_not_decide_the_type_of_a_model_in_half_precision(
    precision: Any, audited: str, instances: list[Instance]
) -> None:
    model, tokenizer = architectures.build("bert")
    model.to(torch.bfloat16)
    model.bert.embeddings.word_embeddings.float()
    model.bert.embeddings.LayerNorm.register_forward_pre_hook(lambda one, args: (args[0].to(one.weight.dtype),))
    before = {name: one.dtype for name, one in model.named_parameters()}
    adapter = transformer(model, tokenizer, precision=precision)
    assert adapter.capabilities.precision == audited
    results = {one.check: one.detail for one in quick(adapter, instances)}
    if precision is None:
        assert results["half_precision"].startswith("audited in bfloat16: ")
    else:
        assert "bfloat16, but the model is audited in float32; in bfloat16, the logits" in results["original_model"]
    assert {name: one.dtype for name, one in model.named_parameters()} == before


def test_a_model_with_few_parameters_in_half_precision_is_audited_as_a_float32_copy(instances: list[Instance]) -> None:
    model, tokenizer = architectures.build("bert")
    model.classifier.to(torch.bfloat16)
    model.classifier.register_forward_pre_hook(lambda one, args: (args[0].to(one.weight.dtype),))
    adapter: Any = transformer(model, tokenizer)
    assert {one.dtype for one in adapter.model.parameters()} == {torch.float32}
    assert model.classifier.weight.dtype == torch.bfloat16
    results = {one.check: one.detail for one in quick(adapter, instances)}
    assert "bfloat16, but the model is audited in float32; in bfloat16, the logits" in results["original_model"]


def test_numbers_that_are_too_large_for_float16_are_refused() -> None:
    model, tokenizer = architectures.build("bert")
    model.half()
    with torch.no_grad():
        model.bert.encoder.layer[1].intermediate.dense.weight.mul_(1e5).clamp_(-6e4, 6e4)
    with pytest.raises(AdapterError, match=r"not finite in float16, but they are in float32.*precision='float32'"):
        transformer(model, tokenizer)


def test_a_precision_that_the_model_cannot_have_is_refused(tmp_path: Path) -> None:
    model, tokenizer = architectures.build("mpnet")
    model.to(torch.bfloat16)
    assert transformer(model, tokenizer).capabilities.precision == "float32"
    with pytest.raises(ModelError, match="can be audited only in float32, because its architecture does not use"):
        transformer(model, tokenizer, precision="shipped")
    with pytest.raises(ModelError, match="precision is 'half'; expected 'shipped' or 'float32'"):
        transformer(model, tokenizer, precision="half")  # type: ignore[arg-type]
    architectures.save("bert", tmp_path)
    (tmp_path / "attnaudit.toml").write_text('precision = "bfloat16"', encoding="utf-8")
    with pytest.raises(ModelError, match=r"attnaudit\.toml: precision is 'bfloat16'; expected 'shipped' or 'float32'"):
        load_model(str(tmp_path))


def test_epsilons_are_those_of_torch() -> None:
    assert {name: torch.finfo(getattr(torch, name)).eps for name in EPSILONS} == EPSILONS
