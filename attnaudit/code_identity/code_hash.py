"""The hash of the code that computes a check.

The hash is recorded for custom checks and for checks of other packages. The built-in checks need no hash, because the
run records the version of attnaudit.
"""

from __future__ import annotations

import array
import ast
import contextlib
import datetime
import enum
import functools
import hashlib
import operator
import os
import re
import sys
import types
from collections import ChainMap, UserDict, UserList, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from attnaudit.code_identity.imported_files import file_of_the_user, imports_in, imports_of
from attnaudit.code_identity.source_text import bytecode, global_names_in, names_in, normal_source, without_docstrings
from attnaudit.errors import LIBRARIES

#: The types of simple constants. Their values are hashed with the code that uses them.
_CONSTANTS = (str, bytes, int, float, complex, bool, type(None))
#: Other types whose `repr` gives the value, and is the same in every process.
_SHOWN = (
    range, slice, bytearray, array.array, np.dtype, Decimal, Fraction, datetime.datetime, datetime.date, datetime.time,
    datetime.timedelta, operator.attrgetter, operator.itemgetter, operator.methodcaller,
)  # fmt: skip
#: Objects of torch whose `repr` gives the value.
_SHOWN_BY_TORCH = {("torch", "dtype"), ("torch", "device"), ("torch", "layout")}
_CONTAINERS = (dict, types.MappingProxyType, list, tuple, deque, set, frozenset)
#: Objects of Python and NumPy that call other functions, and the attributes that decide what they compute.
_WRAPPERS: tuple[tuple[tuple[type, ...], tuple[str, ...]], ...] = (
    ((functools.partial, functools.partialmethod), ("func", "args", "keywords")),
    ((functools.cached_property,), ("func",)),
    ((property,), ("fget", "fset", "fdel")),
    ((staticmethod, classmethod), ("__func__",)),
    ((types.MethodType,), ("__func__", "__self__")),
    ((types.BuiltinMethodType,), ("__name__", "__self__")),
    ((np.vectorize,), ("pyfunc",)),
    ((defaultdict,), ("default_factory",)),
    ((UserDict, UserList), ("data",)),
    ((ChainMap,), ("maps",)),
    ((types.SimpleNamespace,), ("__dict__",)),
)
#: How many sets, one inside the other, decide the order of the members of the outermost set.
LEVELS = 4
#: The id of an object, the level and the module -> the object, and its description.
_Keys = dict[tuple[int, int, str], tuple[Any, str]]
#: Variables of a module that depend on the location of its file.
_LOCATIONS = ("__file__", "__cached__", "__spec__", "__loader__", "__path__")


def hash_of_code(*definitions: Callable[..., Any]) -> str:
    """Return the SHA-256 hash, in hexadecimal, of functions and classes.

    The hash covers the statements, the default arguments, and the variables of enclosing functions that the code uses.
    It also covers everything that the code names, except the code of Python and of installed packages: functions,
    classes with their base classes, constants, and objects of these classes with their attributes. Functions are found
    in modules, containers, partial functions and attributes, too. For modules that are imported inside a function, the
    hash covers the statements of the whole files.

    Comments, docstrings, decorators, white space and the location of the file do not affect the hash. For code without
    a source file, such as code run by `exec`, the bytecode is hashed, which depends on the version of Python. An object
    that the code changes while it runs, such as a cache, affects the hash with the value that it has now. Of objects of
    libraries other than containers, arrays and wrapped functions, only the type affects the hash.

    Args:
        *definitions: The functions and classes, in an order that is part of the hash. Other callable objects are
            allowed, too.
    """
    return _ReachedCode().digest(definitions)


class _ReachedCode:
    """Describes the code and the values that definitions reach.

    Each function, class, object and container that can be changed gets a number when it is reached for the first time,
    and is described once. Other descriptions refer to it by its number, so cycles end. The numbers do not depend on the
    process, because everything is reached in a fixed order.

    Args:
        level: How many sets, one inside the other, are described by their members, if the description only decides the
            order of the members of a set. None for a complete description.
        keys: The descriptions that decide orders so far. Each is computed once, because the time would otherwise grow
            exponentially with the number of sets that contain one another.
    """

    def __init__(self, level: int | None = None, keys: _Keys | None = None) -> None:
        self._level = level
        self._keys: _Keys = {} if keys is None else keys
        self._numbers: dict[int, int] = {}
        #: The objects in the order of their numbers, and the module whose code reached them. The list also keeps them
        #: alive, so that no other object gets the same id.
        self._reached: list[tuple[Any, str]] = []
        self._files: set[str] = set()

    def digest(self, definitions: Iterable[Any], module: str = "") -> str:
        """Return the SHA-256 hash of definitions and of everything that they reach.

        Args:
            definitions: The definitions.
            module: The name of the module whose code names them. Its code counts as code of the user.
        """
        texts = []
        for definition in definitions:
            is_definition = isinstance(definition, (types.FunctionType, type))
            texts.append(self._text(definition, definition.__module__ if is_definition else module))
        for number, (value, reached_by) in enumerate(self._reached):  # the list grows while it is read
            texts.append(f"{number}:")
            texts += self._description(value, reached_by)
        return hashlib.sha256("\n".join(texts).encode("utf-8", "surrogatepass")).hexdigest()

    def _text(self, value: Any, module: str) -> str:
        """Return a text for a value: the value itself if it is a constant, else its number or the name of its type."""
        if type(value) is str:
            return repr(_without_location(value, module))
        if type(value) in _CONSTANTS or (isinstance(value, _SHOWN) and not _is_own(type(value), module)):
            return repr(value)
        if isinstance(value, types.ModuleType):
            return f"module {value.__name__} {'; '.join(self._file(value.__name__))}"
        if isinstance(value, (types.FunctionType, type)):
            return self._number(value, module) if _is_own(value, module) else _name(value)
        if isinstance(value, tuple) and type(value) is tuple:
            return f"({', '.join(self._text(item, module) for item in value)})"
        if isinstance(value, enum.Enum):
            return f"{self._text(type(value), module)}.{value.name or value.value!r}"
        if isinstance(value, re.Pattern):
            return f"{value.pattern!r} {value.flags}"
        kind = type(value)
        if isinstance(value, (np.ndarray, *_SHOWN)) and _is_own(kind, module):
            return self._number(value, module)
        if isinstance(value, (np.ndarray, np.generic)) and value.dtype.hasobject:
            items = np.asarray(value).reshape(-1).tolist()
            return f"{value.dtype} {np.shape(value)} ({', '.join(self._text(item, module) for item in items)})"
        if isinstance(value, (np.ndarray, np.generic)) or (kind.__module__, kind.__qualname__) == ("torch", "Tensor"):
            return _array(value)
        if (kind.__module__, kind.__qualname__) in _SHOWN_BY_TORCH:
            return repr(value)
        if self._has_parts(value, module):
            return self._number(value, module)
        return _as_constant(value) or (_name(value) if callable(value) else kind.__qualname__)

    def _has_parts(self, value: Any, module: str) -> bool:
        """Return whether a value has members or attributes that are described, too."""
        if isinstance(value, types.BuiltinMethodType):  # a method of an object, or a function of a module
            return value.__self__ is not None and not isinstance(value.__self__, types.ModuleType)
        wrappers = tuple(kind for kinds, _ in _WRAPPERS for kind in kinds)
        return (
            isinstance(value, (*_CONTAINERS, *wrappers))
            or _is_own(type(value), module)
            or "__wrapped__" in getattr(value, "__dict__", ())
        )

    def _number(self, value: Any, module: str) -> str:
        """Return the number of an object, which is described later if it is new."""
        if id(value) not in self._numbers:
            self._numbers[id(value)] = len(self._reached)
            self._reached.append((value, module))
        return f"#{self._numbers[id(value)]}"

    def _description(self, value: Any, module: str) -> Iterator[str]:
        """Yield texts that together determine what an object computes."""
        if isinstance(value, types.FunctionType):
            yield from self._function(value)
        elif isinstance(value, type):
            yield from self._class(value)
        else:
            yield from self._object(value, module)

    def _object(self, value: Any, module: str) -> Iterator[str]:
        """Yield texts for a container, a wrapper of a function, or an instance of a class of the user."""
        yield self._text(type(value), module)
        yield _as_constant(value)
        if isinstance(value, _SHOWN):
            yield next(str(kind.__repr__(value)) for kind in _SHOWN if isinstance(value, kind))
        if isinstance(value, np.ndarray):
            yield self._text(np.asarray(value), module)
        yield from self._members(value, module)
        for kinds, attributes in _WRAPPERS:
            if isinstance(value, kinds):
                yield from (f"{name} = {self._text(getattr(value, name), module)}" for name in attributes)
        stored = _own_attributes(value)
        if not _is_own(type(value), module):
            stored = {name: stored[name] for name in ("__wrapped__",) if name in stored}
        yield from self._attributes(stored, module)

    def _members(self, value: Any, module: str) -> Iterator[str]:
        """Yield texts for the members of a container."""
        if self._level is not None and isinstance(value, (set, frozenset)):
            yield from sorted(self._key(item, module, self._level - 1) for item in value)
        elif self._level is not None and isinstance(value, (dict, types.MappingProxyType)):
            pairs = ([self._key(one, module, self._level - 1) for one in pair] for pair in value.items())
            yield from sorted(f"{key}: {item}" for key, item in pairs)
        elif isinstance(value, (dict, types.MappingProxyType)):
            for key in self._sorted(value.keys(), module):
                yield f"{self._text(key, module)}: {self._text(value[key], module)}"
        elif isinstance(value, (set, frozenset)):
            yield from (self._text(item, module) for item in self._sorted(value, module))
        elif isinstance(value, (list, tuple, deque)):
            yield from (self._text(item, module) for item in value)

    def _sorted(self, items: Iterable[Any], module: str) -> list[Any]:
        """Return the members of a set, or the keys of a mapping, in an order that is the same in every process."""
        return sorted(items, key=lambda item: self._key(item, module, LEVELS))

    def _key(self, item: Any, module: str, level: int) -> str:
        """Return a text for a member of a set that does not depend on the order of any set."""
        if type(item) in _CONSTANTS:
            return f"{type(item).__name__} {item!r}"
        if level < 1:
            return type(item).__qualname__
        found = self._keys.get((id(item), level, module))
        if found is None:  # the object is kept, so that no other object gets the same id
            found = self._keys[id(item), level, module] = (item, _ReachedCode(level, self._keys).digest([item], module))
        return found[1]

    def _attributes(self, attributes: dict[str, Any], module: str) -> Iterator[str]:
        for name in sorted(attributes):
            yield f"{name} = {self._text(attributes[name], module)}"

    def _class(self, kind: type) -> Iterator[str]:
        """Yield texts for a class."""
        module, source = kind.__module__, normal_source(kind)
        yield source or ""
        yield from (self._text(base, module) for base in (*kind.__bases__, type(kind)))
        if issubclass(kind, enum.Enum):
            yield from (f"{name} = {self._text(one.value, module)}" for name, one in kind.__members__.items())
        attributes = {}
        for name, value in vars(kind).items():
            function = value if isinstance(value, types.FunctionType) else None
            if name.startswith("__") and name.endswith("__"):  # other names of this form belong to Python
                if not isinstance(value, (types.FunctionType, staticmethod, classmethod, property)):
                    continue
            elif issubclass(kind, enum.Enum) and (name.startswith("_") or name in kind.__members__):
                continue
            if source is not None and function is not None and function.__code__.co_filename == "<string>":
                continue  # such as __init__ of a dataclass, which Python derives from the source
            attributes[name] = value
        yield from self._attributes(attributes, module)
        for name, field in vars(kind).get("__dataclass_fields__", {}).items():
            yield f"{name}: {self._text((field.default, field.default_factory), module)}"

    def _function(self, function: types.FunctionType) -> Iterator[str]:
        """Yield texts for a function, and for names that it uses but does not define."""
        module, code, variables = function.__module__, function.__code__, function.__globals__
        source = normal_source(function)
        yield source if source is not None else bytecode(code)
        yield f"defaults {self._text(function.__defaults__, module)}"
        yield from self._attributes(function.__kwdefaults__ or {}, module)
        names, of_globals = sorted(names_in(code)), sorted(global_names_in(code))
        named: list[tuple[str, Any]] = []
        modules: dict[int, str] = {}
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            try:
                named.append((name, cell.cell_contents))
            except ValueError:  # the variable has no value yet
                continue
        if variables.get("__name__") == module or is_of_the_user(variables.get("__name__", "")):
            # Else it is a function of a library that wraps a function of the user, and has the name of its module.
            named += [(name, variables[name]) for name in of_globals if name in variables and name not in _LOCATIONS]
        for name, value in named:
            if isinstance(value, types.ModuleType):
                yield from self._module(name, value, names, modules)
            else:
                yield f"{name} = {self._text(value, module)}"
        yield from self._attributes(vars(function), module)
        for imported in imports_of(code, variables.get("__package__") or variables.get("__name__", "")):
            yield from self._file(imported)

    def _module(self, path: str, module: types.ModuleType, names: list[str], seen: dict[int, str]) -> Iterator[str]:
        """Yield texts for the attributes of a module, and of its submodules, that a function may use.

        Args:
            path: The expression that the function uses for the module, such as "helpers.statistics".
            module: The module.
            names: All names of global variables and attributes that the function uses.
            seen: The id of each module that was described for this function -> its expression there. It is not
                described again.
        """
        if not is_of_the_user(module.__name__):
            yield f"{path} = module {module.__name__}"
            return
        if id(module) in seen:
            yield f"{path} = {seen[id(module)]}"
            return
        seen[id(module)] = path
        for name in names:
            value = vars(module).get(name)
            if name not in vars(module) or name in _LOCATIONS:
                continue
            if isinstance(value, types.ModuleType):
                yield from self._module(f"{path}.{name}", value, names, seen)
            else:
                yield f"{path}.{name} = {self._text(value, module.__name__)}"

    def _file(self, name: str) -> Iterator[str]:
        """Yield texts for all statements of a module of the user, and of the modules that it imports.

        The module need not have been imported, because functions import modules only when they are called.
        """
        file = None if name in self._files else file_of_the_user(name)
        self._files.add(name)
        if file is None:
            return
        try:
            tree = ast.parse(file.read_bytes())
        except (OSError, SyntaxError, ValueError):
            return
        yield f"file {name}: {hashlib.sha256(ast.unparse(without_docstrings(tree)).encode()).hexdigest()}"
        package = name if file.name == "__init__.py" else name.rpartition(".")[0]
        for node in ast.walk(tree):
            for imported in imports_in(node, package):
                yield from self._file(imported)


def _is_own(definition: Any, module: str) -> bool:
    """Return whether a function or a class belongs to a module or to the user."""
    return definition.__module__ == module or is_of_the_user(definition.__module__)


def is_of_the_user(module: str) -> bool:
    """Return whether a module belongs neither to attnaudit, nor to Python, nor to an installed package."""
    known = sys.modules.get(module)
    place = getattr(known, "__file__", None)
    if place is None and isinstance(known, types.ModuleType):  # a folder without __init__.py
        place = next(iter(vars(known).get("__path__", ())), None)
    return place is not None and module.partition(".")[0] != "attnaudit" and not LIBRARIES & set(Path(place).parts)


def _without_location(text: str, module: str) -> str:
    """Return a path relative to the folder of a module, if it leads into this folder or to a parent of it.

    Such a path comes from `__file__`. Any other text is returned as it is.
    """
    if text[:1] not in ("/", "\\") and text[1:2] != ":":  # nearly every text: this saves time
        return text
    file = getattr(sys.modules.get(module), "__file__", None)
    path = Path(os.path.normpath(text))
    if not file or not path.is_absolute() or path == path.parent:
        return text
    folder = Path(file).resolve().parent
    if path.is_relative_to(folder) or folder.is_relative_to(path):
        return f"<folder of the module>/{Path(os.path.relpath(path, folder)).as_posix()}"
    return text


def _as_constant(value: Any) -> str:
    """Return the value of an object whose class inherits from a simple constant, such as str; "" for other objects."""
    return next((kind.__repr__(value) for kind in _CONSTANTS if isinstance(value, kind)), "")  # type: ignore[call-arg]


def _own_attributes(value: Any) -> dict[str, Any]:
    """Return the attributes that are stored in an object, including those in slots.

    Of a module of torch, only submodules, functions and simple constants are returned. Parameters belong to the hash of
    the model, and many modules keep tensors of their last pass.
    """
    stored = dict(getattr(value, "__dict__", {}))
    for kind in type(value).__mro__:  # what a cached property has computed is missing until it is used
        for name, one in vars(kind).items():
            if isinstance(one, functools.cached_property):
                stored.pop(name, None)
    for kind in type(value).__mro__:
        for name, slot in vars(kind).items():
            if isinstance(slot, types.MemberDescriptorType) and slot.__objclass__ is kind:
                with contextlib.suppress(AttributeError):  # the slot has no value yet
                    stored[name] = slot.__get__(value)
    names = [f"{kind.__module__}.{kind.__qualname__}" for kind in type(value).__mro__]
    if "torch.nn.modules.module.Module" in names:
        of_torch = vars(type(value).__mro__[names.index("torch.nn.modules.module.Module")]())
        return {
            name: one
            for name, one in stored.items()
            if name == "_modules" or (name not in of_torch and (type(one) in _CONSTANTS or callable(one)))
        }
    return stored


def _name(value: Any) -> str:
    """Return a name for a function, a class or another callable object of a library.

    Of the module, only the package is part of it, because libraries move their code to other modules.
    """
    name = getattr(value, "__qualname__", None) or getattr(value, "__name__", None)
    if not isinstance(name, str):
        return type(value).__qualname__
    return f"{str(getattr(value, '__module__', '')).partition('.')[0].lstrip('_')}:{name}"


def _array(value: Any) -> str:
    """Return a text for an array or a number of NumPy without Python objects, or for a tensor."""
    if isinstance(value, (np.ndarray, np.generic)):
        entries = np.ascontiguousarray(value).reshape(-1)
        return f"{entries.dtype} {np.shape(value)} {hashlib.sha256(entries.view(np.uint8).data).hexdigest()}"
    try:
        import torch

        entries = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
        return f"{value.dtype} {tuple(value.shape)} {hashlib.sha256(entries.data).hexdigest()}"
    except (RuntimeError, TypeError, ValueError):  # such as a sparse tensor, or one without values
        return type(value).__qualname__
