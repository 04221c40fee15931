"""The command `attnaudit train`: from data to a checkpoint folder that `--model` takes. Imports torch only to run.

Two sorts of model: one of the zoo, trained from nothing, and with `--base` a pretrained encoder, fine-tuned.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import shlex
import tempfile
import time
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from attnaudit.errors import AuditError, DataError, ModelError, nearest
from attnaudit.instances import Dataset
from attnaudit.models.base_encoders import PACKAGES, find
from attnaudit.progress import progress_bar
from attnaudit.registry import datasets

if TYPE_CHECKING:
    from attnaudit.models.base_encoders import Base
    from attnaudit.models.fine_tuning import FineTuned
    from attnaudit.models.pooled_classifier import Architecture
    from attnaudit.models.training import Settings, Trained

_Parts = tuple[Dataset, Dataset, Dataset | None]

_PARTS = (
    "form",
    "encoder",
    "layers",
    "alignment",
    "projection",
    "projection_parameter",
    "embedding_size",
    "hidden_size",
    "attention_size",
    "states",
)
_SETTINGS = (
    ("seed", int, 0, "seed of everything random"),
    ("epochs", int, 8, "passes over the training data; the best on dev is kept"),
    ("batch_size", int, 32, "instances per step"),
    ("learning_rate", float, 1e-3, "of Adam (amsgrad); with --base the highest, of AdamW"),
    ("weight_decay", float, 1e-5, "of all parameters but the attention's; with --base but biases and normalisations"),
    ("dropout", float, 0.0, "on embeddings and context"),
    ("word_dropout", float, 0.0, "chance that a training token is read as unknown"),
    ("min_count", int, 2, "training occurrences that a known word needs"),
    ("max_words", int, None, "keep only the most frequent words"),
    ("tying", float, 0.0, "weight of the distance between each hidden state and its embedding"),
    ("mlm", float, 0.0, "weight of predicting masked words from their hidden states"),
)
_BASE_SETTINGS: dict[str, float] = {
    "seed": 0,
    "epochs": 2,
    "batch_size": 32,
    "learning_rate": 5e-5,
    "weight_decay": 0.01,
    "warm_up": 0.1,
    "max_tokens": 256,
}


class _Noted(argparse.Action):
    """Stores the value, and that it was given: what is not given differs between the two sorts of model."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: object, option: str | None = None
    ) -> None:
        setattr(namespace, self.dest, values)
        namespace.given = {*namespace.given, self.dest}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `attnaudit train`."""
    parser.description = (
        "Train a small reference classifier that pools a text with attention, or with --base fine-tune a pretrained "
        "Transformers encoder, and write it as a checkpoint folder for `pytest audits/ --model DIR`. The best epoch is "
        "chosen on dev; test is read once, at the end. Training from nothing that was stopped goes on, given the same "
        "command: epochs are kept in DIR, at most once a minute."
    )
    parser.set_defaults(given=frozenset(), states="plain")
    parts = parser.add_argument_group("model")
    for part, usual, choices in (
        ("form", "text", "text, pair (text and query, as in NLI) or question (answered with a class in the text)"),
        ("encoder", "bilstm", "bilstm, cnn, transformer, mlp or average"),
        ("alignment", "additive", "additive, dot, deep or uniform"),
        ("projection", "softmax", "softmax, sparsemax, sparsegen, entmax or gumbel"),
    ):
        parts.add_argument(f"--{part}", action=_Noted, default=usual, metavar="NAME", help=f"{choices} (%(default)s)")
    parts.add_argument(
        "--layers", action=_Noted, type=int, metavar="N", help="of a bilstm (1) or transformer (2), stacked"
    )
    parts.add_argument(
        "--projection-parameter",
        action=_Noted,
        type=float,
        metavar="N",
        help="λ of sparsegen (0.5), α of entmax (1.5), temperature of gumbel (0.8)",
    )
    for part, of in (("embedding", ""), ("hidden", "of a bilstm per direction "), ("attention", "")):
        parts.add_argument(
            f"--{part}-size", action=_Noted, type=int, default=128, metavar="N", help=f"{of}(%(default)s)"
        )
    parts.add_argument(
        "--vectors",
        action=_Noted,
        type=Path,
        metavar="FILE",
        help="word vectors that the embedding starts from (the text format of GloVe, fastText and word2vec; .gz too); "
        "their width is the embedding size",
    )
    joined = parts.add_mutually_exclusive_group()
    joined.add_argument(
        "--residual", dest="states", action="store_const", const="residual", help="hidden state + embedding"
    )
    joined.add_argument(
        "--concat", dest="states", action="store_const", const="concat", help="hidden state and embedding, end to end"
    )
    pretrained = parser.add_argument_group("pretrained model (in place of the options above)")
    pretrained.add_argument(
        "--base",
        metavar="NAME|DIR",
        help="fine-tune this encoder with a new classification head: a folder with config.json, model.safetensors and "
        f"tokenizer, or the name of an installed package that carries one ({', '.join(PACKAGES)})",
    )
    pretrained.add_argument(
        "--warm-up", action=_Noted, type=float, metavar="N", help="share of the steps over which the rate rises (0.1)"
    )
    pretrained.add_argument("--max-tokens", action=_Noted, type=int, metavar="N", help="longer texts are cut (256)")
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
        if default is not None and _BASE_SETTINGS.get(name, default) != default:
            shown = f" (%(default)s; with --base {_BASE_SETTINGS[name]:g})"
        settings.add_argument(
            f"--{_dashed(name)}", action=_Noted, type=kind, default=default, metavar="N", help=words + shown
        )
    parser.add_argument("--out", required=True, type=Path, metavar="DIR", help="the checkpoint folder to write")
    parser.add_argument("--overwrite", action="store_true", help="replace a checkpoint that is in DIR")


def run(arguments: argparse.Namespace) -> int:
    """Train and write. Returns 0; raises AuditError for anything the user can mend, and then writes nothing."""
    _refuse_options_of_the_other_sort(arguments)
    base = find(arguments.base) if arguments.base is not None else None
    parts = _data(arguments)
    with _reserved(arguments.out, overwrite=arguments.overwrite, pretrained=base is not None):
        size = _pooled(arguments, parts) if base is None else _fine_tuned(arguments, base, parts)
    print(f"Wrote {arguments.out} ({size / 1e6:.1f} MB). Audit it: pytest audits/ --model {arguments.out}")
    return 0


def _refuse_options_of_the_other_sort(arguments: argparse.Namespace) -> None:
    """Raises AuditError for an option that means nothing for the sort of model that is asked for."""
    given = set(arguments.given) | ({"states"} if arguments.states != "plain" else set())
    zoo = {*_PARTS, "vectors", *(name for name, *_ in _SETTINGS)}
    others = sorted(given - set(_BASE_SETTINGS) if arguments.base is not None else given - zoo)
    if not others:
        return
    names = ", ".join(f"--{arguments.states if name == 'states' else _dashed(name)}" for name in others)
    if arguments.base is not None:
        raise AuditError(
            f"{names}: for models that are trained from nothing; --base {arguments.base} brings its own architecture "
            "and vocabulary. Leave out one or the other."
        )
    raise AuditError(f"{names}: only for fine-tuning a pretrained encoder. Name one with --base, or leave it out.")


def _pooled(arguments: argparse.Namespace, parts: _Parts) -> int:
    """Train a model of the zoo and write it. Returns its bytes."""
    from attnaudit.models import checkpoint_folder
    from attnaudit.models.pooled_classifier import Architecture
    from attnaudit.models.training import Settings, train
    from attnaudit.models.training_state import UNFINISHED, Unfinished
    from attnaudit.models.vocabulary import RESERVED
    from attnaudit.models.word_vectors import Vectors

    training, dev, test = parts
    vectors = None if arguments.vectors is None else Vectors.of(arguments.vectors)
    if vectors is not None and "embedding_size" not in arguments.given:
        arguments.embedding_size = vectors.width
    settings = Settings(**_settings(arguments), vectors=vectors)
    architecture = Architecture(**{name: getattr(arguments, name) for name in _PARTS})
    unfinished = Unfinished(path=arguments.out / UNFINISHED, key=_key(architecture, settings, training, dev))
    kept = unfinished.kept()
    if kept is not None:
        print(f"Going on after epoch {len(kept['history'])} of the training that was stopped.")
    with progress_bar("training", print_notes=True) as progress:
        trained = train(
            training,
            dev,
            test=test,
            architecture=architecture,
            settings=settings,
            progress=progress,
            unfinished=unfinished,
        )
    if vectors is not None:
        print(f"{trained.started:,} of {len(trained.vocabulary) - len(RESERVED):,} words started from {vectors.path}")
    _announce(trained, unfinished.spent[0])
    checkpoint_folder.save(
        arguments.out,
        trained.model,
        trained.vocabulary,
        trained.classes,
        description=f"{arguments.encoder} + {arguments.alignment} + {arguments.projection}, trained on {training.name}",
        training=_account(arguments, settings, trained, parts),
    )
    unfinished.forget()
    return sum(
        file.stat().st_size
        for file in (arguments.out / checkpoint_folder.WEIGHTS, arguments.out / checkpoint_folder.CARD)
    )


def _key(architecture: Architecture, settings: Settings, *parts: Dataset) -> str:
    """Of all that decides the model."""
    told = msgspec.to_builtins({"architecture": architecture, "settings": settings})
    if settings.vectors is not None:
        del told["settings"]["vectors"]["path"]  # wherever the file is
    hashed = [_version("attnaudit"), told, [part.sha256() for part in parts]]
    return hashlib.sha256(msgspec.json.encode(hashed, order="sorted")).hexdigest()


def _fine_tuned(arguments: argparse.Namespace, base: Base, parts: _Parts) -> int:
    """Fine-tune an encoder and write it. Returns its bytes."""
    import torch

    from attnaudit.models.fine_tuning import Settings, fine_tune
    from attnaudit.models.pretrained import save

    training, dev, test = parts
    settings = Settings(**_settings(arguments))
    start = time.monotonic()
    with progress_bar("training", print_notes=True) as progress:
        tuned = fine_tune(base, training, dev, test=test, settings=settings, progress=progress)
    seconds = time.monotonic() - start
    _announce(tuned, seconds)
    for part, count in tuned.truncated.items():
        if count:
            print(f"{part}: {count} texts were cut to {tuned.max_tokens} tokens")
    account = _account(arguments, settings, tuned, parts) | {
        "description": f"{base.name}, fine-tuned on {training.name}",
        "base": {"name": base.name, "version": base.version, "weights_sha256": base.weights_sha256()},
        "classes": tuned.classes,
        "max_tokens": tuned.max_tokens,
        "truncated": tuned.truncated,
        "new_parameters": tuned.pretrained.new,
        "threads": torch.get_num_threads(),
        "seconds": round(seconds, 1),
    }
    return save(arguments.out, tuned.pretrained, account)


def _data(arguments: argparse.Namespace) -> _Parts:
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
def _reserved(folder: Path, *, overwrite: bool, pretrained: bool) -> Iterator[None]:
    """Hold a folder that can be written: found out before training, and left as it was when training fails.

    pretrained: which sort of checkpoint will be written; one of another sort is not replaced.
    """
    from attnaudit.models.checkpoint_folder import CARD as ZOO_CARD
    from attnaudit.models.pretrained import CARD, CONFIG
    from attnaudit.models.pretrained import UNFINISHED as UNFINISHED_FOLDER
    from attnaudit.models.training_state import UNFINISHED

    if folder.exists() and not folder.is_dir():
        raise ModelError(f"--out {folder}: this is a file. Give a folder.")
    ours = {UNFINISHED_FOLDER} if pretrained else {UNFINISHED_FOLDER, UNFINISHED}
    held = {path.name for path in folder.iterdir()} - ours if folder.is_dir() else set()
    if held and not overwrite:
        raise ModelError(
            f"--out {folder}: this folder is not empty. Give another one, or --overwrite to replace the "
            "checkpoint in it."
        )
    if held & {ZOO_CARD, CARD, CONFIG} and (CARD if pretrained else ZOO_CARD) not in held:
        raise ModelError(
            f"--out {folder}: this folder holds a checkpoint of another sort, which is not replaced. Give another one."
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


def _announce(trained: Trained | FineTuned, seconds: float) -> None:
    """Say how it went."""
    print(f"Chose epoch {trained.chosen} of {len(trained.history)} on dev, after {seconds:.0f} s.")
    for part, score in (("dev", trained.dev), ("test", trained.test)):
        if score is not None:
            shown = "undefined" if score.f1 is None else f"{score.f1:.4f}"
            print(f"{part}: accuracy {score.accuracy:.4f}, F1 {shown} (n={score.n})")


def _settings(arguments: argparse.Namespace) -> dict[str, Any]:
    """How it is trained: what was given, and for the rest what is usual for the sort of model."""
    if arguments.base is None:
        return {name: getattr(arguments, name) for name, *_ in _SETTINGS}
    return {
        name: getattr(arguments, name) if name in arguments.given else usual for name, usual in _BASE_SETTINGS.items()
    }


def _account(
    arguments: argparse.Namespace, settings: msgspec.Struct, trained: Trained | FineTuned, parts: _Parts
) -> dict[str, Any]:
    """How the model came about, for the card in its folder."""
    libraries = ("attnaudit", "torch", *(("entmax",) if arguments.base is None else ("transformers", "tokenizers")))
    return {
        "command": command(arguments),
        "versions": {name: _version(name) for name in libraries},
        "settings": msgspec.to_builtins(settings),
        "data": {
            part: {"name": one.name, "source": one.source, "rows": len(one.instances), "sha256": one.sha256()}
            for part, one in zip(("train", "dev", "test"), parts, strict=True)
            if one is not None
        },
        "history": msgspec.to_builtins(trained.history),
        "chosen_epoch": trained.chosen,
        "dev": msgspec.to_builtins(trained.dev),
        "test": msgspec.to_builtins(trained.test),
    }


def command(arguments: argparse.Namespace) -> str:
    """The whole command, every setting spelled out."""
    model = {name: getattr(arguments, name) for name in (("base",) if arguments.base is not None else _PARTS)}
    data = {name: getattr(arguments, name) for name in ("vectors", "data", "dev", "test")}
    line = ["attnaudit", "train"]
    for name, value in (model | data | _settings(arguments) | {"out": arguments.out}).items():
        if name == "states":
            line += [f"--{value}"] if value != "plain" else []
        elif value is not None and (name, value) not in (("tying", 0.0), ("mlm", 0.0), ("form", "text")):
            line += [f"--{_dashed(name)}", value.as_posix() if isinstance(value, Path) else str(value)]
    return shlex.join([*line, *(["--overwrite"] if arguments.overwrite else [])])


def _dashed(name: str) -> str:
    return name.replace("_", "-")


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
