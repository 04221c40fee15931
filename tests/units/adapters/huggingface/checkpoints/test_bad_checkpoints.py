"""A checkpoint that cannot be audited is refused with one clear line that names the fix."""

from __future__ import annotations

import json
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

pytest.importorskip("transformers", reason="needs transformers: pip install 'attnaudit[transformers]'")

from attnaudit.adapters.huggingface import checkpoint_format, transformer
from attnaudit.adapters.loading import load_model
from attnaudit.errors import AdapterError, DataError, ModelError
from attnaudit.instances import Instance
from tests import architectures

Folder = Callable[[str], Path]


@pytest.fixture
def copy(folder: Folder, tmp_path: Path) -> Path:
    """Return a BERT checkpoint that a test may change."""
    shutil.copytree(folder("bert"), tmp_path / "model")
    return tmp_path / "model"


def _config(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    found = json.loads(path.read_text(encoding="utf-8"))
    found.update(changes)
    path.write_text(json.dumps({k: v for k, v in found.items() if v is not None}), encoding="utf-8")


def _refused(folder: Path, message: str) -> None:
    with pytest.raises(ModelError, match=message) as caught:
        load_model(str(folder))
    assert "\n" not in caught.value.args[0]


def test_no_tokenizer(copy: Path) -> None:
    for path in copy.glob("tokenizer*"):
        path.unlink()
    _refused(copy, r"no tokenizer .* Save the tokenizer next to the model: tokenizer.save_pretrained\(folder\)")


def test_a_broken_tokenizer(copy: Path) -> None:
    (copy / "tokenizer.json").write_text("{", encoding="utf-8")
    _refused(copy, "its tokenizer cannot be loaded")


def test_no_weights(copy: Path) -> None:
    (copy / "model.safetensors").unlink()
    _refused(copy, r"no model\.safetensors\. Copy the whole folder again")


def test_pickled_weights_are_never_read(copy: Path) -> None:
    (copy / "model.safetensors").unlink()
    (copy / "pytorch_model.bin").write_bytes(b"never read")
    _refused(copy, r"its weights are pickled \(pytorch_model\.bin\).*safe_serialization=True")


@pytest.mark.parametrize("kept", [0, 5, 4000, -100])
def test_truncated_weights(copy: Path, kept: int) -> None:
    path = copy / "model.safetensors"
    path.write_bytes(path.read_bytes()[:kept])
    _refused(copy, "not a complete safetensors file")


def test_weights_that_git_lfs_has_not_fetched(copy: Path) -> None:
    (copy / "model.safetensors").write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 1\n")
    _refused(copy, "a pointer of Git LFS, expected the file with the weights of the model.*git lfs pull")


def test_a_shard_that_is_missing(copy: Path) -> None:
    (copy / "model.safetensors").rename(copy / "model-00001-of-00002.safetensors")
    names = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    (copy / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}), encoding="utf-8")
    _refused(copy, r"model\.safetensors\.index\.json names model-00002-of-00002\.safetensors, which is missing")


@pytest.mark.parametrize(
    ("architecture", "message"),
    [
        (["BertModel"], "BertModel is a model without a classification head.*docs/transformers.md#wrapped"),
        (
            ["BertForPreTraining"],
            "for pretraining.*docs/targets.md.*wrap the model in a module.*docs/transformers.md#w",
        ),
        (["BertForMultipleChoice"], "is a model that chooses one of several texts.*docs/targets.md"),
        (["ViTForImageClassification"], "no image processor.*image_processor.save_pretrained"),
        (["ViTForMaskedImageModeling"], "is a computer vision model.*docs/pictures.md.*docs/adapters.md"),
        (["Wav2Vec2ForSequenceClassificationAudio"], "is an audio model.*docs/recordings.md.*docs/adapters.md"),
        (["WhisperForConditionalGeneration"], "is a generative model that reads or writes more than text.*docs/adapt"),
        (["VitMatteForImageMatting"], "task that attnaudit does not know.*docs/pictures.md.*docs/adapters.md"),
        (["CLIPModel"], "is a model without a classification head"),
        (None, "names no architecture.*save_pretrained"),
    ],
)
def test_models_of_other_tasks(copy: Path, architecture: list[str] | None, message: str) -> None:
    _config(copy, architectures=architecture)
    with pytest.raises(ModelError, match=f"(?i){message}") as error:
        transformer(copy)
    assert "--base" not in str(error.value)


def test_a_head_that_is_not_in_the_checkpoint(copy: Path) -> None:
    """Transformers alone would use random weights, with only a warning."""
    import safetensors.torch

    path = copy / "model.safetensors"
    tensors = safetensors.torch.load_file(path)
    safetensors.torch.save_file({k: v for k, v in tensors.items() if "classifier" not in k}, path, {"format": "pt"})
    _refused(copy, r"no weights for classifier\.bias, classifier\.weight.*would use random ones")


def _add_weights(folder: Path, *names: str) -> None:
    import safetensors.torch

    path = folder / "model.safetensors"
    tensors = safetensors.torch.load_file(path)
    safetensors.torch.save_file({**tensors, **{name: torch.zeros(3) for name in names}}, path, {"format": "pt"})


def test_weights_that_the_model_has_no_place_for(copy: Path) -> None:
    """Transformers alone would leave them out, with only a warning."""
    _add_weights(copy, "bert.encoder.layer.7.output.dense.weight", "classifier.scale")
    _refused(
        copy,
        r"has weights for bert\.encoder\.layer\.7\.output\.dense\.weight, classifier\.scale, but "
        r"BertForSequenceClassification has no such weights.*save_pretrained\(\)",
    )


def test_a_config_with_fewer_layers_than_the_checkpoint(copy: Path) -> None:
    _config(copy, num_hidden_layers=1)
    _refused(copy, r"weights for bert\.encoder\.layer\.1\..* and \d+ others, .*Correct .* the number of layers")


@pytest.mark.parametrize(
    ("name", "weights"),
    [
        ("bert", ("bert.embeddings.position_ids",)),
        ("roberta", ("roberta.embeddings.position_ids", "roberta.pooler.dense.weight")),
        ("distilbert", ("distilbert.embeddings.position_ids",)),
        pytest.param(
            "deberta-v2",
            ("deberta.embeddings.position_ids", "deberta.embeddings.position_embeddings.weight"),
            marks=pytest.mark.slow,
        ),
    ],
)
def test_weights_that_older_versions_saved_are_left_out(
    folder: Folder, tmp_path: Path, name: str, weights: tuple[str, ...]
) -> None:
    shutil.copytree(folder(name), tmp_path / "model")
    expected = load_model(str(folder(name))).sha256
    _add_weights(tmp_path / "model", *weights)
    assert load_model(str(tmp_path / "model")).sha256 == expected


@pytest.mark.parametrize("changed", ["config.json", "tokenizer.json"])
def test_models_with_equal_weights_and_another_configuration_have_other_hashes(
    folder: Folder, copy: Path, changed: str
) -> None:
    """A copy in another folder is the same model; other layer norms or other word pieces make another model."""
    original, same = load_model(str(folder("bert"))), load_model(str(copy))
    assert same.sha256 == original.sha256
    if changed == "config.json":
        _config(copy, layer_norm_eps=0.5)
    else:
        path = copy / changed
        content = json.loads(path.read_text(encoding="utf-8"))
        vocabulary = content["model"]["vocab"]
        first, second = sorted(vocabulary, key=vocabulary.get)[-2:]
        vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]
        path.write_text(json.dumps(content), encoding="utf-8")
    other = load_model(str(copy))
    assert other.parameters_sha256 == original.parameters_sha256
    assert other.sha256 != original.sha256


def test_weights_of_another_shape(copy: Path) -> None:
    _config(copy, id2label={"0": "a", "1": "b", "2": "c"}, label2id={"a": 0, "b": 1, "c": 2})
    _refused(
        copy,
        r"the weights do not fit config\.json: classifier\.bias has the shape \[2\], but the model needs \[3\]; "
        r"classifier\.weight has the shape \[2, \d+\], but the model needs \[3, \d+\]\. Correct config\.json",
    )


def test_code_that_comes_with_the_checkpoint_is_never_run(copy: Path, tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    (copy / "modeling.py").write_text(f"open({str(mark)!r}, 'w')", encoding="utf-8")
    _config(copy, auto_map={"AutoModelForSequenceClassification": "modeling.Model"})
    _refused(copy, "'auto_map' asks for Python code that comes with the checkpoint, and attnaudit never runs such code")
    assert not mark.exists()


def test_a_quantised_checkpoint(copy: Path) -> None:
    _config(copy, quantization_config={"quant_method": "gptq", "bits": 4})
    _refused(copy, r"the checkpoint is quantised \(gptq\).*Audit the unquantised checkpoint instead")


def test_weights_of_a_quantised_type(copy: Path) -> None:
    import safetensors.torch

    safetensors.torch.save_file({"a": torch.zeros(9, dtype=torch.int8)}, copy / "model.safetensors")
    _refused(copy, "most of its weights are of the quantised type I8")


def test_an_unknown_model_type(copy: Path) -> None:
    _config(copy, model_type="brrt")
    _refused(copy, "does not know the model_type 'brrt'.*Did you mean")


def test_no_model_type(copy: Path) -> None:
    _config(copy, model_type=None)
    _refused(copy, "'model_type', which names the architecture, is missing")


@pytest.mark.parametrize("text", ["{", "", "\xff"])
def test_a_config_that_is_not_json(copy: Path, text: str) -> None:
    (copy / "config.json").write_text(text, encoding="latin-1")
    _refused(copy, "not valid JSON")


def test_a_config_that_is_not_a_json_object_is_not_recognised(copy: Path) -> None:
    (copy / "config.json").write_text("[]", encoding="utf-8")
    _refused(copy, "not in a known checkpoint format")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"problem_type": "multi_label_classification"},
            "assigns any number of labels.*docs/targets.md#a-label",
        ),
        ({"problem_type": "regression"}, "gives a score.*docs/targets.md#a-score"),
        ({"id2label": {"0": "same", "1": "same"}}, "Give every class a different name"),
        (
            {"id2label": {"0": "a", "2": "b"}},
            "id2label in config.json has the numbers 0, 2. Number the 2 classes from 0",
        ),
        (
            {"id2label": {"0": "a", "1": "b"}, "label2id": {"a": 1, "b": 0}},
            "'a' is class 0 in id2label, and class 1 in label2id",
        ),
    ],
)
def test_a_model_whose_target_must_be_declared(copy: Path, changes: dict[str, Any], message: str) -> None:
    _config(copy, **changes)
    _refused(copy, message)


def test_one_output(tmp_path: Path) -> None:
    architectures.save("bert", tmp_path, id2label={0: "score"}, label2id={"score": 0})
    _refused(tmp_path, "gives a score")


def test_classes_without_names_keep_the_numbers_they_have(tmp_path: Path) -> None:
    names = {n: f"LABEL_{n}" for n in range(3)}
    architectures.save("bert", tmp_path, id2label=names, label2id={v: k for k, v in names.items()})
    assert load_model(str(tmp_path)).adapter.capabilities.classes == ("LABEL_0", "LABEL_1", "LABEL_2")


def test_a_folder_is_recognised_without_torch_or_transformers(copy: Path) -> None:
    code = (
        "import sys, pathlib\n"
        "from attnaudit.adapters.huggingface import checkpoint_format\n"
        f"assert checkpoint_format.recognises(pathlib.Path({str(copy)!r}))\n"
        "assert 'transformers' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(("version", "expected"), [(None, "is not installed"), ("4.57.1", "5 or newer; 4.57.1 is")])
def test_transformers_is_missing_or_too_old(
    copy: Path, monkeypatch: pytest.MonkeyPatch, version: str | None, expected: str
) -> None:
    def pretend(name: str) -> str:
        if version is None:
            raise PackageNotFoundError(name)
        return version

    monkeypatch.setattr(checkpoint_format, "version", pretend)
    with pytest.raises(ModelError, match=rf"{expected}.*pip install 'attnaudit\[transformers\]'"):
        checkpoint_format.load(copy)


def test_a_reference_models_folder_is_not_recognised_as_a_transformers_folder(tmp_path: Path) -> None:
    (tmp_path / "attnaudit.json").write_text("{}", encoding="utf-8")
    assert not checkpoint_format.recognises(tmp_path)


# -- architectures -------------------------------------------------------------------------------------------------


def _built(kind: str, **settings: Any) -> tuple[Any, Any]:
    import transformers

    tokenizer = architectures.tokenizer("wordpiece")
    config = getattr(transformers, f"{kind}Config")(
        vocab_size=len(tokenizer), pad_token_id=tokenizer.pad_token_id, num_labels=2, **settings
    )
    torch.manual_seed(0)
    return getattr(transformers, f"{kind}ForSequenceClassification")(config), tokenizer


SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 32}


@pytest.mark.parametrize(
    ("kind", "settings", "message"),
    [
        (
            "FNet",
            {"hidden_size": 32, "num_hidden_layers": 2, "intermediate_size": 32},
            "no attention weights were found",
        ),
        ("Longformer", {**SMALL, "attention_window": 4, "max_position_embeddings": 70}, "cannot be audited"),
        ("Canine", {**SMALL, "num_hash_buckets": 64}, "cannot be audited"),
    ],
)
def test_an_architecture_that_is_not_audited(kind: str, settings: dict[str, Any], message: str) -> None:
    with pytest.raises((AdapterError, ModelError), match=message):
        transformer(*_built(kind, **settings))


class Bypass(nn.Module):
    """An attention module with a fused kernel, which computes no weights that could be seen."""

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        # Causal, so that padding on the right changes nothing.
        return nn.functional.scaled_dot_product_attention(hidden_states, hidden_states, hidden_states, is_causal=True)


def test_a_model_whose_attention_is_only_partly_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    model, tokenizer = architectures.build("bert")

    class HiddenAttention(Bypass):
        pass

    inner = model.bert.encoder.layer[1].output
    inner.extra = HiddenAttention()
    own = inner.forward
    monkeypatch.setattr(inner, "forward", lambda states, inputs: own(states, inputs) + inner.extra(inputs))
    mixers = transformer(model, tokenizer).capabilities.unseen_mixers
    assert mixers == ("bert.encoder.layer.1.output.extra (HiddenAttention)",)


def test_a_model_that_does_not_use_what_the_interface_returns(monkeypatch: pytest.MonkeyPatch) -> None:
    model, tokenizer = architectures.build("bert")
    for layer in model.bert.encoder.layer:
        own = layer.attention.self.forward
        monkeypatch.setattr(
            layer.attention.self,
            "forward",
            lambda hidden_states, _own=own, **rest: (hidden_states, _own(hidden_states, **rest)[1]),
        )
    with pytest.raises(AdapterError, match="does not change the logits, so the model does not compute its output from"):
        transformer(model, tokenizer)


def test_layers_that_depend_on_the_input(monkeypatch: pytest.MonkeyPatch) -> None:
    model, tokenizer = architectures.build("bert")
    found = transformer(model, tokenizer)
    model.bert.encoder.layer = model.bert.encoder.layer[:2]
    with pytest.raises(AdapterError, match="The forward pass made only 2 of the model's 3 attention calls"):
        found.run(found.collate([Instance(id="a", text="good")]))


# -- models in memory --------------------------------------------------------------------------------------------


def test_a_model_in_memory_needs_its_tokenizer() -> None:
    with pytest.raises(ModelError, match="needs its tokenizer"):
        transformer(architectures.build("bert")[0])
    with pytest.raises(ModelError, match="expected a checkpoint folder, a Transformers model"):
        transformer(nn.Linear(2, 2), architectures.tokenizer("bytes"))


def test_a_model_on_several_devices() -> None:
    model, tokenizer = architectures.build("bert")
    model.hf_device_map = {"bert": 0, "classifier": 1}
    with pytest.raises(ModelError, match="spread over several devices without accelerate's hooks"):
        transformer(model, tokenizer)


def test_a_quantised_model() -> None:
    model, tokenizer = architectures.build("bert")
    model.is_quantized = True
    with pytest.raises(ModelError, match="the model is quantised"):
        transformer(model, tokenizer)


def test_rows_with_different_numbers_of_end_tokens(folder: Folder) -> None:
    found = load_model(str(folder("bart"))).adapter
    rows = [Instance(id="a", text="good"), Instance(id="b", text="good", query="bad")]
    with pytest.raises(DataError, match="b: the encoded text has 3 end-of-text tokens, and that of a has 1"):
        found.collate(rows)


def test_tokens_of_the_decoder_cannot_be_deleted(folder: Folder) -> None:
    found = load_model(str(folder("bart"))).adapter
    with pytest.raises(AdapterError, match="only tokens of 'text' can be removed or replaced"):
        found.delete(found.collate([Instance(id="a", text="good")]), "decoder", [(0, 1)])


@pytest.mark.parametrize("header", ["[]", '{"a": 5}', '{"a": {"dtype": "F32"}}', '{"a": ' * 3000 + "1" + "}" * 3000])
def test_weights_with_a_header_of_another_shape(copy: Path, header: str) -> None:
    raw = header.encode()
    (copy / "model.safetensors").write_bytes(struct.pack("<Q", len(raw)) + raw)
    _refused(copy, "not a complete safetensors file")


@pytest.mark.parametrize("index", ["[]", '"x"', '{"weight_map": {"a": 1}}'])
def test_an_index_of_another_shape(copy: Path, index: str) -> None:
    (copy / "model.safetensors").unlink()
    (copy / "model.safetensors.index.json").write_text(index, encoding="utf-8")
    _refused(copy, "not a safetensors index")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"quantization_config": "x"}, r"the checkpoint is quantised \(x\)"),
        ({"model_type": ["bert"]}, "'model_type', which names the architecture, is missing"),
    ],
)
def test_settings_of_another_shape(copy: Path, changes: dict[str, object], words: str) -> None:
    _config(copy, **changes)
    _refused(copy, words)


def test_settings_that_are_nested_too_deeply(copy: Path) -> None:
    (copy / "config.json").write_text("[" * 100_000, encoding="utf-8")
    _refused(copy, "not valid JSON")
