"""Loading of the model given as `--model`: a checkpoint folder, a registered name, or package.module:factory."""

from __future__ import annotations

import hashlib
import importlib
import inspect
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from attnaudit import adapters
from attnaudit.adapters.dispatched_models import stored_value
from attnaudit.adapters.model_configuration import configuration_text
from attnaudit.adapters.protocol import Capabilities, ModelAdapter
from attnaudit.errors import (
    AdapterError,
    AuditError,
    ModelError,
    ambiguous,
    nearest,
    raised_at,
    require_reachable,
    require_regular_files,
)
from attnaudit.model_families import POOLED
from attnaudit.precision import EPSILONS, FLOAT32
from attnaudit.registry import checkpoint_formats, models
from attnaudit.targets import split_label

#: The message of Python's error if a class is called with an argument that it does not know.
_UNKNOWN_ARGUMENT = re.compile(r"(?P<kind>\w+)\.__init__\(\) got an unexpected keyword argument '(?P<name>\w+)'$")
#: Members that every adapter has.
_REQUIRED_MEMBERS = ("capabilities", "modules", "collate", "embed", "sites", "run")
#: Capability -> members that every adapter with this capability must have.
_CAPABILITY_MEMBERS = {
    "deletion": ("delete", "keep"),
    "mask": ("substitute",),
    "decodes": ("decode",),
    "linear_decoder": ("decoder_weights",),
    "replays": ("replay", "replay_cost"),
    "resumes": ("resume",),
    "value_vectors": ("value_vectors",),
    "shares_states": ("share", "logits_without", "variant_cost"),
    "shares_masked": ("share", "logits_masked", "variant_cost"),
    "single_masks": ("share", "logits_with_single_masks"),
    "influences": ("share", "influence"),
    "retrains": ("retrain",),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    """A loaded adapter, with the facts about its model that reports show.

    Attributes:
        name: Short name of the model.
        source: Where the model was loaded from, such as "folder my-model".
        description: The attribute `description` of the adapter; "" if the adapter has none.
        adapter: The adapter.
        sha256: SHA-256 hash of `parameters_sha256` and of the configuration of the model (see
            `attnaudit.adapters.model_configuration`).
        parameters_sha256: SHA-256 hash of the names, data types, shapes and values of all parameters and persistent
            buffers.
        parameters: Number of values in all parameters and persistent buffers. Shared tensors are counted once.
    """

    name: str
    source: str
    description: str
    adapter: ModelAdapter
    sha256: str
    parameters_sha256: str
    parameters: int

    @property
    def family(self) -> str:
        """The family of the model. The key `validated_on` of policies lists families.

        The adapter names the family in its attribute `family`. If it names none, the family is "pooled attention" for a
        model with a single, pooled attention site, and "" for any other model.
        """
        stated = str(getattr(self.adapter, "family", ""))
        return stated or (POOLED if [site.kind for site in self.adapter.sites()] == ["pool"] else "")


def load_model(name: str) -> LoadedModel:
    """Load the model given as `--model`.

    Args:
        name: A checkpoint folder, the name of a registered model, or package.module:factory. FOLDER[LABEL] names one
            label of a model that assigns any number of labels to a text.

    Raises:
        ModelError: There is no such model, or it cannot be loaded.
        AdapterError: The object that was loaded is not a complete model adapter.
    """
    path, label = split_label(name)
    folder = Path(path)
    require_reachable("--model", folder)
    if name in models:
        if folder.is_dir():
            raise ModelError(ambiguous("--model", name, "model", folder))
        source, adapter = f"registered model '{name}'", _call_factory(models.get(name), f"model '{name}'")
        short = name
    elif folder.is_dir():
        source, adapter, short = f"folder {folder.name}", _from_folder(folder, label), folder.resolve().name
        short += f"[{label}]" if label else ""
    elif ":" in name and not folder.exists():
        source, adapter, short = f"factory {name}", _from_factory(name), name.replace(":", ".")
    else:
        raise ModelError(unknown_model(name))
    _refuse_incomplete(adapter, source)
    parameters_sha256, parameters = fingerprint(adapter)
    return LoadedModel(
        name=short,
        source=source,
        description=str(getattr(adapter, "description", "")),
        adapter=adapter,
        sha256=hashlib.sha256(f"{parameters_sha256}\n{configuration_text(adapter)}".encode()).hexdigest(),
        parameters_sha256=parameters_sha256,
        parameters=parameters,
    )


def unknown_model(name: str) -> str:
    """Return the error message for a value of `--model` that is not a folder, a registered model or a factory."""
    path = Path(name)
    if path.is_file():
        formats = (checkpoint_formats.get(one) for one in checkpoint_formats.names())
        fix = (
            "Give the checkpoint folder that contains the file."
            if any(one.recognises(path.parent) for one in formats)
            else "The folder that contains it is not a checkpoint. Register an adapter that loads the file in "
            "conftest.py with @attnaudit.register_model(name), and give this name."
        )
        return f"--model {name}: this is a file; expected a folder. {fix}"
    return (
        f"--model {name}: there is no such folder, registered model or package.module:factory. "
        f"{nearest(name, models.names())} Give a checkpoint folder, or register a model in conftest.py with "
        "@attnaudit.register_model(name)."
    )


def _from_folder(folder: Path, label: str) -> ModelAdapter:
    require_regular_files(folder, "the model", ModelError)
    formats = {name: checkpoint_formats.get(name) for name in checkpoint_formats.names()}
    claims = [name for name, checkpoint_format in formats.items() if checkpoint_format.recognises(folder)]
    if len(claims) > 1:
        raise ModelError(
            f"{folder}: several checkpoint formats claim this folder ({', '.join(claims)}), so it is unclear which "
            "model would be audited. Keep the files of one model in the folder, or uninstall the package with the "
            "other format."
        )
    if claims:
        load = formats[claims[0]].load
        if label and "label" not in inspect.signature(load).parameters:
            raise ModelError(
                f"{folder}[{label}]: this checkpoint format has no labels to choose from. Remove [{label}]."
            )
        adapter: ModelAdapter = load(folder, label=label) if label else load(folder)
        return adapter
    contents = ", ".join(sorted(p.name for p in folder.iterdir())[:6]) or "nothing"
    raise ModelError(
        f"{folder}: the folder is not in a known checkpoint format "
        f"({', '.join(checkpoint_formats.names()) or 'none registered'}); it contains {contents}. Expected a folder "
        "written by `attnaudit train` or by Transformers' save_pretrained. To audit your own model, register an "
        "adapter for it in conftest.py."
    )


def _from_factory(name: str) -> ModelAdapter:
    module_name, _, attribute = name.partition(":")
    working_folder = str(Path.cwd())
    added = working_folder not in sys.path
    if added:
        sys.path.insert(0, working_folder)
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:
        raise ModelError(
            f"--model {name}: module '{module_name}' cannot be imported: {type(error).__name__}: {_message(error)} "
            "Expected package.module:factory, importable from the folder in which you run pytest."
        ) from error
    finally:
        if added:
            sys.path.remove(working_folder)
    factory = getattr(module, attribute, None)
    if not callable(factory):
        known = [n for n, value in vars(module).items() if callable(value) and not n.startswith("_")]
        raise ModelError(f"--model {name}: '{module_name}' has no function '{attribute}'. {nearest(attribute, known)}")
    return _call_factory(factory, f"factory {name}")


def _call_factory(factory: Callable[[], Any], what: str) -> ModelAdapter:
    try:
        adapter: ModelAdapter = factory()
    except AuditError:
        raise
    except (Exception, SystemExit) as error:
        hint = _hint(error) if isinstance(error, TypeError) else ""
        raise ModelError(
            f"{what}: the factory raised {type(error).__name__}{raised_at(error)}: {_message(error)}{hint}"
        ) from error
    return adapter


def _message(error: BaseException) -> str:
    """Return the message of an error, with one full stop at its end: those of PyTorch have one, most others do not."""
    return f"{str(error).rstrip('.')}."


def _hint(error: TypeError) -> str:
    """Return a sentence that helps with the error of a factory, preceded by a space; "" if there is none.

    If an adapter class of attnaudit does not know an argument, the sentence suggests a known one.
    """
    if error.__traceback__ is not None and error.__traceback__.tb_next is None:  # raised by the call of the factory
        return " It must take no argument and return a model adapter."
    unknown = _UNKNOWN_ARGUMENT.search(str(error))
    kind = getattr(adapters, unknown["kind"], None) if unknown else None
    if unknown is None or not isinstance(kind, type):
        return ""
    return f" {nearest(unknown['name'], inspect.signature(kind).parameters)}"


def _refuse_incomplete(adapter: object, source: str) -> None:
    """Check that an object is a complete model adapter.

    Raises:
        AdapterError: The object lacks a member, or its capabilities or class names have the wrong type.
    """
    required = list(_REQUIRED_MEMBERS)
    capabilities = getattr(adapter, "capabilities", None)
    if isinstance(capabilities, Capabilities):
        required += [
            member
            for capability, members in _CAPABILITY_MEMBERS.items()
            if getattr(capabilities, capability)
            for member in members
        ]
        if capabilities.draws > 1:
            required.append("substitute_draw")
        if capabilities.precision != FLOAT32:
            required += ["in_float32", "compare_with_float32"]
    missing = [member for member in required if not hasattr(adapter, member)]
    if missing:
        raise AdapterError(
            f"{source} returned a {type(adapter).__name__} without {', '.join(missing)}; expected a model adapter. "
            "Wrap the model in attnaudit.adapters.PooledAttentionAdapter, or add what is missing (see ModelAdapter)."
        )
    if not isinstance(capabilities, Capabilities):
        raise AdapterError(
            f"{source}: capabilities is a {type(capabilities).__name__}; expected attnaudit.adapters.Capabilities."
        )
    if capabilities.precision not in EPSILONS:
        raise AdapterError(
            f"{source}: precision is {capabilities.precision!r}; expected {', '.join(map(repr, EPSILONS))}."
        )
    if isinstance(capabilities.classes, str):
        raise AdapterError(
            f"{source}: classes is the string {capabilities.classes!r}; expected a sequence of names, such as "
            "classes=('negative', 'positive')."
        )
    for name in capabilities.classes:
        if type(name) is not str:
            raise AdapterError(f"{source}: the class name {name!r} is not a string. Convert it: str({name!r}).")


def fingerprint(adapter: ModelAdapter) -> tuple[str, int]:
    """Return a hash of a model's parameters, and the number of values in them.

    The hash covers the names, data types, shapes and values of all parameters and persistent buffers. It does not
    depend on the device. Shared tensors are counted once.

    Raises:
        AdapterError: A tensor is on the meta device, and accelerate has not offloaded it.
    """
    digest, parameters = hashlib.sha256(), 0
    seen: set[int] = set()
    for position, module in enumerate(adapter.modules):
        for name, tensor in sorted(module.state_dict(keep_vars=True).items()):
            if not isinstance(tensor, Tensor):  # A state dict may contain other objects.
                continue
            value: Tensor | None = stored_value(module, name) if tensor.is_meta else tensor.detach()
            if value is None:
                raise AdapterError(
                    f"The tensor '{name}' has no values: it is on torch's meta device. Load the model's weights."
                )
            digest.update(f"{position}.{name}:{tensor.dtype}:{tuple(tensor.shape)}".encode())
            digest.update(value.to(tensor.dtype).cpu().contiguous().flatten().view(torch.uint8).numpy().data)
            # Shared tensors are hashed under each of their names, because moving a model may end the sharing.
            parameters += 0 if id(tensor) in seen else tensor.numel()
            seen.add(id(tensor))
    return digest.hexdigest(), parameters
