"""Describe the text of code: its statements without comments and docstrings, its bytecode, and the names it uses."""

from __future__ import annotations

import ast
import dis
import functools
import inspect
import textwrap
import types
from collections.abc import Iterator
from typing import Any

from attnaudit.code_identity.defining_file import defining_file

#: How the names of instructions end that read, write or delete a global variable.
_GLOBALS = ("_GLOBAL", "_GLOBALS", "LOAD_NAME", "STORE_NAME", "DELETE_NAME")
#: The fields of a syntax tree that contain statements, or parts of a statement that contain statements.
_BLOCKS = ("body", "orelse", "finalbody", "handlers", "cases")


def _constant(value: Any) -> str:
    """Return a text that is the same for a constant of a code object in every process."""
    if isinstance(value, types.CodeType):
        return bytecode(value)
    if isinstance(value, tuple):
        return f"({', '.join(map(_constant, value))})"
    if isinstance(value, frozenset):
        return f"{{{', '.join(sorted(map(_constant, value)))}}}"
    return repr(value)


def names_in(code: types.CodeType) -> set[str]:
    """Return the names of the global variables and attributes that a code object and its nested code objects use.

    Names such as @pytest_ar are left out. pytest adds them where it rewrites assert statements.
    """
    names = {name for name in code.co_names if name.isidentifier()}
    return names.union(*map(names_in, _nested(code)))


def global_names_in(code: types.CodeType) -> set[str]:
    """Return the names of the global variables that a code object and its nested code objects use.

    As in `names_in`, names that pytest adds are left out.
    """
    used = {one.argval for one in dis.get_instructions(code) if one.opname.endswith(_GLOBALS)}
    return {name for name in used if name.isidentifier()}.union(*map(global_names_in, _nested(code)))


def _nested(code: types.CodeType) -> Iterator[types.CodeType]:
    return (constant for constant in code.co_consts if isinstance(constant, types.CodeType))


def normal_source(definition: Any) -> str | None:
    """Return the source of a function or class without comments, docstrings, decorators and white space.

    It is None if there is no source.
    """
    # For a function, inspect would follow functools.wraps and return the source of the wrapped function. For the code
    # object of the function, inspect returns the source of the function itself.
    if isinstance(definition, types.FunctionType):
        file = defining_file(definition.__code__, definition.__globals__)
        return _source_of_function(definition.__code__.replace(co_filename=file), file)
    return _normalised(definition)


@functools.lru_cache(maxsize=4096)
def _source_of_function(code: types.CodeType, _file: str) -> str | None:
    """Return the source of the function with a code object. Code objects of different files can be equal."""
    return _normalised(code)


def _normalised(defined: Any) -> str | None:
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(defined)))
    except (OSError, TypeError, SyntaxError, ValueError):
        return None
    if not tree.body or not isinstance(tree.body[0], (ast.FunctionDef, ast.ClassDef)):
        return None
    tree.body[0].decorator_list = []
    return ast.unparse(without_docstrings(tree))


def statements_of(source: str) -> str:
    """Return the statements of a module as text, without comments, docstrings and white space.

    Two modules with the same statements behave in the same way, unless they use their own docstrings or line numbers.

    Args:
        source: The text of the module.

    Raises:
        SyntaxError: The text is not a Python module.
    """
    return ast.dump(without_docstrings(ast.parse(source)))


def without_docstrings(tree: ast.Module) -> ast.Module:
    """Remove the docstrings of a module, and of its functions and classes, from its syntax tree."""
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


def bytecode(code: types.CodeType) -> str:
    """Return a text for a code object that does not depend on the path of its file or on line numbers."""
    parts = (code.co_code.hex(), code.co_names, code.co_varnames, code.co_freevars, code.co_argcount, code.co_consts)
    return _constant(parts)
