"""Checkpoint folders of the reference models: `attnaudit.json` (the card) and `model.safetensors` (the weights)."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from attnaudit.errors import ModelError, nearest, refuse_pointer, require_regular_file
from attnaudit.models.architecture import Architecture
from attnaudit.models.pooled_classifier import PooledClassifier
from attnaudit.models.reference_adapter import ReferenceModel
from attnaudit.models.vocabulary import Vocabulary
from attnaudit.processes import unfinished_path

FORMAT = "attnaudit pooled classifier"
VERSION = 1
CARD = "attnaudit.json"
WEIGHTS = "model.safetensors"
#: Largest number of unexpected tensors that a message names.
MOST_NAMED = 4
_COPY_AGAIN = "Copy the whole folder again or train the model again."


class Card(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The contents of `attnaudit.json`.

    Attributes:
        format: Always `FORMAT`.
        format_version: Version of the format. This code reads only version `VERSION`.
        description: A description of the model for reports.
        architecture: The architecture of the model.
        classes: Class names, in the order of the logits.
        weights_sha256: SHA-256 hash of `model.safetensors`.
        training: How the model was trained: the settings with the seed, the data with their hashes, the scores and the
            command. Retraining uses the settings and the data. Empty if the training was not recorded.
        vocabulary: The entries of the vocabulary, in the order of their ids.
    """

    format: str
    format_version: int
    description: str
    architecture: Architecture
    classes: list[str]
    weights_sha256: str
    training: dict[str, Any]
    vocabulary: list[str]


def recognises(folder: Path) -> bool:
    """Return whether the folder contains an `attnaudit.json`."""
    return (Path(folder) / CARD).is_file()


def save(
    folder: Path,
    model: PooledClassifier,
    vocabulary: Vocabulary,
    classes: tuple[str, ...],
    *,
    description: str = "",
    training: Mapping[str, Any] | None = None,
) -> None:
    """Write a checkpoint folder.

    The embedding is stored as float16 if float16 represents all of its values exactly. Both files are first written
    under temporary names, so an existing checkpoint stays intact if writing fails.

    Args:
        folder: The folder to write. It is created if it does not exist.
        model: The model.
        vocabulary: The vocabulary of the model.
        classes: Class names, in the order of the logits.
        description: A description of the model for reports.
        training: How the model was trained (see `Card`); None if this is not recorded.

    Raises:
        ModelError: The folder cannot be written.
    """
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()}
    half = tensors["embedding.weight"].half()
    if torch.equal(half.float(), tensors["embedding.weight"]):
        tensors["embedding.weight"] = half
    weights = safetensors.torch.save(tensors)
    card = Card(
        format=FORMAT,
        format_version=VERSION,
        description=description,
        architecture=model.architecture,
        classes=list(classes),
        weights_sha256=hashlib.sha256(weights).hexdigest(),
        training=dict(training or {}),
        vocabulary=list(vocabulary.entries),
    )
    contents = {WEIGHTS: weights, CARD: msgspec.json.format(msgspec.json.encode(card), indent=1) + b"\n"}
    folder = Path(folder)
    temporary_paths = {name: unfinished_path(folder / name) for name in contents}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, data in contents.items():
            temporary_paths[name].write_bytes(data)
        for name, path in temporary_paths.items():
            path.replace(folder / name)
    except OSError as error:
        raise ModelError(
            f"{folder}: the checkpoint cannot be written ({error.strerror}). Give --out a folder that you may write to."
        ) from error
    finally:
        for path in temporary_paths.values():
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)


def load(folder: Path) -> ReferenceModel:
    """Load the model in a checkpoint folder as an adapter, in evaluation mode on the CPU.

    Raises:
        ModelError: A file cannot be read or is invalid. The message names the file, the problem and the fix.
    """
    model, vocabulary, card = load_model(folder)
    return ReferenceModel(model, vocabulary, tuple(card.classes), description=card.description, training=card.training)


def load_model(folder: Path) -> tuple[PooledClassifier, Vocabulary, Card]:
    """Load the model in a checkpoint folder as a module, in evaluation mode on the CPU.

    Returns:
        The module, its vocabulary and its card.

    Raises:
        ModelError: A file cannot be read or is invalid. The message names the file, the problem and the fix.
    """
    folder = Path(folder)
    card = _read_card(folder / CARD)
    try:
        vocabulary = Vocabulary(card.vocabulary)
    except ValueError as error:
        raise ModelError(f"{folder / CARD}: {error}. {_COPY_AGAIN}") from error
    try:
        model = PooledClassifier(card.architecture, vocabulary_size=len(vocabulary), classes=len(card.classes))
    except ModelError as error:
        raise ModelError(f"{folder / CARD}: architecture: {error}") from error
    _load_weights(model, folder / WEIGHTS, card)
    model.eval()
    return model, vocabulary, card


def _read_card(path: Path) -> Card:
    require_regular_file(path, "the description of the model", ModelError)
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise ModelError(f"{path}: cannot be read ({error.strerror}). {_COPY_AGAIN}") from error
    try:
        content = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ModelError(f"{path}: not valid JSON ({error}). {_COPY_AGAIN}") from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        actual_format = content.get("format") if isinstance(content, dict) else type(content).__name__
        raise ModelError(
            f'{path}: "format" is {actual_format!r}, expected {FORMAT!r}. Give a folder that `attnaudit train` wrote.'
        )
    if content.get("format_version") != VERSION:
        raise ModelError(
            f'{path}: "format_version" is {content.get("format_version")!r}, but this attnaudit reads version '
            f"{VERSION}. Install the version of attnaudit that wrote it, or train the model again."
        )
    try:
        card = msgspec.convert(content, Card)
    except msgspec.ValidationError as error:
        raise ModelError(f"{path}: {error}. {_COPY_AGAIN}") from error
    if len(card.classes) < 2 or len(set(card.classes)) != len(card.classes):
        raise ModelError(f'{path}: "classes" is {card.classes}, expected at least two different names. {_COPY_AGAIN}')
    return card


def _load_weights(model: PooledClassifier, path: Path, card: Card) -> None:
    """Validate the stored tensors and load them into the model."""
    require_regular_file(path, "the weights of the model", ModelError)
    refuse_pointer(path, "the weights of the model", ModelError)
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise ModelError(f"{path}: cannot be read ({error.strerror}). {_COPY_AGAIN}") from error
    try:
        stored: dict[str, Tensor] = safetensors.torch.load(raw)
    except (SafetensorError, KeyError, ValueError) as error:
        raise ModelError(f"{path}: this is not a complete safetensors file ({error}). {_COPY_AGAIN}") from error
    expected = model.state_dict()
    described = _describe(card.architecture)
    for name in expected:
        if name not in stored:
            raise ModelError(
                f"{path}: tensor '{name}' is missing. {CARD} describes the model as {described}. "
                f"{nearest(name, stored)} {_COPY_AGAIN}"
            )
    unexpected = sorted(stored.keys() - expected.keys())
    if unexpected:
        many = len(unexpected) > 1
        more = f" and {len(unexpected) - MOST_NAMED} more" if len(unexpected) > MOST_NAMED else ""
        raise ModelError(
            f"{path}: tensor{'s' * many} {', '.join(repr(name) for name in unexpected[:MOST_NAMED])}{more} "
            f"{'do' if many else 'does'} not belong to {described}, the model that {CARD} describes. {_COPY_AGAIN}"
        )
    for name, tensor in stored.items():
        if tensor.shape != expected[name].shape:
            raise ModelError(
                f"{path}: tensor '{name}' has shape {tuple(tensor.shape)}, but {CARD} requires "
                f"{tuple(expected[name].shape)}. {_COPY_AGAIN}"
            )
        if tensor.dtype not in (torch.float16, torch.float32):
            raise ModelError(
                f"{path}: tensor '{name}' has the type {tensor.dtype}, expected float32 or float16. {_COPY_AGAIN}"
            )
        if not torch.isfinite(tensor).all():
            raise ModelError(f"{path}: tensor '{name}' contains NaN or infinity. Train the model again.")
    if hashlib.sha256(raw).hexdigest() != card.weights_sha256:
        raise ModelError(f"{path}: this is not the file that {CARD} was written with (sha256 differs). {_COPY_AGAIN}")
    model.load_state_dict({name: tensor.float() for name, tensor in stored.items()})


def _describe(architecture: Architecture) -> str:
    return f"{architecture.encoder} + {architecture.alignment} + {architecture.projection}"
