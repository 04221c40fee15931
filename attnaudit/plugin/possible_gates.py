"""Find out, without running it, whether a test file that was not collected may declare gates."""

from __future__ import annotations

import ast
import os
import re
import sys
from collections.abc import Collection, Iterator
from pathlib import Path

import pytest

from attnaudit.errors import LIBRARIES

#: Matches a file that may contain @audit functions: the word "audit", also as a part of a longer word. The name of
#: this package alone does not count, because a file can import it for something else.
AUDIT = re.compile(rb"(?<!attn)audit")
PACKAGE = b"attnaudit"


class PossibleGates:
    """Says which test files of a project may contain gates. Each file is read and parsed once."""

    def __init__(self, *roots: Path) -> None:
        """`roots` are the folders of the project."""
        self._roots = roots
        self._imported: dict[Path, list[Path]] = {}
        self._makes_gates: dict[Path, bool] = {}

    def may_be_in(self, path: Path) -> bool:
        """Return whether a test file may contain gates: it mentions an audit, or imports a module that makes gates.

        A module can make @audit functions for the files that import it. Of modules, only those count that mention both
        an audit and this package. They are looked for in the project and, if the test file or a module of the project
        imports them directly, in the other folders in sys.path. A file that cannot be read may contain anything.
        """
        try:
            text = path.read_bytes()
        except OSError:
            return True
        if AUDIT.search(text):
            return True
        waiting, seen = [path], {path}
        while waiting:
            for module in self._imports_of(waiting.pop()):
                if module in seen:
                    continue
                seen.add(module)
                if self._may_make_gates(module):
                    return True
                if is_of_project(module, self._roots):
                    waiting.append(module)
        return False

    def _imports_of(self, path: Path) -> list[Path]:
        if path not in self._imported:
            self._imported[path] = list(_imported_files(path, self._roots))
        return self._imported[path]

    def _may_make_gates(self, module: Path) -> bool:
        if module not in self._makes_gates:
            try:
                text = module.read_bytes()
                self._makes_gates[module] = PACKAGE in text and AUDIT.search(text) is not None
            except OSError:
                self._makes_gates[module] = True
        return self._makes_gates[module]


def declares_gates(path: Path) -> bool:
    """Return whether a Python file decorates a function or a method with `attnaudit.audit`, at the level of its module.

    If its name were that of a test file, pytest would collect these functions. A function that is made in another
    function does not count, because the file may be a module that makes gates for the test files that import it.
    """
    try:
        text = path.read_bytes()
        tree = ast.parse(text) if PACKAGE in text and AUDIT.search(text) else ast.Module([], [])
    except (OSError, SyntaxError, ValueError):
        return False  # pytest could not collect it either
    names, waiting = {"audit"}, list[ast.AST](tree.body)
    while waiting:
        node = waiting.pop(0)
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "attnaudit":
            names.update(alias.asname or alias.name for alias in node.names if alias.name == "audit")
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            called = [decorator.func for decorator in node.decorator_list if isinstance(decorator, ast.Call)]
            if any(ast.unparse(one).rpartition(".")[2] in names for one in called):
                return True
        else:
            waiting += ast.iter_child_nodes(node)
    return False


def project_folders(config: pytest.Config, test_files: Collection[Path]) -> tuple[Path, ...]:
    """Return the folders whose modules belong to the project: pytest's rootdir, the working folder, those of the tests.

    With -c, the rootdir may be a folder that contains only the configuration file. A folder of tests may be a symbolic
    link to a folder elsewhere.
    """
    roots = (config.rootpath, config.invocation_params.dir)
    folders = {folder for path in test_files for folder in path.parents if any(map(folder.is_relative_to, roots))}
    folders.update(roots, (path.parent for path in test_files))
    return tuple({folder.resolve() for folder in folders})


def is_of_project(path: Path, roots: Collection[Path]) -> bool:
    """Return whether a file belongs to the project with these folders, and not to a package installed in one."""
    return any(map(path.is_relative_to, roots)) and not LIBRARIES & set(path.parts)


def _imported_files(path: Path, roots: Collection[Path]) -> Iterator[Path]:
    """Yield the files of the modules that a Python file imports, except those of Python and of this package."""
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):
        return  # pytest cannot collect it either
    above = [folder for folder in path.parents if any(map(folder.is_relative_to, roots))]
    searched = dict.fromkeys([*above, *(Path(entry) for entry in sys.path if entry)])
    ignored = {"", "attnaudit", *sys.stdlib_module_names}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names, folders = [alias.name for alias in node.names], list(searched)
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            names = [module, *(f"{module}.{alias.name}".lstrip(".") for alias in node.names)]
            folders = [path.parents[node.level - 1]] if 0 < node.level <= len(path.parents) else list(searched)
        else:
            continue
        for name in names:
            if name.partition(".")[0] not in ignored:
                yield from _files_of(name, folders)


def _files_of(name: str, folders: list[Path]) -> Iterator[Path]:
    """Yield the files of a module and of the packages that contain it, from the first folder that has any."""
    parts = name.split(".")
    for folder in folders:
        found = [
            file
            for count in range(1, len(parts) + 1)
            for stem in (folder.joinpath(*parts[:count]),)
            for file in (stem.with_suffix(".py"), stem / "__init__.py")
            if os.path.isfile(file)  # noqa: PTH113 - a folder that cannot be read has no module; Path.is_file raises
        ]
        if found:
            yield from found
            return
