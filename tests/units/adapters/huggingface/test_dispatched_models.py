"""Models that accelerate has dispatched with `device_map`, on a machine with a CPU and a disk."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("transformers", reason="needs transformers: pip install 'attnaudit[transformers]'")
pytest.importorskip("accelerate", reason="needs accelerate: pip install 'attnaudit[accelerate]'")

from attnaudit.adapters.dispatched_models import input_device, is_dispatched, place
from attnaudit.adapters.huggingface import transformer
from attnaudit.adapters.loading import fingerprint
from attnaudit.adapters.model_configuration import configuration_text
from attnaudit.conformance import quick
from attnaudit.engine.measuring import measure
from attnaudit.errors import AdapterError, AuditError, ModelError
from attnaudit.instances import Dataset, Instance
from tests import architectures

#: Half of each model is on the CPU, and half on the disk.
MAPS = {
    "bert": {
        "bert.embeddings": "cpu", "bert.encoder.layer.0": "disk", "bert.encoder.layer.1": "cpu",
        "bert.encoder.layer.2": "disk", "bert.pooler": "cpu", "dropout": "cpu", "classifier": "disk",
    },
    "llama": {
        "model.embed_tokens": "disk", "model.layers.0": "cpu", "model.layers.1": "disk", "model.layers.2": "cpu",
        "model.norm": "cpu", "model.rotary_emb": "cpu", "score": "disk",
    },
}  # fmt: skip
NEEDS = ("leave_one_out.inputs", "gradient.meister.inputs", "attention/norms@query=last,layer=1,heads=mean")


def from_folder(name: str, dtype: torch.dtype, folder: Path) -> Any:
    import transformers

    architectures.build(name)[0].to(dtype).save_pretrained(folder)
    return transformers.AutoModelForSequenceClassification.from_pretrained(
        folder, dtype=dtype, device_map=MAPS[name], offload_folder=folder / "offloaded"
    )


def in_memory(name: str, dtype: torch.dtype, folder: Path) -> Any:
    model = architectures.build(name)[0].to(dtype)
    from accelerate import dispatch_model

    return dispatch_model(model, device_map=MAPS[name], main_device="cpu", offload_dir=folder)


def all_on_disk(name: str, dtype: torch.dtype, folder: Path) -> Any:
    from accelerate import disk_offload

    return disk_offload(architectures.build(name)[0].to(dtype), folder, torch.device("cpu"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "dtype", "dispatched"),
    [
        ("bert", torch.bfloat16, from_folder),
        ("llama", torch.float32, in_memory),
        ("bert", torch.float32, from_folder),
        ("llama", torch.bfloat16, in_memory),
        ("llama", torch.float16, all_on_disk),
    ],
)
def test_a_dispatched_model_gives_the_same_results(
    name: str,
    dtype: torch.dtype,
    dispatched: Callable[[str, torch.dtype, Path], Any],
    tmp_path: Path,
    instances: list[Instance],
) -> None:
    whole, tokenizer = architectures.build(name)
    expected = transformer(whole.to(dtype), tokenizer)
    model = dispatched(name, dtype, tmp_path)
    on_meta = {label for label, one in model.named_parameters() if one.is_meta}
    assert on_meta
    adapter = transformer(model, tokenizer)
    assert is_dispatched(adapter.model)
    assert adapter.capabilities.precision == str(dtype).removeprefix("torch.")
    assert fingerprint(adapter) == fingerprint(expected)
    assert configuration_text(adapter) == configuration_text(expected)
    assert {one.outcome for one in quick(adapter, instances)} == {"pass"}
    data = Dataset(name="data", source="", description="", instances=instances)
    found, _ = measure(adapter, data, NEEDS, model="model", seed=0, device="cpu")
    own, _ = measure(expected, data, NEEDS, model="model", seed=0, device="cpu")
    for need in NEEDS:
        np.testing.assert_array_equal(np.concatenate(found.vector(need)), np.concatenate(own.vector(need)), need)
    assert {label for label, one in model.named_parameters() if one.is_meta} == on_meta
    assert {one.dtype for one in model.parameters()} == {dtype}
    assert fingerprint(adapter) == fingerprint(expected)


def test_a_model_on_one_device_is_moved_as_usual(tmp_path: Path, instances: list[Instance]) -> None:
    import transformers

    model, tokenizer = architectures.build("bert")
    model.save_pretrained(tmp_path)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path, device_map={"": "cpu"})
    adapter = transformer(model, tokenizer)
    assert not is_dispatched(model)
    place(adapter.modules, "cpu", "--audit-device")
    quick(adapter, instances)


def test_a_device_that_is_not_that_of_the_embeddings_is_refused(tmp_path: Path) -> None:
    model = in_memory("llama", torch.float32, tmp_path)
    assert input_device(model) == torch.device("cpu")  # although its embeddings are on the disk
    with pytest.raises(AuditError, match=r"--audit-device cuda: accelerate .* Use --audit-device cpu, or"):
        place([model], "cuda", "--audit-device")


def test_a_dispatched_model_cannot_be_copied(tmp_path: Path) -> None:
    _, tokenizer = architectures.build("bert")
    model = in_memory("bert", torch.bfloat16, tmp_path)
    with pytest.raises(ModelError, match=r"cannot be copied. Load it with dtype=torch.float32, or remove precision\."):
        transformer(model, tokenizer, precision="float32")


def test_weights_that_nobody_has_stored_are_refused() -> None:
    model, tokenizer = architectures.build("bert")
    with pytest.raises(ModelError, match="some of its weights have no values because they are on the device 'meta'"):
        transformer(model.to("meta"), tokenizer)


def test_parameters_of_an_offloaded_model_cannot_be_randomised(tmp_path: Path, instances: list[Instance]) -> None:
    _, tokenizer = architectures.build("bert")
    adapter = transformer(in_memory("bert", torch.float32, tmp_path), tokenizer)
    data = Dataset(name="data", source="", description="", instances=instances)
    with pytest.raises(AdapterError, match=r"accelerate has offloaded .*remove the check ParameterRandomisation"):
        measure(adapter, data, ["randomised"], model="model", seed=0, device="cpu")


def test_a_model_that_is_on_its_device_is_not_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    module, moved = torch.nn.Linear(2, 2), []
    monkeypatch.setattr(module, "to", moved.append)
    place([module.train()], "cpu", "--audit-device")
    assert not module.training
    assert moved == []
    place([module], "meta", "--audit-device")
    assert moved == ["meta"]
