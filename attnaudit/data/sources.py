"""From the name of a data set, or the path of a file, to a Dataset."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from attnaudit.data.files import SUFFIXES, Table, read
from attnaudit.data.row_parsing import Column, check_columns, checked_instances, ordered_classes, shorten, to_instances
from attnaudit.errors import AuditError, DataError, nearest, require_reachable
from attnaudit.instances import Dataset, Instance
from attnaudit.registry import datasets

_COLUMNS = {column.value for column in Column}


def load(name_or_path: str | Path) -> Dataset:
    """The data set registered under that name, or the rows of a .jsonl, .csv or .parquet file.

    A file has a column `text` and, as wished, `label`, `query`, `id` and `source`; its name is the file's stem. What is
    registered is a Dataset or a function without arguments that returns a Dataset, or an iterable of Instance or of
    dict rows with those keys. Raises DataError that names file, row and column, what was expected and the mend.
    """
    given = str(name_or_path)
    if given in datasets:
        return _registered(given)
    path = Path(given)
    require_reachable("--data", path)
    looks_like_path = path.suffix.lower() in SUFFIXES or path.exists() or len(path.parts) > 1
    if isinstance(name_or_path, Path) or looks_like_path:
        return load_file(path)
    raise DataError(
        f"Unknown data set '{given}': neither a registered name nor a file. {nearest(given, datasets.names())} "
        f"Give a registered name or the path of a {', '.join(SUFFIXES)} file."
    )


def load_file(path: Path) -> Dataset:
    """The rows of one file. Raises DataError as `load` does."""
    table = read(path)
    instances = to_instances(table.rows, str(path), text_rules=table.text_rules)
    return Dataset(
        name=path.stem,
        source=str(path),
        description=_describe(table, path),
        instances=instances,
        classes=ordered_classes(instances),
        rows=len(instances),
    )


def _describe(table: Table, path: Path) -> str:
    ignored = [column for column in table.columns if column not in _COLUMNS]
    words = f"Rows of {path.name}."
    return f"{words} Ignored columns: {', '.join(repr(one) for one in ignored)}." if ignored else words


def _registered(name: str) -> Dataset:
    thing = datasets.get(name)
    description = ""
    produced: Any = thing
    if callable(thing):
        description = (inspect.getdoc(thing) or "").partition("\n\n")[0]
        try:
            produced = thing()
            if not isinstance(produced, Dataset) and isinstance(produced, Iterable):
                produced = list(produced)  # inside the guard: a generator fails only when it is read
        except AuditError:
            raise
        except Exception as error:
            raise DataError(
                f"data set '{name}': its function {_origin(thing)} failed with {type(error).__name__}: {error}. "
                "It must take no arguments and return a Dataset, or an iterable of Instance or of dict rows."
            ) from error
    if isinstance(produced, Dataset):
        _require_types(produced, name)
        instances = checked_instances(produced.instances, name)
        rows = produced.rows if produced.rows >= 0 else len(instances)
        classes = produced.classes or ordered_classes(instances)
        source = str(produced.source)
        return dataclasses.replace(
            produced, name=name, source=source, instances=instances, classes=tuple(map(str, classes)), rows=rows
        )
    instances = _from_items(produced, name, thing)
    return Dataset(
        name=name,
        source=_origin(thing),
        description=description,
        instances=instances,
        classes=ordered_classes(instances),
        rows=len(instances),
    )


def _require_types(given: Dataset, name: str) -> None:
    """Raises DataError for a field of another type than Dataset says, which would be met only when a run is written."""
    listed = (list, tuple)
    for field, value, right in (
        ("source", given.source, isinstance(given.source, str | Path)),
        ("description", given.description, isinstance(given.description, str)),
        ("classes", given.classes, isinstance(given.classes, listed)),
        ("instances", given.instances, isinstance(given.instances, listed)),
    ):
        if not right:
            raise DataError(f"data set '{name}': its {field} is {shorten(repr(value))}. See attnaudit.instances.")
    for item in given.instances:
        if not isinstance(item, Instance):
            raise DataError(f"data set '{name}': found {shorten(repr(item))} among its instances. Expected Instance.")
    for label in given.classes:
        if not isinstance(label, str):
            raise DataError(f"data set '{name}': its class {label!r} is no text. Expected class names.")


def _origin(thing: object) -> str:
    return f"{getattr(thing, '__module__', '?')}.{getattr(thing, '__qualname__', type(thing).__name__)}"


def _from_items(produced: object, name: str, thing: object) -> tuple[Instance, ...]:
    expected = "Expected a Dataset, or an iterable of Instance or of dict rows with the key 'text'."
    if not isinstance(produced, list | tuple):
        raise DataError(f"data set '{name}': {_origin(thing)} gave {type(produced).__name__}. {expected}")
    instances = [item for item in produced if isinstance(item, Instance)]
    if len(instances) == len(produced):
        return checked_instances(instances, name)
    rows: list[tuple[int, dict[str, object]]] = []
    for number, item in enumerate(produced, start=1):
        if not isinstance(item, dict) or not all(isinstance(key, str) for key in item):
            raise DataError(f"{name}:{number}: found {shorten(repr(item))}. {expected}")
        check_columns(item, f"{name}:{number}")
        rows.append((number, item))
    return to_instances(rows, name)
