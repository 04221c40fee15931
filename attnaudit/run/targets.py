"""Which models and data sets a run is about: names checked, and made unique, before anything is loaded."""

from __future__ import annotations

import importlib.util
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from attnaudit.errors import AuditError, DataError, ModelError, nearest, require_reachable
from attnaudit.registry import datasets, models

FACTORY = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
DATA_SUFFIXES = (".jsonl", ".csv", ".parquet")


@dataclass(frozen=True, slots=True)
class Named:
    """id: short and unique within the run, shown everywhere. target: what is loaded. given: as the user wrote it."""

    id: str
    target: str
    given: str


def resolve_models(given: Sequence[str], *, base: Path) -> tuple[Named, ...]:
    """Each of `given` as a checkpoint folder, a registered name or package.module:factory, relative to `base`.

    Raises ModelError with near names. Imports no torch: a registered model is not loaded."""
    found: list[tuple[str, Path | None]] = []
    for name in dict.fromkeys(given):
        folder = base / name
        require_reachable("--model", folder)
        if name in models:
            found.append((name, None))
        elif folder.is_dir():
            found.append((name, folder.resolve()))
        elif FACTORY.fullmatch(name):
            _require_module(name, base)
            found.append((name, None))
        elif folder.is_file():
            raise ModelError(
                f"--model {name}: is a file; expected a checkpoint folder (such as `attnaudit train` writes), a "
                f"registered name or package.module:factory. Give the folder: --model {Path(name).parent}"
            )
        else:
            known = [*models.names(), *_siblings(name, base)]
            raise ModelError(
                f"--model {name}: unknown model. {nearest(name, known)} Expected a checkpoint folder, a registered "
                "name or package.module:factory; `attnaudit list` shows the registered ones."
            )
    return _unique(found)


def resolve_datasets(given: Sequence[str], *, base: Path) -> tuple[Named, ...]:
    """Each of `given` as a registered data set or a .jsonl, .csv or .parquet file, relative to `base`.

    Raises DataError with near names. Nothing is read."""
    found: list[tuple[str, Path | None]] = []
    for name in dict.fromkeys(given):
        path = base / name
        require_reachable("--data", path)
        if name in datasets:
            found.append((name, None))
        elif path.is_file():
            if path.suffix.lower() not in DATA_SUFFIXES:
                raise DataError(
                    f"--data {name}: cannot tell the format from '{path.suffix}'; expected one of "
                    f"{', '.join(DATA_SUFFIXES)} with the columns text, label and, if the model reads two texts, query."
                )
            found.append((name, path.resolve()))
        elif path.is_dir():
            raise DataError(f"--data {name}: is a folder; expected one file: {', '.join(DATA_SUFFIXES)}.")
        else:
            known = [*datasets.names(), *_siblings(name, base)]
            raise DataError(
                f"--data {name}: no such file, and no data set is registered by that name. {nearest(name, known)} "
                "`attnaudit list` shows the registered ones."
            )
    return _unique(found)


def _require_module(name: str, base: Path) -> None:
    top = name.partition(":")[0].partition(".")[0]
    if not ((base / top).is_dir() or (base / f"{top}.py").is_file() or importlib.util.find_spec(top)):
        raise ModelError(
            f"--model {name}: there is no module '{top}' to import. Install it, run pytest in the folder that "
            "holds it, or set `pythonpath` in pytest.ini."
        )


def _siblings(name: str, base: Path) -> list[str]:
    """What lies beside a path that does not exist, written as the user would write it."""
    parent = Path(name).parent
    folder = base / parent
    if not folder.is_dir():
        return []
    wanted = [p for p in folder.iterdir() if not p.name.startswith((".", "_"))]
    return [str(parent / p.name) for p in wanted if p.is_dir() or p.suffix.lower() in DATA_SUFFIXES]


def _unique(found: Sequence[tuple[str, Path | None]]) -> tuple[Named, ...]:
    """The last part of a path is its id; paths that share it take as many parents as tell them apart, and files that
    differ in nothing but their suffix keep it. Raises AuditError for two that would have one id all the same."""
    distinct: dict[Path | str, tuple[str, Path | None]] = {}
    for given, path in found:
        distinct.setdefault(path or given, (given, path))
    short = {path: _words(path) for _, path in distinct.values() if path}
    alike = {words for words, count in Counter(short.values()).items() if count > 1}
    words_of = {path: path.parts[1:] if words in alike else words for path, words in short.items()}
    result: list[Named] = []
    for given, path in distinct.values():
        if path is None:
            result.append(Named(given.replace(":", "."), given, given))
            continue
        others = [words_of[p] if p else (g,) for g, p in distinct.values() if p != path]
        words = words_of[path]
        take = 1
        while take < len(words) and any(words[-take:] == other[-take:] for other in others):
            take += 1
        result.append(Named("/".join(words[-take:]), str(path), given))
    for one in result:
        if not _readable(one.id):
            raise AuditError(f"{one.given!r}: its name is not UTF-8, which reports are written in. Rename it.")
    for id_, count in Counter(one.id for one in result).items():
        if count > 1:
            both = " and ".join(one.given for one in result if one.id == id_)
            raise AuditError(f"{both}: both would be called '{id_}' in this run. Audit them in runs of their own.")
    return tuple(result)


def _readable(text: str) -> bool:
    """Whether it holds no bytes that are not UTF-8, which file names may have."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _words(path: Path) -> tuple[str, ...]:
    name = path.stem if path.suffix.lower() in DATA_SUFFIXES and not path.is_dir() else path.name
    return (*path.parts[1:-1], name)
