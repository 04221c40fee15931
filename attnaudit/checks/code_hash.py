"""The hash of the code that computes a check.

The hash is recorded for custom checks and for checks of other packages. The built-in checks need no hash, because the
run records the version of attnaudit.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import sys
import textwrap
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from attnaudit.errors import LIBRARIES

#: The types of simple constants. Their values are hashed with the code that uses them.
_CONSTANTS = (str, bytes, int, float, complex, bool, type(None))


def hash_of_code(*definitions: Callable[..., Any]) -> str:
    """Return the SHA-256 hash, in hexadecimal, of functions and classes.

    The hash covers the statements, the default arguments, and the variables of enclosing functions that the code uses.
    It also covers the functions, classes and constants that the code names, except those of Python and of installed
    packages. Comments, docstrings, decorators, white space and the location of the file do not affect the hash. For
    code without a source file, such as code run by `exec`, the bytecode is hashed, which depends on the version of
    Python.

    Args:
        *definitions: The functions and classes, in an order that is part of the hash.
    """
    seen: dict[int, Any] = {}
    parts = [part for definition in definitions for part in _parts(definition, seen)]
    return hashlib.sha256("\n".join(parts).encode("utf-8", "surrogatepass")).hexdigest()


def _parts(definition: Any, seen: dict[int, Any]) -> Iterator[str]:
    """Yield texts that together determine what a function or a class computes.

    A definition that is already in `seen` yields nothing.
    """
    if id(definition) in seen:
        return
    seen[id(definition)] = definition
    source = _normal_source(definition)
    if isinstance(definition, type):
        functions = [function for value in vars(definition).values() for function in _functions_of(value)]
        yield (
            source
            if source is not None
            else _constant({name: value for name, value in vars(definition).items() if not name.startswith("__")})
        )
        for function in functions:
            yield from _context(function, seen)
            if source is None:
                yield _bytecode(function.__code__)
        return
    yield source if source is not None else _bytecode(definition.__code__)
    yield from _context(definition, seen)


def _functions_of(value: Any) -> list[types.FunctionType]:
    """Return the functions of a class attribute that is a method, a static method, a class method or a property."""
    candidates = (value, getattr(value, "__func__", None), getattr(value, "fget", None))
    return [candidate for candidate in candidates if isinstance(candidate, types.FunctionType)]


def _context(function: types.FunctionType, seen: dict[int, Any]) -> Iterator[str]:
    """Yield texts for the default arguments of a function, and for names that it uses but does not define."""
    yield f"defaults {_constant((function.__defaults__, sorted((function.__kwdefaults__ or {}).items())))}"
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            value = cell.cell_contents
        except ValueError:  # the variable has no value yet
            continue
        yield from _outside(name, value, function.__module__, seen)
    names = sorted(set(_names(function.__code__)))
    for name in names:
        if name not in function.__globals__:
            continue
        value = function.__globals__[name]
        yield from _outside(name, value, function.__module__, seen)
        if isinstance(value, types.ModuleType) and is_of_the_user(value.__name__):
            for attribute in names:
                if attribute in vars(value):
                    yield from _outside(f"{name}.{attribute}", vars(value)[attribute], value.__name__, seen)


def _outside(name: str, value: Any, module: str, seen: dict[int, Any]) -> Iterator[str]:
    """Yield texts for a name that a function uses but does not define: another function, a class or a constant."""
    if callable(value) and not isinstance(value, type):
        value = value if isinstance(value, types.FunctionType) else getattr(value, "__wrapped__", value)
    if isinstance(value, (types.FunctionType, type)):
        if value.__module__ == module or is_of_the_user(value.__module__):
            yield f"{name}:"
            yield from _parts(value, seen)
    elif isinstance(value, (*_CONSTANTS, tuple, list, set, frozenset, dict, np.ndarray)):
        yield f"{name} = {_constant(value)}"


def is_of_the_user(module: str) -> bool:
    """Return whether a module belongs neither to attnaudit, nor to Python, nor to an installed package."""
    file = getattr(sys.modules.get(module), "__file__", None)
    return file is not None and module.partition(".")[0] != "attnaudit" and not LIBRARIES & set(Path(file).parts)


def _constant(value: Any) -> str:
    """Return a text that is the same for a constant in every process. For other objects, return the type's name."""
    if isinstance(value, _CONSTANTS):
        return repr(value)
    if isinstance(value, types.CodeType):
        return _bytecode(value)
    if isinstance(value, np.ndarray):
        return f"{value.dtype} {value.shape} {_constant(value.tolist())}"
    if isinstance(value, (tuple, list)):
        return f"({', '.join(map(_constant, value))})"
    if isinstance(value, (set, frozenset)):
        return f"{{{', '.join(sorted(map(_constant, value)))}}}"
    if isinstance(value, dict):
        return f"{{{', '.join(sorted(f'{_constant(key)}: {_constant(item)}' for key, item in value.items()))}}}"
    return type(value).__qualname__


def _names(code: types.CodeType) -> Iterator[str]:
    """Yield the names of the global variables and attributes that a code object and its nested code objects use."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)


def _normal_source(definition: Any) -> str | None:
    """Return the source without comments, docstrings, decorators and white space; None if there is none."""
    # For a function, inspect would follow functools.wraps and return the source of the wrapped function. For the code
    # object of the function, inspect returns the source of the function itself.
    defined = definition.__code__ if isinstance(definition, types.FunctionType) else definition
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(defined)))
    except (OSError, TypeError, SyntaxError, ValueError):
        return None
    if not tree.body or not isinstance(tree.body[0], (ast.FunctionDef, ast.ClassDef)):
        return None
    tree.body[0].decorator_list = []
    return ast.unparse(_without_docstrings(tree))


#: The fields of a syntax tree that contain statements, or parts of a statement that contain statements.
_BLOCKS = ("body", "orelse", "finalbody", "handlers", "cases")


def statements_of(source: str) -> str:
    """Return the statements of a module as text, without comments, docstrings and white space.

    Two modules with the same statements behave in the same way, unless they use their own docstrings or line numbers.

    Args:
        source: The text of the module.

    Raises:
        SyntaxError: The text is not a Python module.
    """
    return ast.dump(_without_docstrings(ast.parse(source)))


def _without_docstrings(tree: ast.Module) -> ast.Module:
    # Only statements can contain docstrings, so expressions, which are most of the nodes, are left out.
    nodes: list[ast.AST] = [tree]
    while nodes:
        node = nodes.pop()
        for field in _BLOCKS:
            nodes += getattr(node, field, ())
        if (
            isinstance(node, (ast.Module, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
            and ast.get_docstring(node, clean=False) is not None
        ):
            node.body = node.body[1:] or [ast.Pass()]
    return tree


def _bytecode(code: types.CodeType) -> str:
    """Return a text for a code object that does not depend on the path of its file or on line numbers."""
    parts = (code.co_code.hex(), code.co_names, code.co_varnames, code.co_freevars, code.co_argcount, code.co_consts)
    return _constant(parts)
