"""Checkpoint folders are read back as they were written, and each kind of damage has its own error."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from attnaudit.errors import ModelError
from attnaudit.instances import Instance
from attnaudit.models import checkpoint_folder
from attnaudit.models.architecture import Architecture
from attnaudit.models.pooled_classifier import PooledClassifier
from attnaudit.models.vocabulary import RESERVED, Vocabulary

SMALL = {"embedding_size": 6, "hidden_size": 5, "attention_size": 4}
VOCABULARY = Vocabulary([*RESERVED, *"abcdefgh"])


def make(folder: Path, *, half: bool = False, **parts: Any) -> PooledClassifier:
    torch.manual_seed(0)
    model = PooledClassifier(Architecture(**SMALL, **parts), vocabulary_size=len(VOCABULARY), classes=2).eval()
    if half:
        model.embedding.weight.data.copy_(model.embedding.weight.half().float())
    checkpoint_folder.save(folder, model, VOCABULARY, ("bad", "good"), description="tiny", training={"seed": 0})
    return model


def edit_card(folder: Path, **changes: Any) -> None:
    path = folder / "attnaudit.json"
    path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | changes), encoding="utf-8")


def edit_tensors(folder: Path, change: Any) -> None:
    path = folder / "model.safetensors"
    tensors = safetensors.torch.load_file(path)
    change(tensors)
    path.write_bytes(safetensors.torch.save(tensors))


@pytest.mark.parametrize("half", [True, False])
@pytest.mark.parametrize("parts", [{}, {"encoder": "mlp", "alignment": "dot", "projection": "sparsemax"}])
def test_a_loaded_model_gives_the_same_logits(tmp_path: Path, half: bool, parts: dict[str, str]) -> None:
    model = make(tmp_path, half=half, **parts)
    stored = safetensors.torch.load_file(tmp_path / "model.safetensors")
    assert stored["embedding.weight"].dtype is (torch.float16 if half else torch.float32)
    adapter = checkpoint_folder.load(tmp_path)
    inputs = adapter.collate([Instance(id="1", text="a b zz c"), Instance(id="2", text="h")])
    with torch.no_grad():
        logits = adapter.run(inputs).logits
        assert torch.equal(logits, model(inputs.ids["text"], inputs.mask["text"], inputs.special["text"]))
    assert adapter.capabilities.classes == ("bad", "good")
    assert adapter.capabilities.linear_decoder
    assert not any(module.training for module in adapter.modules)
    assert {p.dtype for module in adapter.modules for p in module.parameters()} == {torch.float32}


def test_special_tokens_are_never_attended(tmp_path: Path) -> None:
    make(tmp_path)
    adapter = checkpoint_folder.load(tmp_path)
    weights = adapter.run(adapter.collate([Instance(id="1", text="a b c")])).attention["attention"][0, 0, 0]
    assert weights[0] == 0
    assert weights[-1] == 0
    assert weights.sum().item() == pytest.approx(1)


def test_only_a_folder_with_a_card_is_recognised(tmp_path: Path) -> None:
    make(tmp_path / "model")
    assert checkpoint_folder.recognises(tmp_path / "model")
    assert not checkpoint_folder.recognises(tmp_path)
    assert not checkpoint_folder.recognises(tmp_path / "nothing")


def refuse(folder: Path, *fragments: str) -> None:
    """Check that loading raises a ModelError that names the folder and contains all fragments."""
    with pytest.raises(ModelError) as caught:
        checkpoint_folder.load(folder)
    for fragment in (str(folder), *fragments):
        assert fragment in str(caught.value)


def test_a_truncated_weights_file(tmp_path: Path) -> None:
    make(tmp_path)
    path = tmp_path / "model.safetensors"
    whole = path.read_bytes()
    for size in (0, 4, 100, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        refuse(tmp_path, "model.safetensors", "not a complete safetensors file", "Copy the whole folder again")
    path.write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n")
    refuse(tmp_path, "model.safetensors", "a pointer of Git LFS", "git lfs pull")


def test_a_missing_weights_file(tmp_path: Path) -> None:
    make(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    refuse(tmp_path, "model.safetensors", "cannot be read", "Copy the whole folder again")


def test_one_changed_byte_of_the_weights(tmp_path: Path) -> None:
    make(tmp_path)
    path = tmp_path / "model.safetensors"
    changed = bytearray(path.read_bytes())
    changed[-4] ^= 1
    path.write_bytes(changed)
    refuse(tmp_path, "model.safetensors", "sha256", "again")


def test_a_missing_tensor(tmp_path: Path) -> None:
    make(tmp_path)
    edit_tensors(tmp_path, lambda tensors: tensors.pop("decoder.bias"))
    refuse(tmp_path, "'decoder.bias' is missing", "bilstm + additive + softmax", "again")


def test_a_tensor_that_does_not_belong(tmp_path: Path) -> None:
    make(tmp_path)
    edit_tensors(tmp_path, lambda tensors: tensors.update(extra=torch.zeros(1)))
    refuse(tmp_path, "tensor 'extra' does not belong", "bilstm + additive + softmax", "Copy the whole folder again")


def test_many_tensors_that_do_not_belong(tmp_path: Path) -> None:
    make(tmp_path)
    edit_tensors(tmp_path, lambda tensors: tensors.update({f"extra.{i}": torch.zeros(1) for i in range(6)}))
    refuse(tmp_path, "tensors 'extra.0', 'extra.1', 'extra.2', 'extra.3' and 2 more do not belong")


def test_a_tensor_of_another_shape(tmp_path: Path) -> None:
    make(tmp_path)
    edit_tensors(tmp_path, lambda tensors: tensors.update({"decoder.weight": torch.zeros(1, 7)}))
    refuse(tmp_path, "'decoder.weight' has shape (1, 7)", "(1, 10)")


def test_a_vocabulary_shorter_than_the_embedding(tmp_path: Path) -> None:
    make(tmp_path)
    edit_card(tmp_path, vocabulary=list(VOCABULARY.entries[:-1]))
    refuse(tmp_path, "'embedding.weight' has shape (12, 6)", "(11, 6)")


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_finite(tmp_path: Path, value: float) -> None:
    make(tmp_path)
    edit_tensors(tmp_path, lambda tensors: tensors["decoder.bias"].fill_(value))
    refuse(tmp_path, "'decoder.bias' contains NaN or infinity", "Train the model again")


@pytest.mark.parametrize("text", [b"", b"{", b'{"format": "attnaudit', b"\xff\xfe{", b"not json"])
def test_a_card_that_is_not_json(tmp_path: Path, text: bytes) -> None:
    make(tmp_path)
    (tmp_path / "attnaudit.json").write_bytes(text)
    refuse(tmp_path, "attnaudit.json", "not valid JSON", "Copy the whole folder again")


@pytest.mark.parametrize("text", ["[]", "{}", '{"format": "other"}'])
def test_json_that_is_not_a_card(tmp_path: Path, text: str) -> None:
    make(tmp_path)
    (tmp_path / "attnaudit.json").write_text(text, encoding="utf-8")
    refuse(tmp_path, "attnaudit.json", "expected 'attnaudit pooled classifier'", "attnaudit train")


@pytest.mark.parametrize("given", [7, "1", None])
def test_an_unknown_format_version(tmp_path: Path, given: object) -> None:
    make(tmp_path)
    edit_card(tmp_path, format_version=given)
    refuse(
        tmp_path, f'"format_version" is {given!r}', "reads version 1", "Install the version of attnaudit that wrote it"
    )


def test_an_unknown_encoder_names_the_nearest(tmp_path: Path) -> None:
    make(tmp_path)
    edit_card(tmp_path, architecture={**SMALL, "encoder": "bi-lstm"})
    refuse(tmp_path, "attnaudit.json", "Unknown encoder 'bi-lstm'", "'bilstm'")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architecture": {**SMALL, "encodr": "mlp"}}, "encodr"),
        ({"architecture": {**SMALL, "hidden_size": "5"}}, "hidden_size"),
        ({"architecture": {**SMALL, "hidden_size": 0}}, "hidden_size is 0"),
        ({"classes": ["one"]}, "at least two different names"),
        ({"classes": ["same", "same"]}, "at least two different names"),
        ({"vocabulary": ["a", "b"]}, "vocabulary starts with"),
        ({"vocabulary": [*RESERVED, "a", "a"]}, "'a' twice"),
    ],
)
def test_a_card_with_a_wrong_field(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    make(tmp_path)
    edit_card(tmp_path, **changes)
    refuse(tmp_path, "attnaudit.json", message)


def test_a_failed_write_leaves_the_old_checkpoint_intact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path)
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    write = Path.write_bytes

    def full(path: Path, data: bytes) -> int:
        write(path, data[:10])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(ModelError, match="No space left on device"):
        make(tmp_path, encoder="mlp")
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before
