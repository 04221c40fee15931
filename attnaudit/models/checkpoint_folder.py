"""Checkpoint folders of the reference models: `attnaudit.json` (what it is) and `model.safetensors` (its weights)."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from attnaudit.errors import ModelError, nearest
from attnaudit.models.pooled_classifier import Architecture, PooledClassifier
from attnaudit.models.reference_adapter import ReferenceModel
from attnaudit.models.vocabulary import Vocabulary

FORMAT = "attnaudit pooled classifier"
VERSION = 1
CARD = "attnaudit.json"
WEIGHTS = "model.safetensors"
_AGAIN = "Copy the whole folder again or train the model again."


class Card(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The contents of `attnaudit.json`. training: how the model came about (settings, seed, data and their hashes,
    scores, command); what a copy is trained by, and otherwise read by people."""

    format: str
    format_version: int
    description: str
    architecture: Architecture
    classes: list[str]
    weights_sha256: str
    training: dict[str, Any]
    vocabulary: list[str]


def recognises(folder: Path) -> bool:
    """True for a folder with an `attnaudit.json`."""
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
    """Write the two files, each first under another name, so that an error leaves an older checkpoint whole.

    The embedding is stored as float16 where that loses nothing. Raises ModelError when the folder cannot be written.
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
    written = {name: folder / f".{name}.{os.getpid()}" for name in contents}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, data in contents.items():
            written[name].write_bytes(data)
        for name, path in written.items():
            path.replace(folder / name)
    except OSError as error:
        raise ModelError(
            f"{folder}: the checkpoint cannot be written ({error.strerror}). Give --out a folder that you may write to."
        ) from error
    finally:
        for path in written.values():
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)


def load(folder: Path) -> ReferenceModel:
    """The model in `folder` as an adapter, in evaluation mode on the CPU. Raises ModelError naming the file, what is
    wrong with it and the mend."""
    model, vocabulary, card = load_model(folder)
    return ReferenceModel(model, vocabulary, tuple(card.classes), description=card.description, training=card.training)


def load_model(folder: Path) -> tuple[PooledClassifier, Vocabulary, Card]:
    """As `load`, but the module itself, its vocabulary and the card."""
    folder = Path(folder)
    card = _read_card(folder / CARD)
    try:
        vocabulary = Vocabulary(card.vocabulary)
    except ValueError as error:
        raise ModelError(f"{folder / CARD}: {error}. {_AGAIN}") from error
    try:
        model = PooledClassifier(card.architecture, vocabulary_size=len(vocabulary), classes=len(card.classes))
    except ModelError as error:
        raise ModelError(f"{folder / CARD}: architecture: {error}") from error
    _fill(model, folder / WEIGHTS, card)
    model.eval()
    return model, vocabulary, card


def _read_card(path: Path) -> Card:
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise ModelError(f"{path}: cannot be read ({error.strerror}). {_AGAIN}") from error
    try:
        head = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ModelError(f"{path}: not valid JSON ({error}). {_AGAIN}") from error
    if not isinstance(head, dict) or head.get("format") != FORMAT:
        found = head.get("format") if isinstance(head, dict) else type(head).__name__
        raise ModelError(
            f'{path}: "format" is {found!r}, expected {FORMAT!r}. Give a folder made by `attnaudit train`.'
        )
    if head.get("format_version") != VERSION:
        raise ModelError(
            f'{path}: "format_version" is {head.get("format_version")!r}, but this attnaudit reads version {VERSION}. '
            "Install the attnaudit that wrote it, or train the model again."
        )
    try:
        card = msgspec.convert(head, Card)
    except msgspec.ValidationError as error:
        raise ModelError(f"{path}: {error}. {_AGAIN}") from error
    if len(card.classes) < 2 or len(set(card.classes)) != len(card.classes):
        raise ModelError(f'{path}: "classes" is {card.classes}, expected at least two different names. {_AGAIN}')
    return card


def _fill(model: PooledClassifier, path: Path, card: Card) -> None:
    """Put the stored weights into `model`, after every check."""
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise ModelError(f"{path}: cannot be read ({error.strerror}). {_AGAIN}") from error
    try:
        stored: dict[str, Tensor] = safetensors.torch.load(raw)
    except (SafetensorError, KeyError, ValueError) as error:
        raise ModelError(f"{path}: not a whole safetensors file ({error}). {_AGAIN}") from error
    expected = model.state_dict()
    for name in expected:
        if name not in stored:
            raise ModelError(
                f"{path}: tensor '{name}' is missing; {CARD} says {_parts(card.architecture)}. {nearest(name, stored)}"
                f" {_AGAIN}"
            )
    for name, tensor in stored.items():
        if name not in expected:
            raise ModelError(
                f"{path}: tensor '{name}' does not belong to {_parts(card.architecture)}, which {CARD} says it is. "
                + _AGAIN
            )
        if tensor.shape != expected[name].shape:
            raise ModelError(
                f"{path}: tensor '{name}' has shape {tuple(tensor.shape)}, but {CARD} asks for "
                f"{tuple(expected[name].shape)}. {_AGAIN}"
            )
        if tensor.dtype not in (torch.float16, torch.float32):
            raise ModelError(f"{path}: tensor '{name}' is of {tensor.dtype}, expected float32 or float16. {_AGAIN}")
        if not torch.isfinite(tensor).all():
            raise ModelError(f"{path}: tensor '{name}' holds NaN or infinity. Train the model again.")
    if hashlib.sha256(raw).hexdigest() != card.weights_sha256:
        raise ModelError(f"{path}: its bytes are not those that {CARD} was written for (sha256 differs). {_AGAIN}")
    model.load_state_dict({name: tensor.float() for name, tensor in stored.items()})


def _parts(architecture: Architecture) -> str:
    return f"{architecture.encoder} + {architecture.alignment} + {architecture.projection}"
