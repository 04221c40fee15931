"""Describe everything that determines the outputs of a model besides its parameters, for the hash of the model."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from dataclasses import asdict, fields, is_dataclass
from enum import Enum
from types import SimpleNamespace
from typing import Any

import numpy as np
from torch import nn

from attnaudit.adapters.protocol import ModelAdapter
from attnaudit.code_identity.code_hash import is_of_the_user
from attnaudit.targets import CLASS

#: Attributes of modules that do not affect a model's outputs: the training mode, the path of the loaded files, the
#: warnings that Transformers has already shown, and the devices that accelerate distributed the model over.
_WITHOUT_EFFECT = ("training", "name_or_path", "warnings_issued", "hf_device_map")
#: How deeply plain values may be nested.
_DEEPEST = 6
_NOT_PLAIN = object()


def configuration_text(adapter: ModelAdapter) -> str:
    """Return a text that describes everything that determines the outputs of a model, except its parameters.

    Two models with equal parameters can still differ, for example in the order of their classes, in their vocabularies
    or in the scale of their attention. The text contains the classes, the token limit, the sites and the attribute
    `configuration` of the adapter. If the target is not a class, it is included as well. For every module, the text
    contains its type and its plain attributes (see `_plain`). It does not contain the code of the modules or of the
    adapter, and no tensors and arrays that are neither parameters nor persistent buffers: numbers that are computed
    when a model is built can differ between processors in their last digits.
    """
    modules = [
        [position, name, f"{type(module).__module__}.{type(module).__qualname__}", _plain_attributes(module)]
        for position, owner in enumerate(adapter.modules)
        for name, module in owner.named_modules()
    ]
    content: dict[str, Any] = {
        "adapter": type(adapter).__qualname__,
        "classes": list(adapter.capabilities.classes),
        "task": adapter.capabilities.task,
        "max_tokens": adapter.capabilities.max_tokens,
        "sites": [asdict(site) for site in adapter.sites()],
        "modules": modules,
        "configuration": str(getattr(adapter, "configuration", "")),
    }
    if adapter.capabilities.target != CLASS:
        content["target"] = asdict(adapter.capabilities.target)
    return json.dumps(content, sort_keys=True)


def _plain_attributes(module: nn.Module) -> dict[str, Any]:
    """Return the public attributes of a module that are plain (see `_plain`)."""
    return _plain_fields({name: value for name, value in vars(module).items() if name not in _WITHOUT_EFFECT})


def _plain_fields(fields: Mapping[str, object], inside: tuple[int, ...] = ()) -> dict[str, Any]:
    """Return the public fields that are plain."""
    plain = {name: _plain(value, inside) for name, value in fields.items() if not name.startswith("_")}
    return {name: value for name, value in plain.items() if value is not _NOT_PLAIN}


def _plain(value: object, inside: tuple[int, ...] = ()) -> Any:
    """Return a value in a form that JSON can represent; `_NOT_PLAIN` if it has none.

    Numbers, strings and flags are plain, and so are sequences and sets of them, and dicts of them with strings as keys.
    PEFT keeps the scale of each adapter in such a dict. An empty dict may be a cache that is filled while a model runs.
    Of an object with settings, such as a dataclass of the user, the public fields that are plain count.

    Args:
        value: The value.
        inside: The ids of the objects that contain the value. An object that contains itself is not plain.
    """
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, Enum):
        value = value.value
    if value is None or isinstance(value, (str, int, float)):
        return value
    if len(inside) > _DEEPEST or id(value) in inside:
        return _NOT_PLAIN
    if isinstance(value, dict):
        items = {key: _plain(one, (*inside, id(value))) for key, one in value.items() if isinstance(key, str)}
        return items if items and len(items) == len(value) and _NOT_PLAIN not in items.values() else _NOT_PLAIN
    if isinstance(value, (tuple, list, set, frozenset)):
        members = [_plain(one, (*inside, id(value))) for one in value]
        if any(one is _NOT_PLAIN for one in members):
            return _NOT_PLAIN
        return sorted(members, key=json.dumps) if isinstance(value, (set, frozenset)) else members
    if isinstance(value, (SimpleNamespace, argparse.Namespace)) or is_of_the_user(type(value).__module__):
        return _fields_of_object(value, (*inside, id(value)))
    return _NOT_PLAIN


def _fields_of_object(value: object, inside: tuple[int, ...]) -> Any:
    """Return the plain fields of an object with settings; `_NOT_PLAIN` if it has none, or is a module."""
    if isinstance(value, (type, nn.Module)):
        return _NOT_PLAIN
    named = [field.name for field in fields(value)] if is_dataclass(value) else list(getattr(value, "__dict__", {}))
    plain = _plain_fields({name: getattr(value, name, _NOT_PLAIN) for name in named}, inside)
    return {type(value).__qualname__: plain} if plain else _NOT_PLAIN
