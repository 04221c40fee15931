"""Find files with gates that were not collected, so that their gates are unknown, and paths that contain no tests."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

from attnaudit.formatting import terminal_safe
from attnaudit.plugin.displayed_paths import displayed_path
from attnaudit.plugin.possible_gates import PossibleGates, declares_gates, is_of_project, project_folders
from attnaudit.plugin.state import RunState
from attnaudit.plugin.workers import is_controller

#: The patterns of test files, and of folders without tests, that are the defaults of pytest.
TEST_FILES = ("test_*.py", "*_test.py")
NO_TESTS = ("*.egg", ".*", "_darcs", "build", "CVS", "dist", "node_modules", "venv", "{arch}")

NOT_COLLECTED = "not collected, for example because of --ignore or a conftest.py"
NOT_GIVEN = "not on the command line"
NOT_A_TEST_FILE = "not collected, because its name is not that of a test file, such as test_attention.py"


def files_left_out(state: RunState, config: pytest.Config) -> dict[str, str]:
    """Return the test files whose gates are unknown, because they may contain @audit functions but were not collected.

    These are test files in a folder on the command line of pytest, or next to a file on the command line. It makes no
    difference how a file was left out: by an option such as --ignore or --last-failed, by a conftest.py, by a plugin,
    or because it skips itself while pytest imports it. A file whose name is not that of a test file counts, too, if it
    declares gates and was not imported. With --policy, all gates are known, and no file is returned.

    Args:
        state: The run, after the collection.
        config: pytest's configuration.

    Returns:
        The file, relative to the working folder -> why it was not collected.
    """
    if state.options.policy is not None or is_controller(config):  # the workers collect, not their controller
        return {}
    collected = {path.resolve(): why for path, why in state.collected_files.items()}
    candidates = list(_python_files(config))
    roots = project_folders(config, [path for path, _ in candidates if is_test_file(path, config)])
    gates = PossibleGates(*roots)
    found, misnamed = {}, []
    for path, reason in candidates:
        why = collected.get(path.resolve(), reason)
        if not is_test_file(path, config):
            misnamed += [path] if why == reason and declares_gates(path) else []
        elif why and gates.may_be_in(path.resolve()):
            found[displayed_path(path, config)] = why
    imported = _imported_files() if misnamed else set()
    for path in misnamed:
        if path.resolve() not in imported and is_of_project(path.resolve(), roots):
            found[displayed_path(path, config)] = NOT_A_TEST_FILE
    return found


def _imported_files() -> set[Path]:
    """Return the files of all imported modules. The gates that they declare are known."""
    files = [vars(one).get("__file__") for one in list(sys.modules.values()) if isinstance(one, ModuleType)]
    return {Path(file).resolve() for file in files if isinstance(file, str)}


def paths_without_tests(state: RunState, config: pytest.Config) -> dict[str, str]:
    """Return a message for each path on the command line that contains no test.

    After `--model`, the shell replaces a pattern such as `models/*` with several paths. The option takes the first of
    them, and pytest looks for tests in the others.

    Args:
        state: The run, after the collection.
        config: pytest's configuration.

    Returns:
        The argument -> the message.
    """
    if config.args_source is not pytest.Config.ArgsSource.ARGS or is_controller(config):
        return {}
    found = {}
    for argument in config.args:
        given = path_of_argument(argument, config).resolve()
        has_tests = any(given in (test.resolve(), *test.resolve().parents) for test in state.collected_tests)
        if given.is_dir() and not has_tests and not any(is_test_file(file, config) for file in given.rglob("*.py")):
            found[f"argument {argument}"] = (
                f"{terminal_safe(argument)}: pytest looks for tests in this folder, but it contains none. If it is "
                "another model or another data set, repeat the option, as in --model first --model second."
            )
    return found


def is_test_file(path: Path, config: pytest.Config) -> bool:
    """Return whether the name of a file is that of a test file, by default or by `python_files`."""
    return any(path.match(pattern) for pattern in (*TEST_FILES, *config.getini("python_files")))


def _python_files(config: pytest.Config) -> Iterator[tuple[Path, str]]:
    """Yield the Python files of all arguments of pytest, each with the reason to report if it was not collected.

    These are the files in a folder that is an argument, and the files next to a file that is an argument.
    """
    for argument in config.args:
        given = path_of_argument(argument, config)
        files: Iterable[Path] = ()
        if given.is_dir():
            files = _files_below(given, config)
        elif given.suffix == ".py":
            files = given.parent.glob("*.py")
        for path in sorted(files):
            yield path, NOT_COLLECTED if given in (path, *path.parents) else NOT_GIVEN


def path_of_argument(argument: str, config: pytest.Config) -> Path:
    """Return the file or folder of an argument, which may be a test id or, with --pyargs, the name of a module."""
    name = argument.partition("[")[0].partition("::")[0]
    path = config.invocation_params.dir / name
    if config.option.pyargs and not path.exists():
        module = importlib.util.find_spec(name)
        if module is not None and module.submodule_search_locations:
            return Path(module.submodule_search_locations[0])
        if module is not None and module.origin is not None:
            return Path(module.origin)
    return path


def _files_below(folder: Path, config: pytest.Config) -> Iterator[Path]:
    """Yield all Python files in a folder and its subfolders.

    Subfolders that pytest leaves out by default are left out. All others count, even if `norecursedirs` names them.
    """
    skipped = set(NO_TESTS) & set(config.getini("norecursedirs"))
    seen: set[tuple[int, int]] = set()  # links can lead back to a folder above
    for root, folders, files in os.walk(folder, followlinks=True):
        place = Path(root)
        status = place.stat()
        if (status.st_dev, status.st_ino) in seen:
            folders.clear()
            continue
        seen.add((status.st_dev, status.st_ino))
        folders[:] = [name for name in folders if not _has_no_tests(place / name, skipped, config)]
        yield from (place / name for name in files if name.endswith(".py"))


def _has_no_tests(folder: Path, skipped: set[str], config: pytest.Config) -> bool:
    """Return whether pytest leaves a folder out by default, because it contains caches, packages or build results."""
    if folder.name == "__pycache__" or any(folder.match(pattern) for pattern in skipped):
        return True
    environment = (folder / "pyvenv.cfg").is_file() or (folder / "conda-meta" / "history").is_file()
    return environment and not config.option.collect_in_virtualenv
