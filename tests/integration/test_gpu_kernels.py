"""On a GPU, Transformers are audited with the kernels, the precision and the placement that they ship with."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("transformers", reason="needs transformers: pip install 'attnaudit[transformers]'")

from attnaudit.adapters.dispatched_models import is_dispatched
from attnaudit.adapters.huggingface import transformer
from attnaudit.adapters.loading import load_model
from attnaudit.adapters.protocol import TEXT
from attnaudit.conformance import full, quick
from attnaudit.devices import full_precision
from attnaudit.engine.measuring import measure
from attnaudit.instances import Dataset, Instance
from attnaudit.precision import tolerance
from tests import architectures

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device"),
]
INSTANCES = [Instance(id=str(n), text=text) for n, text in enumerate(architectures.SENTENCES[4:8])]
DATA = Dataset(name="films", source="synthetic", description="", instances=tuple(INSTANCES))
NEEDS = ("leave_one_out.inputs", "gradient.meister.inputs", "permutation", "influence.hidden")


@pytest.fixture
def tf32() -> Iterator[None]:
    """Let torch compute matrix products of float32 in TF32, as many training scripts do."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    yield
    torch.set_float32_matmul_precision(before)


def on_gpu(name: str, dtype: torch.dtype = torch.float32, **options: Any) -> Any:
    model, tokenizer = architectures.build(name, **options)
    return transformer(model.to("cuda", dtype), tokenizer)


@pytest.mark.usefixtures("tf32")
@pytest.mark.parametrize("name", ["bert", "gpt2", "llama", "t5"])
def test_the_shipped_kernel_and_its_recomputed_rows_equal_eager_attention(name: str) -> None:
    model, _ = architectures.build(name, implementation="eager")
    model.to("cuda")
    adapter = on_gpu(name)
    inputs = adapter.collate(INSTANCES)
    needed = {site.key for site in adapter.sites()}
    with torch.no_grad(), full_precision():
        trace = adapter.run(inputs)
        expected = model(input_ids=inputs.ids[TEXT], attention_mask=inputs.mask[TEXT].long(), output_attentions=True)
    assert needed <= trace.attention.keys()
    assert float((trace.logits - expected.logits).abs().max()) < 1e-5 * max(1.0, float(expected.logits.abs().max()))
    if name == "t5":
        return  # Its weights are compared by the conformance test below.
    mask = inputs.mask[TEXT]
    for site, weights in zip(adapter.sites(), expected.attentions, strict=True):
        apart = (trace.attention[site.key] - weights).abs() * mask[:, None, :, None] * mask[:, None, None, :]
        assert float(apart.max()) < 1e-5, site.key


@pytest.mark.usefixtures("tf32")
def test_an_audit_does_not_use_tf32_and_restores_the_setting() -> None:
    found = measure(on_gpu("bert"), DATA, NEEDS, model="m", seed=0, device="cuda")[0]
    assert torch.get_float32_matmul_precision() == "high"
    torch.set_float32_matmul_precision("highest")
    expected = measure(on_gpu("bert"), DATA, NEEDS, model="m", seed=0, device="cuda")[0]
    for need, rows in expected.vectors.items():
        for a, b in zip(found.vectors[need], rows, strict=True):
            np.testing.assert_array_equal(a, b, err_msg=need)


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama", "t5", "deberta-v2", "gpt2-lm"])
def test_conformance(name: str, tmp_path: Path) -> None:
    adapter: Any = load_model(str(architectures.save(name, tmp_path))).adapter
    adapter.model.to("cuda").requires_grad_(False)
    tried = full(adapter, INSTANCES)
    assert [one.detail for one in tried if one.outcome == "fail"] == []


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["bert", "llama", "gpt2-lm"])
def test_half_precision_is_audited_as_it_ships(name: str, dtype: torch.dtype, tmp_path: Path) -> None:
    architectures.save(name, tmp_path)
    plain, _ = architectures.build(name)
    plain.to(dtype).save_pretrained(tmp_path)
    adapter: Any = load_model(str(tmp_path)).adapter
    plain.to("cuda")
    precision = str(dtype).removeprefix("torch.")
    assert adapter.capabilities.precision == precision
    adapter.model.to("cuda").requires_grad_(False)
    results = {one.check: one.detail for one in quick(adapter, INSTANCES)}
    assert results["half_precision"].startswith(f"audited in {precision}: ")
    for one in INSTANCES:
        inputs = adapter.collate([one])
        with torch.no_grad():
            trace = adapter.run(inputs)
            expected = plain(input_ids=inputs.ids[TEXT], attention_mask=inputs.mask[TEXT].long()).logits
        if name == "gpt2-lm":
            expected = expected[:, -1, list(adapter.runner.head.token_ids.values())]
        size = max(1.0, float(expected.abs().max()))
        assert float((trace.logits - expected.float()).abs().max()) <= tolerance(precision) * size
    found, _ = measure(adapter, DATA, NEEDS[:3], model="m", seed=0, device="cuda")
    assert all(np.isfinite(row).all() for row in found.vector("gradient.meister.inputs"))


def test_the_report_compares_recomputed_rows_with_eager_ones() -> None:
    adapter = on_gpu("llama", torch.bfloat16)
    sentence = adapter.compare_with_float32(adapter.collate(INSTANCES))
    found = re.search(r"eager attention by at most (\S+)", sentence)
    assert found is not None, sentence
    assert 0 <= float(found.group(1)) < 0.05


def automatic(folder: Path) -> Any:
    import transformers

    architectures.build("llama")[0].save_pretrained(folder)
    return transformers.AutoModelForSequenceClassification.from_pretrained(folder, device_map="auto")


def partly_offloaded(folder: Path) -> Any:
    import transformers

    architectures.build("llama")[0].save_pretrained(folder)
    device_map = {
        **{"model.embed_tokens": 0, "model.layers.0": 0, "model.layers.1": "cpu", "model.layers.2": 0},
        **{"model.norm": 0, "model.rotary_emb": 0, "score": "cpu"},
    }
    return transformers.AutoModelForSequenceClassification.from_pretrained(folder, device_map=device_map)


@pytest.mark.parametrize("dispatched", [automatic, partly_offloaded])
def test_a_model_with_a_device_map(dispatched: Callable[[Path], Any], tmp_path: Path) -> None:
    pytest.importorskip("accelerate", reason="needs accelerate: pip install 'attnaudit[accelerate]'")
    _, tokenizer = architectures.build("llama")
    adapter = transformer(dispatched(tmp_path), tokenizer)
    assert is_dispatched(adapter.model) == (dispatched is partly_offloaded)
    found, _ = measure(adapter, DATA, NEEDS, model="m", seed=0, device="cuda")
    expected, _ = measure(on_gpu("llama"), DATA, NEEDS, model="m", seed=0, device="cuda")
    assert {one.outcome for one in quick(adapter, INSTANCES)} == {"pass"}
    for need, rows in expected.vectors.items():
        for a, b in zip(found.vectors[need], rows, strict=True):
            np.testing.assert_allclose(a, b, atol=1e-5, err_msg=need)
