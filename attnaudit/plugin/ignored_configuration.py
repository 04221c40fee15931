"""Find keys of the audit in configuration files, or in places of them, that pytest does not read."""

from __future__ import annotations

import configparser
import os
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from attnaudit.formatting import one_line
from attnaudit.plugin.displayed_paths import displayed_path
from attnaudit.plugin.files_left_out import path_of_argument

#: The name of a configuration file of pytest -> the sections that pytest reads.
FILES: dict[str, tuple[str, ...]] = {
    "pytest.toml": ("pytest",),
    ".pytest.toml": ("pytest",),
    "pytest.ini": ("pytest",),
    ".pytest.ini": ("pytest",),
    "pyproject.toml": ("tool.pytest.ini_options", "tool.pytest"),
    "tox.ini": ("pytest",),
    "setup.cfg": ("tool:pytest",),
}
#: The end of another name, which can be given with the option -c -> the sections that pytest reads.
OTHER_FILES: dict[str, tuple[str, ...]] = {
    ".toml": ("pytest", "tool.pytest.ini_options", "tool.pytest"),
    ".ini": ("pytest",),
    ".cfg": ("tool:pytest",),
}
#: The files that contain nothing but the configuration of pytest.
ONLY_PYTEST = ("pytest.toml", ".pytest.toml", "pytest.ini", ".pytest.ini")


class _Key(NamedTuple):
    """A key in a configuration file.

    Attributes:
        name: The key.
        section: The section, or the table, that contains it; "" if none does.
        part_of: The key of whose value it is a part, because it is indented.
    """

    name: str
    section: str
    part_of: str = ""


def ignored_keys(config: pytest.Config, keys: Sequence[str], *, everywhere: bool) -> list[str]:
    """Return a message for each place with keys of the audit that have no effect, because pytest does not read it.

    pytest reads only one file, and of this file only one section. Of other files, it warns at most. If `audit_policy`
    were ignored, the audit would use the default policy. A key does no harm if pytest also reads it elsewhere. With
    the option -c, the user has chosen the file, so no other file counts.

    Args:
        config: pytest's configuration.
        keys: The keys of the audit that are not given on the command line, such as "audit_model".
        everywhere: Whether files in other folders count: those of the working folder, of pytest's rootdir, and of the
            test paths, and in the folders above them, up to that of a repository. If not, only the folder of the file
            that pytest reads counts.
    """
    used = config.inipath
    missing = set(keys) - {key.name for key in _keys_of(used) if _is_read(key, used)} if used else set(keys)
    found = _misplaced_keys(used, missing, config) if used else []
    if config.option.inifilename:
        return found
    folders = [used.parent] if used else []
    if everywhere:
        given = [config.invocation_params.dir / path_of_argument(argument, config) for argument in config.args]
        starts = [*folders, config.rootpath, config.invocation_params.dir]
        starts += [path if path.is_dir() else path.parent for path in given]
        folders = list(dict.fromkeys(folder for start in dict.fromkeys(starts) for folder in _up_to_repository(start)))
    seen = {used.resolve()} if used else set()
    for path in (folder / name for folder in folders for name in FILES):
        if os.path.isfile(path) and path.resolve() not in seen:  # noqa: PTH113 - Path.is_file may raise
            seen.add(path.resolve())
            ignored = {key.name for key in _keys_of(path) if _is_read(key, path)} & missing
            if ignored:
                found.append(_message_about_file(path, ignored, config))
            found += _misplaced_keys(path, missing - ignored, config)
    return found


def _message_about_file(path: Path, ignored: Iterable[str], config: pytest.Config) -> str:
    """Return a message about a file that pytest ignores."""
    used, shown = config.inipath, displayed_path(path, config)
    instead = "no configuration file" if used is None else f"{displayed_path(used, config)} instead"
    message = f"{shown}: pytest ignores {', '.join(sorted(ignored))}, because it reads {instead}."
    if used is not None and used.parent == path.parent:
        return one_line(f"{message} Move the keys to this file.")
    message += f" Choose it with -c {shown}" if used is None else f" Move the keys to this file, or add -c {shown}"
    nearer = used is None or not used.is_relative_to(path.parent)
    if nearer and config.invocation_params.dir.is_relative_to(path.parent):
        message += (
            ". pytest looks for its configuration file above all paths on the command line, including the values of "
            "options; it does not look above a value after an equals sign, as in --data=FILE"
        )
    return one_line(f"{message}.")


def _misplaced_keys(path: Path, missing: set[str], config: pytest.Config) -> list[str]:
    """Return a message for each place in a file where pytest reads no keys, but which contains keys of the audit."""
    places: dict[tuple[str, str], list[str]] = {}
    for key in _keys_of(path):
        if key.name in missing and not _is_read(key, path) and _is_meant_for_pytest(key, path):
            places.setdefault((key.section, key.part_of), []).append(key.name)
    shown, right = displayed_path(path, config), _sections_of(path)[0]
    found = []
    for (section, part_of), names in places.items():
        keys = ", ".join(dict.fromkeys(names))
        if part_of:
            problem = f"pytest reads {keys} as a part of the value of {part_of}, because it is indented."
            found.append(one_line(f"{shown}: {problem} Remove the spaces before it."))
        else:
            place = f"in the section [{section}]" if section else "outside a section"
            found.append(one_line(f"{shown}: pytest ignores {keys} {place}. Move it to the section [{right}]."))
    return found


def _is_read(key: _Key, path: Path) -> bool:
    return key.section in _sections_of(path) and not key.part_of


def _is_meant_for_pytest(key: _Key, path: Path) -> bool:
    """Return whether a section that pytest does not read was probably meant for it, and not for another tool."""
    section = key.section.lower()
    return not section or path.name in ONLY_PYTEST or "pytest" in section or "attnaudit" in section


def _sections_of(path: Path) -> tuple[str, ...]:
    return FILES.get(path.name) or OTHER_FILES.get(path.suffix, ("pytest",))


def _up_to_repository(folder: Path) -> Iterator[Path]:
    """Yield a folder and those above it, up to one that contains `.git`."""
    for one in (folder, *folder.parents):
        yield one
        if os.path.exists(one / ".git"):  # noqa: PTH110 - Path.exists may raise
            return


def _keys_of(path: Path) -> list[_Key]:
    """Return the keys in a configuration file; none if pytest could not read it either."""
    try:
        text = path.read_text(encoding="utf-8")
        return list(_keys_in_table(tomllib.loads(text)) if path.suffix == ".toml" else _keys_in_ini(text))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, configparser.Error):
        return []


def _keys_in_ini(text: str) -> Iterator[_Key]:
    # pytest knows no section with default values, and no file can contain a section named "".
    content = configparser.RawConfigParser(strict=False, allow_no_value=True, default_section="")
    content.read_string(text)
    for section in content.sections():
        for name, value in content.items(section):
            yield _Key(name, section)
            if name != "addopts":  # a line of it may be the value of -o, and any other one is an error
                for line in (value or "").splitlines()[1:]:
                    part = re.match(r"\s*(\w+)\s*[=:]", line)
                    if part:
                        yield _Key(part[1], section, part_of=name)


def _keys_in_table(table: Mapping[str, Any], path: str = "") -> Iterator[_Key]:
    for name, value in table.items():
        if isinstance(value, Mapping):
            shown = f'"{name}"' if "." in name else name
            yield from _keys_in_table(value, f"{path}.{shown}" if path else shown)
        else:
            yield _Key(name, path)
