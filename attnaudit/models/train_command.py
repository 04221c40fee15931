"""The command `attnaudit train`, which trains a model and writes a checkpoint folder that `--model` accepts.

The command trains a reference model from random parameters or, with `--base`, fine-tunes a pretrained encoder.
Importing this module does not import torch, but running the command does.
"""

from __future__ import annotations

import argparse
import hashlib
import time
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from attnaudit.errors import AuditError, DataError, invalid_input, nearest
from attnaudit.formatting import plural, terminal_safe
from attnaudit.models.base_encoders import find
from attnaudit.models.output_folder import reserved
from attnaudit.models.training_options import (
    ARCHITECTURE_OPTIONS,
    FINE_TUNING_DEFAULTS,
    SETTING_NAMES,
    add_arguments,
    command,
    option_name,
    setting_values,
)
from attnaudit.progress import progress_bar
from attnaudit.registry import datasets

if TYPE_CHECKING:
    from attnaudit.models.base_encoders import Base
    from attnaudit.models.fine_tuning import FineTuned
    from attnaudit.models.training import Trained
    from attnaudit.models.training_job import TrainingData, TrainingJob

__all__ = ["add_arguments", "run"]


def run(options: argparse.Namespace) -> int:
    """Train a model and write its checkpoint folder.

    Args:
        options: The parsed options of `attnaudit train`.

    Returns:
        The exit status, 0.

    Raises:
        AuditError: The options, the data or the folder are invalid (exit status 2), or training fails (exit status 1).
            No checkpoint is then written.
    """
    with invalid_input():
        _refuse_options_of_the_other_kind(options)
        base = find(options.base) if options.base is not None else None
        data = _load_data(options)
    with reserved(options.out, overwrite=options.overwrite, pretrained=base is not None):
        size = _train_reference_model(options, data) if base is None else _fine_tune(options, base, data)
    out = terminal_safe(str(options.out))
    print(f"Wrote {out} ({size / 1e6:.1f} MB). Audit it: pytest audits/ --model {out}")
    return 0


def _refuse_options_of_the_other_kind(options: argparse.Namespace) -> None:
    """Raise AuditError if a reference option is given with --base, or a fine-tuning option is given without --base."""
    given = set(options.given) | ({"states"} if options.states != "plain" else set())
    reference_options = {*ARCHITECTURE_OPTIONS, "vectors", *SETTING_NAMES}
    refused = sorted(given - set(FINE_TUNING_DEFAULTS) if options.base is not None else given - reference_options)
    if not refused:
        return
    names = ", ".join(f"--{options.states}" if name == "states" else option_name(name) for name in refused)
    if options.base is not None:
        raise AuditError(
            f"{names}: this is allowed only for reference models, which are trained from random parameters. --base "
            f"{options.base} has its own architecture and vocabulary. Remove {names} or --base."
        )
    raise AuditError(
        f"{names}: this is allowed only for fine-tuning a pretrained encoder. Add --base, or leave {names} out."
    )


def _load_data(options: argparse.Namespace) -> TrainingData:
    """Load the training, development and test data.

    Without --dev, --data is the NAME of a registered data set. NAME-train is then the training data, NAME-dev is the
    development data, and NAME is the test data unless --test is given.

    Raises:
        DataError: The training or development data are missing, a part cannot be loaded, or two parts consist of the
            same rows.
    """
    from attnaudit.data import load
    from attnaudit.models.training_job import TrainingData

    name, dev, test = options.data, options.dev, options.test
    if dev is None:
        parts = {part: f"{name}-{part}" for part in ("train", "dev")}
        if name not in datasets:
            if not Path(name).exists():
                load(name)  # raises an error that suggests similar names
            raise DataError(
                f"--data {name}: --dev is missing, and the best epoch is never chosen on training data. Give --dev "
                "FILE with labelled rows that are not in the training data."
            )
        for part in parts.values():
            if part not in datasets:
                raise DataError(
                    f"--data {name}: this data set has no registered part '{part}'. {nearest(part, datasets.names())} "
                    "Give the training data with --data, and the development data with --dev."
                )
        name, dev, test = parts["train"], parts["dev"], test or name
    data = TrainingData(train=load(name), dev=load(dev), test=load(test) if test is not None else None)
    hashes = [part.sha256() for part in data.parts.values()]
    if len(set(hashes)) != len(hashes):
        parts_given = (("--data", name), ("--dev", dev), ("--test", test))
        given = ", ".join(f"{option} {source}" for option, source in parts_given if source is not None)
        raise DataError(f"{given}: two of these contain the same rows. Give different data for each part.")
    return data


def _train_reference_model(options: argparse.Namespace, data: TrainingData) -> int:
    """Train a reference model and write its checkpoint. Return the size of the checkpoint in bytes."""
    from attnaudit.models import checkpoint_folder
    from attnaudit.models.training import train
    from attnaudit.models.vocabulary import RESERVED

    with invalid_input():
        job = _training_job(options, data)
        job.architecture.check()
        job.settings.check()
    state_file, vectors = job.state_file, job.settings.vectors
    assert state_file is not None
    state = state_file.load()
    if state is not None:
        print(f"Resuming the stopped training after epoch {len(state['history'])}.")
    with progress_bar("training", print_notes=True) as progress:
        trained = train(replace(job, progress=progress))
    if vectors is not None:
        known_words = len(trained.vocabulary) - len(RESERVED)
        source = terminal_safe(str(vectors.path))
        print(f"{trained.words_with_vectors:,} of {known_words:,} known words have a vector in {source}")
    _print_scores(trained, state_file.seconds[0])
    checkpoint_folder.save(
        options.out,
        trained.model,
        trained.vocabulary,
        trained.classes,
        description=f"{options.encoder} + {options.alignment} + {options.projection}, trained on {data.train.name}",
        training=_training_record(options, job.settings, trained, data),
    )
    state_file.delete()
    files = (checkpoint_folder.WEIGHTS, checkpoint_folder.CARD)
    return sum((options.out / name).stat().st_size for name in files)


def _training_job(options: argparse.Namespace, data: TrainingData) -> TrainingJob:
    """Return the job that the options describe, with its state file in the output folder."""
    from attnaudit.models.architecture import Architecture
    from attnaudit.models.training_job import Settings, TrainingJob
    from attnaudit.models.training_state import STATE_FILE, TrainingStateFile
    from attnaudit.models.word_vectors import Vectors

    vectors = None if options.vectors is None else Vectors.from_file(options.vectors)
    if vectors is not None and "embedding_size" not in options.given:
        options.embedding_size = vectors.width
    architecture = Architecture(**{name: getattr(options, name) for name in ARCHITECTURE_OPTIONS})
    settings = Settings(**setting_values(options), vectors=vectors)
    content = msgspec.to_builtins({"architecture": architecture, "settings": settings})
    if vectors is not None:
        del content["settings"]["vectors"]["path"]  # the file may have another path when training resumes
    hashed = [_version("attnaudit"), content, data.train.sha256(), data.dev.sha256()]
    key = hashlib.sha256(msgspec.json.encode(hashed, order="sorted")).hexdigest()
    return TrainingJob(
        data=data,
        architecture=architecture,
        settings=settings,
        state_file=TrainingStateFile(path=options.out / STATE_FILE, key=key),
    )


def _fine_tune(options: argparse.Namespace, base: Base, data: TrainingData) -> int:
    """Fine-tune an encoder and write its checkpoint. Return the size of the checkpoint in bytes."""
    import torch

    from attnaudit.models.fine_tuning import FineTuningSettings, fine_tune
    from attnaudit.models.pretrained import save

    with invalid_input():
        settings = FineTuningSettings(**setting_values(options))
        settings.check()
    start = time.monotonic()
    with progress_bar("training", print_notes=True) as progress:
        tuned = fine_tune(base, data, settings=settings, progress=progress)
    seconds = time.monotonic() - start
    _print_scores(tuned, seconds)
    for part, count in tuned.truncated.items():
        if count:
            print(f"{part}: truncated {plural(count, 'text')} to {tuned.max_tokens} tokens")
    record = _training_record(options, settings, tuned, data) | {
        "description": f"{base.name}, fine-tuned on {data.train.name}",
        "base": {"name": base.name, "version": base.version, "weights_sha256": base.weights_sha256()},
        "classes": tuned.classes,
        "max_tokens": tuned.max_tokens,
        "truncated": tuned.truncated,
        "new_parameters": tuned.pretrained.new_parameters,
        "threads": torch.get_num_threads(),
        "seconds": round(seconds, 1),
    }
    return save(options.out, tuned.pretrained, record)


def _print_scores(trained: Trained | FineTuned, seconds: float) -> None:
    print(f"Chose epoch {trained.chosen_epoch} of {len(trained.history)} on dev, after {seconds:.0f} s.")
    for part, score in (("dev", trained.dev), ("test", trained.test)):
        if score is not None:
            f1 = "undefined" if score.f1 is None else f"{score.f1:.4f}"
            print(f"{part}: accuracy {score.accuracy:.4f}, F1 {f1} (n={score.n})")


def _training_record(
    options: argparse.Namespace, settings: msgspec.Struct, trained: Trained | FineTuned, data: TrainingData
) -> dict[str, Any]:
    """Describe how the model was trained, for the card in its folder."""
    libraries = ("attnaudit", "torch", *(("entmax",) if options.base is None else ("transformers", "tokenizers")))
    versions = {name: _version(name) for name in libraries}
    return {
        "command": command(options),
        "versions": {name: installed for name, installed in versions.items() if installed is not None},
        "settings": msgspec.to_builtins(settings),
        "data": {
            name: {"name": part.name, "source": part.source, "rows": len(part.instances), "sha256": part.sha256()}
            for name, part in data.parts.items()
        },
        "history": msgspec.to_builtins(trained.history),
        "chosen_epoch": trained.chosen_epoch,
        "dev": msgspec.to_builtins(trained.dev),
        "test": msgspec.to_builtins(trained.test),
    }


def _version(package: str) -> str | None:
    """Return the installed version of a package; None if it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None
