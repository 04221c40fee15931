"""The command `attnaudit train`: from data to a checkpoint folder that `--model` takes. Imports torch only to run."""

from __future__ import annotations

import argparse
import contextlib
import shlex
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnaudit.errors import DataError, ModelError, nearest
from attnaudit.instances import Dataset
from attnaudit.registry import datasets

if TYPE_CHECKING:
    from attnaudit.zoo.training import Progress, Trained

_PARTS = ("encoder", "alignment", "projection", "embedding_size", "hidden_size", "attention_size", "states")
_SETTINGS = (
    ("seed", int, 0, "seed of everything random"),
    ("epochs", int, 8, "passes over the training data; the best on dev is kept"),
    ("batch_size", int, 32, "instances per step"),
    ("learning_rate", float, 1e-3, "of Adam (amsgrad)"),
    ("weight_decay", float, 1e-5, "of all parameters but the attention's"),
    ("dropout", float, 0.0, "on embeddings and context"),
    ("word_dropout", float, 0.0, "chance that a training token is read as unknown"),
    ("min_count", int, 2, "training occurrences that a known word needs"),
    ("max_words", int, None, "keep only the most frequent words"),
    ("tying", float, 0.0, "weight of the distance between each hidden state and its embedding"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `attnaudit train`."""
    parser.description = (
        "Train a small reference classifier that pools a text with attention, and write it as a checkpoint folder "
        "for `pytest audits/ --model DIR`. The best epoch is chosen on dev; test is read once, at the end."
    )
    parts = parser.add_argument_group("model")
    parts.add_argument("--encoder", default="bilstm", metavar="NAME", help="bilstm, mlp or average (%(default)s)")
    parts.add_argument("--alignment", default="additive", metavar="NAME", help="additive, dot or uniform (%(default)s)")
    parts.add_argument("--projection", default="softmax", metavar="NAME", help="softmax or sparsemax (%(default)s)")
    parts.add_argument("--embedding-size", type=int, default=128, metavar="N", help="(%(default)s)")
    parts.add_argument("--hidden-size", type=int, default=128, metavar="N", help="per direction (%(default)s)")
    parts.add_argument("--attention-size", type=int, default=128, metavar="N", help="(%(default)s)")
    joined = parts.add_mutually_exclusive_group()
    joined.add_argument(
        "--residual", dest="states", action="store_const", const="residual", help="hidden state + embedding"
    )
    joined.add_argument(
        "--concat", dest="states", action="store_const", const="concat", help="hidden state and embedding, end to end"
    )
    parser.set_defaults(states="plain")
    data = parser.add_argument_group("data")
    data.add_argument(
        "--data",
        required=True,
        metavar="NAME|FILE",
        help="training data: a .jsonl, .csv or .parquet file with text and label, or a registered name such as "
        "movie-reviews, whose parts are NAME-train, NAME-dev and NAME (test)",
    )
    data.add_argument("--dev", metavar="NAME|FILE", help="data to choose the epoch on; needed with a file")
    data.add_argument("--test", metavar="NAME|FILE", help="data to report on once, at the end")
    settings = parser.add_argument_group("training")
    for name, kind, default, words in _SETTINGS:
        shown = "" if default is None else " (%(default)s)"
        settings.add_argument(f"--{_dashed(name)}", type=kind, default=default, metavar="N", help=words + shown)
    parser.add_argument("--out", required=True, type=Path, metavar="DIR", help="the checkpoint folder to write")
    parser.add_argument("--overwrite", action="store_true", help="replace a checkpoint that is in DIR")


def run(arguments: argparse.Namespace) -> int:
    """Train and write. Returns 0; raises AuditError for anything the user can mend, and then writes nothing."""
    training, dev, test = _data(arguments)
    with _reserved(arguments.out, overwrite=arguments.overwrite):
        trained = _train(arguments, training, dev, test)
        from attnaudit.zoo import checkpoint

        checkpoint.save(
            arguments.out,
            trained.model,
            trained.vocabulary,
            trained.classes,
            description=f"{arguments.encoder} + {arguments.alignment} + {arguments.projection}, "
            f"trained on {training.name}",
            training=_account(arguments, trained, {"train": training, "dev": dev, "test": test}),
        )
    size = sum(file.stat().st_size for file in (arguments.out / checkpoint.WEIGHTS, arguments.out / checkpoint.CARD))
    print(f"Wrote {arguments.out} ({size / 1e6:.1f} MB). Audit it: pytest audits/ --model {arguments.out}")
    return 0


def _data(arguments: argparse.Namespace) -> tuple[Dataset, Dataset, Dataset | None]:
    """The three parts, from one registered name or from what is given. Raises DataError."""
    from attnaudit.data import load

    name, dev, test = arguments.data, arguments.dev, arguments.test
    if dev is None:
        parts = {part: f"{name}-{part}" for part in ("train", "dev")}
        if name not in datasets:
            if not Path(name).exists():
                load(name)  # raises, and names what is near
            raise DataError(
                f"--data {name}: no --dev is given, and the epoch is never chosen on training data. Give --dev FILE "
                "with labelled rows that are not in the training data."
            )
        for part in parts.values():
            if part not in datasets:
                raise DataError(
                    f"--data {name}: this data set has no registered part '{part}'. {nearest(part, datasets.names())} "
                    "Give --dev, with the training part as --data."
                )
        name, dev, test = parts["train"], parts["dev"], test or name
    found = load(name), load(dev), load(test) if test is not None else None
    hashes = [part.sha256() for part in found if part is not None]
    if len(set(hashes)) != len(hashes):
        raise DataError(
            f"--data {name}, --dev {dev}, --test {test}: two of these hold the same rows. Give parts that differ."
        )
    return found


@contextlib.contextmanager
def _reserved(folder: Path, *, overwrite: bool) -> Iterator[None]:
    """Hold a folder that can be written: found out before training, and left as it was when training fails."""
    if folder.exists() and not folder.is_dir():
        raise ModelError(f"--out {folder}: this is a file. Give a folder.")
    if folder.is_dir() and any(folder.iterdir()) and not overwrite:
        raise ModelError(
            f"--out {folder}: this folder is not empty. Give another one, or --overwrite to replace the "
            "checkpoint in it."
        )
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder):
                pass
        except OSError as error:
            raise ModelError(
                f"--out {folder}: cannot be written ({error.strerror}). Give a folder that you may write to."
            ) from error
        yield
    except BaseException:
        with contextlib.suppress(OSError):
            for path in made:
                path.rmdir()
        raise


def _train(arguments: argparse.Namespace, training: Dataset, dev: Dataset, test: Dataset | None) -> Trained:
    from attnaudit.zoo.model import Architecture
    from attnaudit.zoo.training import Settings, train

    start = time.monotonic()
    with _shown() as progress:
        trained = train(
            training,
            dev,
            test=test,
            architecture=Architecture(**{name: getattr(arguments, name) for name in _PARTS}),
            settings=Settings(**{name: getattr(arguments, name) for name, *_ in _SETTINGS}),
            progress=progress,
        )
    print(f"Chose epoch {trained.chosen} of {len(trained.history)} on dev, after {time.monotonic() - start:.0f} s.")
    for part, score in (("dev", trained.dev), ("test", trained.test)):
        if score is not None:
            shown = "undefined" if score.f1 is None else f"{score.f1:.4f}"
            print(f"{part}: accuracy {score.accuracy:.4f}, F1 {shown} (n={score.n})")
    return trained


@contextlib.contextmanager
def _shown() -> Iterator[Progress]:
    """A bar on a terminal, and one line per epoch everywhere."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(file=sys.stderr)
    columns = (TextColumn("training"), BarColumn(), TextColumn("{task.percentage:.0f}%"), TimeRemainingColumn())
    said: set[str] = set()
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("training", total=None)

        def show(done: int, total: int, note: str) -> None:
            bar.update(task, completed=done, total=total)
            if note and note not in said:
                said.add(note)
                console.print(note, highlight=False, markup=False)

        yield show


def _account(arguments: argparse.Namespace, trained: Trained, parts: dict[str, Dataset | None]) -> dict[str, Any]:
    """How the model came about, for `attnaudit.json`."""
    import msgspec

    return {
        "command": command(arguments),
        "versions": {name: _version(name) for name in ("attnaudit", "torch", "entmax")},
        "settings": {name: getattr(arguments, name) for name, *_ in _SETTINGS},
        "data": {
            part: {"name": one.name, "source": one.source, "rows": len(one.instances), "sha256": one.sha256()}
            for part, one in parts.items()
            if one is not None
        },
        "history": msgspec.to_builtins(trained.history),
        "chosen_epoch": trained.chosen,
        "dev": msgspec.to_builtins(trained.dev),
        "test": msgspec.to_builtins(trained.test),
    }


def command(arguments: argparse.Namespace) -> str:
    """The whole command, every setting spelled out."""
    line = ["attnaudit", "train"]
    for name in (*_PARTS, "data", "dev", "test", *(name for name, *_ in _SETTINGS), "out"):
        value = getattr(arguments, name)
        if name == "states":
            line += [f"--{value}"] if value != "plain" else []
        elif value is not None and (name, value) != ("tying", 0.0):
            line += [f"--{_dashed(name)}", value.as_posix() if isinstance(value, Path) else str(value)]
    return shlex.join([*line, *(["--overwrite"] if arguments.overwrite else [])])


def _dashed(name: str) -> str:
    return name.replace("_", "-")


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
