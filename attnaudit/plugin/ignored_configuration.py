"""Find keys of the audit in configuration files that pytest ignores because it reads another file."""

from __future__ import annotations

import configparser
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from attnaudit.formatting import one_line
from attnaudit.plugin.displayed_paths import displayed_path


def _in_ini(section: str) -> Callable[[str], Iterable[str]]:
    def keys(text: str) -> Iterable[str]:
        content = configparser.RawConfigParser(strict=False, allow_no_value=True)
        content.read_string(text)
        return content.options(section) if content.has_section(section) else ()

    return keys


def _in_toml(*tables: tuple[str, ...]) -> Callable[[str], Iterable[str]]:
    def keys(text: str) -> Iterable[str]:
        found: list[str] = []
        for path in tables:
            table: Any = tomllib.loads(text)
            for name in path:
                table = table.get(name, {}) if isinstance(table, Mapping) else {}
            found += table if isinstance(table, Mapping) else ()
        return found

    return keys


#: The name of a configuration file of pytest -> a function that returns its keys.
FILES: dict[str, Callable[[str], Iterable[str]]] = {
    "pytest.toml": _in_toml(("pytest",)),
    ".pytest.toml": _in_toml(("pytest",)),
    "pytest.ini": _in_ini("pytest"),
    ".pytest.ini": _in_ini("pytest"),
    "pyproject.toml": _in_toml(("tool", "pytest"), ("tool", "pytest", "ini_options")),
    "tox.ini": _in_ini("pytest"),
    "setup.cfg": _in_ini("tool:pytest"),
}


def ignored_keys(config: pytest.Config, keys: Sequence[str]) -> list[str]:
    """Return a message for each file with keys of the audit that have no effect, because pytest reads another file.

    pytest reads only one file, and only warns of the others. If `audit_policy` were ignored, the audit would use the
    default policy. A key does no harm if the file that pytest reads has it, too. With the option -c, the user has
    chosen the file.

    Args:
        config: pytest's configuration.
        keys: The keys of the audit, such as "audit_model".
    """
    used = config.inipath
    if used is None or config.option.inifilename or used.name not in FILES:
        return []
    known = set(_keys_of(used))
    found = []
    for name in FILES:
        path = used.parent / name
        ignored = sorted(set(_keys_of(path)) & set(keys) - known) if name != used.name else []
        if ignored:
            found.append(
                one_line(
                    f"{displayed_path(path, config)}: pytest ignores {', '.join(ignored)}, because it reads "
                    f"{displayed_path(used, config)} instead. Move the keys to this file."
                )
            )
    return found


def _keys_of(path: Path) -> Iterable[str]:
    """Return the keys of pytest in a configuration file; none if pytest could not read it either."""
    try:
        return FILES[path.name](path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, configparser.Error):
        return ()
