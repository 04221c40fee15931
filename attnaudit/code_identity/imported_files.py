"""Find the files of the modules that a piece of code imports, without importing them."""

from __future__ import annotations

import ast
import dis
import sys
import types
from collections.abc import Iterator, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from pathlib import Path

from attnaudit.errors import LIBRARIES


def file_of_the_user(name: str) -> Path | None:
    """Return the file of a module of the user, also if it was not imported yet; None for any other module."""
    if name.partition(".")[0] in {"attnaudit", *sys.stdlib_module_names}:
        return None
    file = getattr(sys.modules.get(name), "__file__", None)
    parts = name.split(".")
    found = _top_level(parts[0]) if file is None else None
    for length in range(2, len(parts) + 1):
        if found is not None:
            found = PathFinder.find_spec(".".join(parts[:length]), found.submodule_search_locations or [])
    if file is None and found is not None:
        file = found.origin
    path = Path(file or "")
    return path if path.suffix == ".py" and not LIBRARIES & set(path.parts) else None


def _top_level(name: str) -> ModuleSpec | None:
    """Return where a module or package is, without importing it. It may be installed as editable."""
    try:
        return find_spec(name)
    except ValueError:  # it is being imported, or was made without a file
        return None


def imports_of(code: types.CodeType, package: str) -> Iterator[str]:
    """Yield the names of the modules that a code object and its nested code objects import when they run."""
    instructions = [one for one in dis.get_instructions(code) if one.opname != "EXTENDED_ARG"]
    for level, names, instruction in zip(instructions, instructions[1:], instructions[2:], strict=False):
        if instruction.opname == "IMPORT_NAME":
            yield from _modules(instruction.argval, names.argval or (), level.argval, package)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from imports_of(constant, package)


def imports_in(node: ast.AST, package: str) -> Iterator[str]:
    """Yield the names of the modules that a node of a syntax tree imports."""
    if isinstance(node, ast.Import):
        for alias in node.names:
            yield from _modules(alias.name, (), 0, package)
    elif isinstance(node, ast.ImportFrom):
        yield from _modules(node.module or "", [alias.name for alias in node.names], node.level, package)


def _modules(name: str, members: Sequence[str], level: int, package: str) -> Iterator[str]:
    """Yield the names of the modules that an import statement may give access to.

    Args:
        name: The name after `import` or `from`, without leading dots.
        members: The names after `from ... import`.
        level: The number of leading dots.
        package: The package that contains the statement.
    """
    if level:
        parents = package.split(".")
        name = ".".join(filter(None, [*parents[: len(parents) - level + 1], name]))
    parts = name.split(".")
    first = len(parts) if members else 1  # `import a.b` gives access to `a`, but `from a.b import c` does not
    yield from (".".join(parts[:length]) for length in range(first, len(parts) + 1))
    yield from (f"{name}.{member}" for member in members)
