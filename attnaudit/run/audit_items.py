"""Resolve the values of --model and --data to the models and data sets of a run, before anything is loaded."""

from __future__ import annotations

import importlib.util
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from attnaudit.errors import (
    AuditError,
    DataError,
    ModelError,
    ambiguous,
    nearest,
    require_reachable,
    require_regular_file,
    require_text,
)
from attnaudit.registry import datasets, models
from attnaudit.targets import labels_in, split_label

FACTORY = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
#: Each checkpoint folder has one of these files.
CHECKPOINT_FILES = ("attnaudit.json", "config.json", "adapter_config.json")
DATA_SUFFIXES = (".jsonl", ".csv", ".parquet")


@dataclass(frozen=True, slots=True)
class AuditItem:
    """A model or data set that a run audits.

    Attributes:
        id: A short name, unique within the run, that test ids, tables and reports show.
        source: The name that is passed to the loader: an absolute path, a registered name or package.module:factory.
        given: The value as the user wrote it.
    """

    id: str
    source: str
    given: str


def resolve_models(given: Sequence[str], *, base: Path) -> tuple[AuditItem, ...]:
    """Resolve each value of --model. No model is loaded, so torch is not imported.

    Args:
        given: Checkpoint folders, registered names and factories such as package.module:factory. FOLDER[LABEL] names
            one label of a model that assigns any number of labels to a text.
        base: The folder that relative paths start from.

    Returns:
        One item per distinct model, in the order given. A folder whose attnaudit.toml names several labels gives one
        item for each of them. A folder that is given both with and without a label gives one item for each.

    Raises:
        ModelError: A value is neither a checkpoint folder, nor a registered name, nor a factory. The message names
            similar known values.
        AuditError: Two models would have the same id, or an id is not valid UTF-8.
    """
    resolved: list[tuple[str, Path | None]] = []
    labels: dict[Path, dict[str, None]] = {}
    for value in dict.fromkeys(given):
        require_text("--model", value, ModelError)
        name, label = split_label(value, base)
        folder = base / name
        require_reachable("--model", folder)
        if name in models:
            if folder.is_dir():
                raise ModelError(ambiguous("--model", name, "model", folder))
            resolved.append((name, None))
        elif folder.is_dir():
            path = folder.resolve()
            labels.setdefault(path, {}).update(dict.fromkeys((label,) if label else labels_in(path) or ("",)))
            resolved.append((name, path))
        elif FACTORY.fullmatch(name):
            _require_module(name, base)
            resolved.append((name, None))
        elif folder.is_file():
            raise ModelError(
                f"--model {name}: this is a file. Expected a checkpoint folder (`attnaudit train` writes one), a "
                f"registered name or package.module:factory. {_instead_of(Path(name), folder.parent)}"
            )
        else:
            known = [*models.names(), *_siblings(name, base, holds=_holds_model)]
            raise ModelError(
                f"--model {name}: there is no such model. {nearest(name, known)} Expected a checkpoint folder, a "
                "registered name or package.module:factory. `attnaudit list` shows the registered names."
            )
    items = tuple(one for item in _with_unique_ids(resolved) for one in _by_label(item, labels))
    _require_unique_ids(items)
    return items


def _by_label(item: AuditItem, labels: Mapping[Path, Iterable[str]]) -> list[AuditItem]:
    """Return one item for each label of a checkpoint folder. For the label "", this is the item itself.

    Args:
        item: A checkpoint folder, a registered name or a factory.
        labels: Checkpoint folder -> its labels; "" stands for the target that the folder declares.
    """
    return [
        AuditItem(f"{item.id}[{label}]", f"{item.source}[{label}]", item.given) if label else item
        for label in labels.get(Path(item.source), ("",))
    ]


def resolve_datasets(given: Sequence[str], *, base: Path) -> tuple[AuditItem, ...]:
    """Resolve each value of --data. No file is read.

    Args:
        given: Registered names, paths of .jsonl, .csv or .parquet files, and paths of folders with such data.
        base: The folder that relative paths start from.

    Returns:
        One item per distinct data set, in the order given.

    Raises:
        DataError: A value is neither a registered name nor the path of such a file. The message names similar known
            values.
        AuditError: Two data sets would have the same id, or an id is not valid UTF-8.
    """
    resolved: list[tuple[str, Path | None]] = []
    for name in dict.fromkeys(given):
        require_text("--data", name, DataError)
        path = base / name
        require_reachable("--data", path)
        if name in datasets:
            if path.exists():
                raise DataError(ambiguous("--data", name, "data set", path))
            resolved.append((name, None))
        elif path.is_file():
            if path.suffix.lower() not in DATA_SUFFIXES:
                raise DataError(
                    f"--data {name}: the suffix '{path.suffix}' is not supported. Expected one of "
                    f"{', '.join(DATA_SUFFIXES)} with the columns text and label, and query if the model reads two "
                    "texts."
                )
            resolved.append((name, path.resolve()))
        elif path.is_dir():
            resolved.append((name, path.resolve()))
        elif path.exists():
            require_regular_file(path, "the data", DataError)
        else:
            known = [*datasets.names(), *_siblings(name, base, holds=_holds_data, suffixes=DATA_SUFFIXES)]
            raise DataError(
                f"--data {name}: there is no such file, and no data set is registered under this name. "
                f"{nearest(name, known)} `attnaudit list` shows the registered names."
            )
    items = _with_unique_ids(resolved)
    _require_unique_ids(items)
    return items


def _require_module(name: str, base: Path) -> None:
    """Require that the first package of package.module:factory exists.

    Raises:
        ModelError: The package does not exist.
    """
    top = name.partition(":")[0].partition(".")[0]
    if not ((base / top).is_dir() or (base / f"{top}.py").is_file() or importlib.util.find_spec(top)):
        raise ModelError(
            f"--model {name}: there is no module '{top}' to import. Install it, run pytest in the folder that "
            "contains it, or set `pythonpath` in pytest.ini."
        )


def _instead_of(file: Path, folder: Path) -> str:
    """Return a sentence that says what to give as --model instead of a file in this folder."""
    if any((folder / name).is_file() for name in CHECKPOINT_FILES):
        return f"Give the folder: --model {file.parent}"
    return (
        "A file of weights does not say how a model computes its output. Register an adapter that loads the file, with "
        "@attnaudit.register_model(NAME) in audits/conftest.py, and give --model NAME (docs/tutorial.md, step 3)."
    )


def _holds_model(folder: Path) -> bool:
    """Return whether a folder contains files as checkpoints have them."""
    patterns = (*CHECKPOINT_FILES, "*.safetensors", "*.pt", "*.bin")
    return any(True for pattern in patterns for _ in folder.glob(pattern))


def _holds_data(folder: Path) -> bool:
    """Return whether a folder contains Parquet files, or a saved data set of the package `datasets`."""
    # glob leaves out what may not be read, where iterdir would raise an error.
    return any(True for pattern in ("*.parquet", "state.json") for _ in folder.glob(pattern))


def _siblings(name: str, base: Path, *, holds: Callable[[Path], bool], suffixes: Collection[str] = ()) -> list[str]:
    """List the folders and files next to a path that does not exist, as the user would write them.

    Args:
        name: The path.
        base: The folder that relative paths start from.
        holds: Whether a folder can be what the user meant.
        suffixes: The suffixes of files that can be what the user meant.
    """
    parent = Path(name).parent
    folder = base / parent
    if not folder.is_dir():
        return []
    visible = [p for p in folder.iterdir() if not p.name.startswith((".", "_"))]
    return [str(parent / p.name) for p in visible if (p.is_dir() and holds(p)) or p.suffix.lower() in suffixes]


def _with_unique_ids(resolved: Sequence[tuple[str, Path | None]]) -> tuple[AuditItem, ...]:
    """Give every item a short unique id, and drop repeated items.

    The id of a path is its last part without the suffix. If several paths have the same last part, their ids contain
    as many parent folders as are needed to distinguish them. Files that differ only in their suffix keep it.

    Args:
        resolved: (value as given, resolved path), where the path is None for a registered name or factory.

    Raises:
        AuditError: An id is not valid UTF-8.
    """
    distinct: dict[Path | str, tuple[str, Path | None]] = {}
    for given, path in resolved:
        distinct.setdefault(path or given, (given, path))
    short = {path: _id_parts(path) for _, path in distinct.values() if path}
    ambiguous = {parts for parts, count in Counter(short.values()).items() if count > 1}
    parts_of = {path: path.parts[1:] if parts in ambiguous else parts for path, parts in short.items()}
    items: list[AuditItem] = []
    for given, path in distinct.values():
        if path is None:
            items.append(AuditItem(given.replace(":", "."), given, given))
            continue
        others = [parts_of[p] if p else (g,) for g, p in distinct.values() if p != path]
        parts = parts_of[path]
        count = 1
        while count < len(parts) and any(parts[-count:] == other[-count:] for other in others):
            count += 1
        items.append(AuditItem("/".join(parts[-count:]), str(path), given))
    for item in items:
        if not _is_utf8(item.id):
            raise AuditError(
                f"{item.given!r}: the name of this file is not valid UTF-8, so the reports cannot contain it. Rename "
                "the file."
            )
    return tuple(items)


def _require_unique_ids(items: Sequence[AuditItem]) -> None:
    """Require that all items have different ids.

    Raises:
        AuditError: Two items have the same id.
    """
    for id_, count in Counter(item.id for item in items).items():
        if count > 1:
            both = " and ".join(item.given for item in items if item.id == id_)
            raise AuditError(f"{both}: both would be called '{id_}' in this run. Audit them in separate runs.")


def _is_utf8(name: str) -> bool:
    """Return False for a file name with bytes that are not UTF-8, which Python keeps as surrogates."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _id_parts(path: Path) -> tuple[str, ...]:
    """Split a path into the parts from which an id is built. The suffix of a data file is left out."""
    name = path.stem if path.suffix.lower() in DATA_SUFFIXES and not path.is_dir() else path.name
    return (*path.parts[1:-1], name)


def item_by_id(items: Iterable[AuditItem], name: str) -> AuditItem:
    """Return the item with this id, which must be among the items."""
    return next(item for item in items if item.id == name)
