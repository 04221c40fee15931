"""From what `--model` says to an adapter: a checkpoint folder, a registered name, or package.module:factory."""

from __future__ import annotations

import hashlib
import importlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from attnaudit.adapters.protocol import Capabilities, ModelAdapter
from attnaudit.errors import AdapterError, AuditError, ModelError, nearest, raised_at, require_reachable
from attnaudit.registry import checkpoint_formats, models


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    """An adapter and what a report says of it. sha256 covers the names, types, shapes and values of all tensors."""

    name: str
    source: str
    description: str
    adapter: ModelAdapter
    sha256: str
    parameters: int


def load_model(name: str) -> LoadedModel:
    """Raises ModelError or AdapterError, with the nearest names and the mend, when there is nothing to audit."""
    folder = Path(name)
    require_reachable("--model", folder)
    if name in models:
        source, adapter = f"registered model '{name}'", _made(models.get(name), f"model '{name}'")
        short = name
    elif folder.is_dir():
        source, adapter, short = f"folder {folder.name}", _from_folder(folder), folder.resolve().name
    elif ":" in name and not folder.exists():
        source, adapter, short = f"factory {name}", _from_factory(name), name.replace(":", ".")
    else:
        raise ModelError(unknown_model(name))
    _refuse_incomplete(adapter, source)
    sha256, parameters = fingerprint(adapter)
    return LoadedModel(
        name=short,
        source=source,
        description=str(getattr(adapter, "description", "")),
        adapter=adapter,
        sha256=sha256,
        parameters=parameters,
    )


def unknown_model(name: str) -> str:
    """The message for a name that is neither a folder, nor registered, nor a factory."""
    path = Path(name)
    if path.is_file():
        return f"--model {name}: this is a file; expected the checkpoint folder that holds it."
    return (
        f"--model {name}: no such folder, registered model or package.module:factory. {nearest(name, models.names())} "
        "Give a checkpoint folder, or register a model in conftest.py with @attnaudit.register_model(name)."
    )


def _from_folder(folder: Path) -> ModelAdapter:
    for name in checkpoint_formats.names():
        form = checkpoint_formats.get(name)
        if form.recognises(folder):
            adapter: ModelAdapter = form.load(folder)
            return adapter
    found = ", ".join(sorted(p.name for p in folder.iterdir())[:6]) or "nothing"
    raise ModelError(
        f"{folder}: no known checkpoint format ({', '.join(checkpoint_formats.names()) or 'none registered'}); "
        f"the folder holds {found}. Expected attnaudit.json and model.safetensors as `attnaudit train` writes them. "
        "For a model of your own, register an adapter in conftest.py."
    )


def _from_factory(name: str) -> ModelAdapter:
    module_name, _, attribute = name.partition(":")
    here = str(Path.cwd())
    added = here not in sys.path
    if added:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        raise ModelError(
            f"--model {name}: module '{module_name}' cannot be imported: {type(error).__name__}: {error}. Expected "
            "package.module:factory, importable from the folder you run pytest in."
        ) from error
    finally:
        if added:
            sys.path.remove(here)
    factory = getattr(module, attribute, None)
    if not callable(factory):
        known = [n for n, value in vars(module).items() if callable(value) and not n.startswith("_")]
        raise ModelError(f"--model {name}: '{module_name}' has no function '{attribute}'. {nearest(attribute, known)}")
    return _made(factory, f"factory {name}")


def _made(factory: Callable[[], Any], what: str) -> ModelAdapter:
    try:
        adapter: ModelAdapter = factory()
    except AuditError:
        raise
    except Exception as error:
        form = " It must take no argument and return a model adapter." if isinstance(error, TypeError) else ""
        raise ModelError(
            f"{what}: its factory raised {type(error).__name__}{raised_at(error)}: {error}.{form}"
        ) from error
    return adapter


def _refuse_incomplete(adapter: object, source: str) -> None:
    """Raises AdapterError that lists every member the adapter lacks."""
    required = ["capabilities", "modules", "collate", "embed", "sites", "run"]
    capabilities = getattr(adapter, "capabilities", None)
    if isinstance(capabilities, Capabilities):
        declared = {
            "deletion": ("delete", "keep"),
            "mask": ("substitute",),
            "decodes": ("decode",),
            "linear_decoder": ("decoder_weights",),
            "replays": ("replay", "replay_width"),
            "value_norms": ("transformed",),
            "shares_states": ("share", "logits_without", "variant_cost"),
            "influences": ("share", "influence"),
            "retrains": ("retrain",),
        }
        required += [name for flag, names in declared.items() if getattr(capabilities, flag) for name in names]
    lacking = [name for name in required if not hasattr(adapter, name)]
    if lacking:
        raise AdapterError(
            f"{source} gives a {type(adapter).__name__} without {', '.join(lacking)}; expected a model adapter. "
            "Wrap the model in attnaudit.adapters.PooledAttentionAdapter, or add what is missing (see ModelAdapter)."
        )
    if not isinstance(capabilities, Capabilities):
        raise AdapterError(
            f"{source}: capabilities is a {type(capabilities).__name__}; expected attnaudit.adapters.Capabilities."
        )
    for name in capabilities.classes:
        if type(name) is not str:
            raise AdapterError(f"{source}: the class {name!r} is no text. Give class names: str({name!r}).")


def fingerprint(adapter: ModelAdapter) -> tuple[str, int]:
    """(sha256 of all tensors, number of parameters). The same model gives the same hash on any device."""
    digest, parameters = hashlib.sha256(), 0
    seen: set[int] = set()
    for position, module in enumerate(adapter.modules):
        for name, tensor in sorted(module.state_dict(keep_vars=True).items()):
            if id(tensor) in seen or not isinstance(tensor, Tensor):  # a module may keep more than tensors there
                continue
            if tensor.is_meta:
                raise AdapterError(f"'{name}' has no numbers (it is on torch's meta device). Load the model's weights.")
            seen.add(id(tensor))
            digest.update(f"{position}.{name}:{tensor.dtype}:{tuple(tensor.shape)}".encode())
            digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
            parameters += tensor.numel()
    return digest.hexdigest(), parameters
