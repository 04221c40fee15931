"""The command `attnaudit train`: the folder that it writes, and what it refuses before it trains."""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from attnaudit.errors import AuditError, DataError, ModelError
from attnaudit.models import checkpoint_folder, train_command, training_options, training_state
from attnaudit.models.alignments import ALIGNMENTS
from attnaudit.models.encoders import ENCODERS
from attnaudit.models.projections import PROJECTIONS
from attnaudit.progress import ProgressCallback

SIZES = ["--embedding-size", "8", "--hidden-size", "8", "--attention-size", "4", "--epochs", "2", "--min-count", "1"]


def parser() -> argparse.ArgumentParser:
    argument_parser = argparse.ArgumentParser(prog="attnaudit train")
    train_command.add_arguments(argument_parser)
    return argument_parser


def run(*words: object) -> int:
    return train_command.run(parser().parse_args([*map(str, words)]))


def write(path: Path, n: int, start: int = 0) -> Path:
    rows = (
        {"text": f"{'fine' if i % 2 else 'awful'} number {i}", "label": "good" if i % 2 else "bad"}
        for i in range(start, start + n)
    )
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path, Path]:
    return (
        write(tmp_path / "train.jsonl", 120),
        write(tmp_path / "dev.jsonl", 30, 1000),
        write(tmp_path / "test.jsonl", 20, 2000),
    )


def test_a_model_is_trained_on_files_and_its_card_describes_the_training(
    files: tuple[Path, Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    training, dev, test = files
    out = tmp_path / "deep" / "model"
    words = [
        "--data",
        training,
        "--dev",
        dev,
        "--test",
        test,
        "--out",
        out,
        "--seed",
        5,
        "--encoder",
        "average",
        *SIZES,
    ]
    assert run(*words) == 0
    assert checkpoint_folder.load(out).capabilities.classes == ("bad", "good")
    assert sorted(file.name for file in out.iterdir()) == ["attnaudit.json", "model.safetensors"]
    account = json.loads((out / "attnaudit.json").read_text(encoding="utf-8"))["training"]
    assert account["settings"]["seed"] == 5
    assert account["data"]["train"]["rows"] == 120
    assert len(account["history"]) == 2
    assert account["test"]["n"] == 20
    again = shlex.split(account["command"])[2:]
    assert training_options.command(parser().parse_args(again)) == account["command"]
    shown = capsys.readouterr()
    assert f"pytest audits/ --model {out}" in shown.out
    assert "test: accuracy" in shown.out
    assert "epoch 2: loss" in shown.err


def test_the_same_command_writes_the_same_bytes(files: tuple[Path, Path, Path], tmp_path: Path) -> None:
    out = tmp_path / "model"
    words = ["--data", files[0], "--dev", files[1], "--out", out, "--overwrite", "--encoder", "mlp", *SIZES]
    run(*words)
    first = {file.name: file.read_bytes() for file in out.iterdir()}
    run(*words)
    assert {file.name: file.read_bytes() for file in out.iterdir()} == first


def stop_after_epoch(number: int, monkeypatch: pytest.MonkeyPatch, *words: object) -> None:
    """Run the command and interrupt it after this epoch, whose state is saved."""

    @contextlib.contextmanager
    def progress_bar(_title: str, *, print_notes: bool) -> Iterator[ProgressCallback]:
        def progress(_done: int, _total: int, note: str) -> None:
            if note.startswith(f"epoch {number}:"):
                raise KeyboardInterrupt

        yield progress

    always_saved = functools.partial(training_state.TrainingStateFile, save_interval=0)
    monkeypatch.setattr(training_state, "TrainingStateFile", always_saved)
    with monkeypatch.context() as patched:
        patched.setattr(train_command, "progress_bar", progress_bar)
        with pytest.raises(KeyboardInterrupt):
            run(*words)


def test_a_stopped_training_resumes_with_the_same_command(
    files: tuple[Path, Path, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["--data", files[0], "--dev", files[1], "--encoder", "mlp", *SIZES, "--epochs", "4"]
    uninterrupted, out = tmp_path / "uninterrupted", tmp_path / "model"
    run(*words, "--out", uninterrupted)
    stop_after_epoch(2, monkeypatch, *words, "--out", out)
    assert [file.name for file in out.iterdir()] == ["training_state.pt"]
    assert "Resuming" not in capsys.readouterr().out
    run(*words, "--out", out)
    shown = capsys.readouterr()
    assert "Resuming the stopped training after epoch 2." in shown.out
    assert "epoch 1: loss" not in shown.err
    assert sorted(file.name for file in out.iterdir()) == ["attnaudit.json", "model.safetensors"]
    assert (out / checkpoint_folder.WEIGHTS).read_bytes() == (uninterrupted / checkpoint_folder.WEIGHTS).read_bytes()
    cards = [json.loads((one / checkpoint_folder.CARD).read_bytes())["training"] for one in (uninterrupted, out)]
    assert cards[0]["history"] == cards[1]["history"]


def test_a_stopped_training_does_not_resume_with_another_command(
    files: tuple[Path, Path, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["--data", files[0], "--dev", files[1], "--encoder", "mlp", *SIZES, "--out", tmp_path / "model"]
    stop_after_epoch(1, monkeypatch, *words)
    run(*words, "--learning-rate", "0.01")
    assert "Resuming" not in capsys.readouterr().out
    assert sorted(file.name for file in (tmp_path / "model").iterdir()) == ["attnaudit.json", "model.safetensors"]


def test_a_folder_that_is_not_empty_is_kept_without_overwrite(files: tuple[Path, Path, Path], tmp_path: Path) -> None:
    out = tmp_path / "model"
    out.mkdir()
    (out / "notes.txt").write_text("mine", encoding="utf-8")
    words = ["--data", files[0], "--dev", files[1], "--out", out, "--encoder", "average", *SIZES]
    with pytest.raises(ModelError, match=r"--out .*not empty.*--overwrite"):
        run(*words)
    assert [file.name for file in out.iterdir()] == ["notes.txt"]
    run(*words, "--overwrite")
    assert (out / "notes.txt").read_text(encoding="utf-8") == "mine"
    assert checkpoint_folder.recognises(out)


def test_a_failed_training_leaves_no_new_file_and_keeps_the_old_ones(
    files: tuple[Path, Path, Path], tmp_path: Path
) -> None:
    words = ["--data", files[0], "--dev", files[1], *SIZES]
    with pytest.raises(AuditError, match=r"Unknown encoder 'bilstn'.*'bilstm'"):
        run(*words, "--out", tmp_path / "a" / "b", "--encoder", "bilstn")
    assert not (tmp_path / "a").exists()
    out = tmp_path / "model"
    run(*words, "--out", out, "--encoder", "average")
    before = {file.name: file.read_bytes() for file in out.iterdir()}
    with pytest.raises(AuditError, match="learning rate"):
        run(*words, "--out", out, "--overwrite", "--learning-rate", "-1")
    assert {file.name: file.read_bytes() for file in out.iterdir()} == before


def test_an_output_folder_that_is_a_file_or_inside_one_is_refused(files: tuple[Path, Path, Path]) -> None:
    with pytest.raises(ModelError, match="this is a file"):
        run("--data", files[0], "--dev", files[1], "--out", files[2])
    with pytest.raises(ModelError, match=r"--out .*(cannot be written|this is a file)"):
        run("--data", files[0], "--dev", files[1], "--out", files[2] / "model")


def test_a_file_without_dev_is_refused(files: tuple[Path, Path, Path], tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"--dev is missing.*Give --dev FILE"):
        run("--data", files[0], "--out", tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_parts_that_hold_the_same_rows_are_refused(files: tuple[Path, Path, Path], tmp_path: Path) -> None:
    with pytest.raises(DataError, match="two of these contain the same rows"):
        run("--data", files[0], "--dev", files[0], "--out", tmp_path / "model")


def test_an_unknown_data_set_names_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"'movie-review'.*'movie-reviews'"):
        run("--data", "movie-review", "--out", tmp_path / "model")


def test_a_registered_data_set_without_parts_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no registered part 'movie-reviews-dev-train'"):
        run("--data", "movie-reviews-dev", "--out", tmp_path / "model")


def test_the_help_names_every_part() -> None:
    helps = {action.dest: action.help or "" for action in parser()._actions}
    for option, parts in (("encoder", ENCODERS), ("alignment", ALIGNMENTS), ("projection", PROJECTIONS)):
        named = helps[option].partition(" (default")[0]
        assert set(parts) <= set(re.findall(r"\w+", named))


def test_the_help_says_which_options_need_states_of_the_embedding_size() -> None:
    shown = " ".join(parser().format_help().split())
    for option, end in (("--tying N", "--mlm N"), ("--mlm N", "--out DIR")):
        described = shown.rpartition(f" {option} ")[2].partition(f" {end} ")[0]
        assert "for the default encoder, add --embedding-size 256" in described


def test_the_defaults_are_those_of_the_settings() -> None:
    from attnaudit.models.architecture import Architecture
    from attnaudit.models.training_job import Settings

    given = parser().parse_args(["--data", "x", "--out", "y"])
    assert (
        Architecture(**{name: getattr(given, name) for name in training_options.ARCHITECTURE_OPTIONS}) == Architecture()
    )
    assert Settings(**{name: getattr(given, name) for name in Settings.__struct_fields__}) == Settings()


def test_showing_the_help_imports_no_torch() -> None:
    script = (
        "import argparse, sys; from attnaudit.models import train_command; p = argparse.ArgumentParser(); "
        "train_command.add_arguments(p); p.format_help(); print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
