"""Load a data set by its registered name or by the path of its file."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from attnaudit.data.cell_values import shorten
from attnaudit.data.files import SUFFIX_LIST, SUFFIXES, Table, read
from attnaudit.data.row_parsing import (
    Column,
    InstanceReader,
    check_columns,
    checked_instances,
    ordered_classes,
    require_rows,
    to_instances,
)
from attnaudit.errors import AuditError, DataError, ambiguous, nearest, require_reachable
from attnaudit.instances import Dataset, Instance
from attnaudit.registry import datasets, has_random_order

_COLUMNS = {column.value for column in Column}
EXPECTED_ROWS = "Expected a Dataset, or an iterable of Instance objects or of dicts with the key 'text' or 'file'."


def load(name_or_path: str | Path) -> Dataset:
    """Load a data set.

    Args:
        name_or_path: The name of a registered data set, or the path of a .jsonl, .csv or .parquet file. The registered
            object is a Dataset, or a function without arguments that returns one. The function may also return an
            iterable of Instance objects or of dicts, one dict per row. Files and dicts have a column `text` or `file`
            and, optionally, the columns `label`, `query`, `id` and `source`.

    Raises:
        DataError: The data set is unknown, cannot be loaded, contains invalid rows, or is a stream of unknown length.
            The message names the file, the row and the column, what was expected, and the fix.
    """
    name = str(name_or_path)
    path = Path(name)
    require_reachable("--data", path)
    if name in datasets:
        if path.exists():
            raise DataError(ambiguous("--data", name, "data set", path))
        return _load_registered(name)
    looks_like_path = path.suffix.lower() in SUFFIXES or path.exists() or len(path.parts) > 1
    if isinstance(name_or_path, Path) or looks_like_path:
        return load_file(path)
    raise DataError(
        f"Unknown data set '{name}': neither a registered name nor a file. {nearest(name, datasets.names())} "
        f"Give a registered name or the path of a {SUFFIX_LIST} file."
    )


def load_file(path: Path) -> Dataset:
    """Load a file as a data set. The name of the data set is the name of the file without its suffix.

    Raises:
        DataError: The file cannot be read, or a row is invalid.
    """
    table = read(path)
    instances = to_instances(table.rows, str(path), all_text=table.all_text, folder=path.parent)
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
    description = f"Rows of {path.name}."
    return f"{description} Ignored columns: {', '.join(map(repr, ignored))}." if ignored else description


def failure_of(registered: object, name: str, error: BaseException) -> DataError:
    """Return the error for a registered function that raised an exception."""
    return DataError(
        f"data set '{name}': its function {origin(registered)} failed with {type(error).__name__}: {error}. "
        "The function must take no arguments and return a Dataset, or an iterable of Instance objects or dicts."
    )


def _load_registered(name: str) -> Dataset:
    registered = datasets.get(name)
    if has_random_order(registered):
        raise DataError(
            f"data set '{name}': its rows are a stream of unknown length, but every row is needed here. Use another "
            'data set. If the stream ends, you can also register it without order="random".'
        )
    description = ""
    produced: Any = registered
    if callable(registered):
        description = (inspect.getdoc(registered) or "").partition("\n\n")[0]
        try:
            produced = registered()
            if not isinstance(produced, Dataset) and isinstance(produced, Iterable):
                # Here, because a generator fails only when it is read, and because it may fill the same dict each time.
                produced = [dict(item) if isinstance(item, dict) else item for item in produced]
        except AuditError:
            raise
        except (Exception, SystemExit) as error:
            raise failure_of(registered, name, error) from error
    if isinstance(produced, Dataset):
        _require_types(produced, name)
        instances = checked_instances(produced.instances, name)
        rows = produced.rows if produced.rows >= 0 else len(instances)
        classes = produced.classes or ordered_classes(instances)
        source = str(produced.source)
        return dataclasses.replace(
            produced, name=name, source=source, instances=instances, classes=tuple(map(str, classes)), rows=rows
        )
    instances = _from_items(produced, name, registered)
    return Dataset(
        name=name,
        source=origin(registered),
        description=description,
        instances=instances,
        classes=ordered_classes(instances),
        rows=len(instances),
    )


def _require_types(dataset: Dataset, name: str) -> None:
    """Require that the fields of a registered Dataset have the right types.

    Without this check, an error would appear only when the results are written.

    Raises:
        DataError: A field has the wrong type.
    """
    for field, value, expected_types, expected in (
        ("source", dataset.source, (str, Path), "text or a path"),
        ("description", dataset.description, (str,), "text"),
        ("classes", dataset.classes, (list, tuple), "a tuple of class names"),
        ("instances", dataset.instances, (list, tuple), "a tuple of Instance objects"),
    ):
        if not isinstance(value, expected_types):
            raise DataError(f"data set '{name}': its {field} is {shorten(repr(value))}. Expected {expected}.")
    for item in dataset.instances:
        if not isinstance(item, Instance):
            raise DataError(
                f"data set '{name}': found {shorten(repr(item))} among its instances. Expected Instance objects."
            )
    for label in dataset.classes:
        if not isinstance(label, str):
            raise DataError(f"data set '{name}': its class {label!r} is not text. Expected class names as text.")


def origin(registered: object) -> str:
    """Return where a registered object is defined, such as "conftest.complaints"."""
    module = getattr(registered, "__module__", "?")
    return f"{module}.{getattr(registered, '__qualname__', type(registered).__name__)}"


def _from_items(produced: object, name: str, registered: object) -> tuple[Instance, ...]:
    """Convert the Instance objects or dicts that a registered function returned to validated instances."""
    if not isinstance(produced, list | tuple):
        raise DataError(f"data set '{name}': {origin(registered)} returned {type(produced).__name__}. {EXPECTED_ROWS}")
    instances = [item for item in produced if isinstance(item, Instance)]
    if len(instances) == len(produced):
        return checked_instances(instances, name)
    reader = InstanceReader(name)
    return require_rows([_from_dict(item, number, reader) for number, item in enumerate(produced, start=1)], name)


def instance_of(item: object, number: int, reader: InstanceReader) -> Instance:
    """Convert an Instance or a dict that a registered function yielded to a validated instance.

    Args:
        item: The row.
        number: The number of the row, counted from 1.
        reader: The reader of all rows.

    Raises:
        DataError: The row is invalid. The message gives its number.
    """
    return reader.from_instance(item, number) if isinstance(item, Instance) else _from_dict(item, number, reader)


def _from_dict(item: object, number: int, reader: InstanceReader) -> Instance:
    where = f"{reader.name}:{number}"
    if not isinstance(item, dict) or not all(isinstance(key, str) for key in item):
        raise DataError(f"{where}: found {shorten(repr(item))}. {EXPECTED_ROWS}")
    check_columns(item, where)
    return reader.from_row((number, item))
