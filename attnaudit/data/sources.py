"""Load a data set by its registered name or by the path of its file."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from attnaudit.data.cell_values import shorten
from attnaudit.data.column_names import Column, check_columns, described_columns
from attnaudit.data.files import SUFFIX_LIST, SUFFIXES, read, require_data_file
from attnaudit.data.hugging_face import is_of_datasets, is_saved_folder, rows_of, saved_dataset
from attnaudit.data.parquet_files import ParquetRows, parquet_parts, require_equal_columns
from attnaudit.data.row_parsing import (
    InstanceReader,
    checked_instances,
    dataset_of,
    ordered_classes,
    require_rows,
    to_instances,
)
from attnaudit.errors import AuditError, DataError, ambiguous, nearest, require_reachable
from attnaudit.instances import Dataset, Instance
from attnaudit.registry import datasets, has_random_order

#: Data of more than this many bytes are not kept in memory.
LARGE_FILE = 8 * 1024**2
#: Approximate number of bytes that a row needs in memory in addition to its texts.
BYTES_PER_ROW = 200
EXPECTED_ROWS = "Expected a Dataset, or an iterable of Instance objects or of dicts with the key 'text' or 'file'."


def load(name_or_path: str | Path, *, in_memory: bool = True) -> Dataset:
    """Load a data set.

    Args:
        name_or_path: The name of a registered data set, or the path of a .jsonl, .csv or .parquet file, of a folder of
            .parquet files, or of a folder that `datasets.Dataset.save_to_disk` wrote. The registered object is a
            Dataset, or a function without arguments that returns one. The function may also return a data set of the
            package `datasets`, or an iterable of Instance objects or of dicts, one dict per row. Files and dicts have a
            column `text` or `file` and, optionally, the columns `label`, `query`, `id` and `source`.
        in_memory: Whether to keep all rows in memory. If not, the rows of a large data set are read when they are
            needed. They are then sorted by id. The rows of .csv files are always in memory.

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
        return _load_registered(name, in_memory=in_memory)
    looks_like_path = path.suffix.lower() in SUFFIXES or path.exists() or len(path.parts) > 1
    if isinstance(name_or_path, Path) or looks_like_path:
        return _load_folder(path, in_memory=in_memory) if path.is_dir() else load_file(path, in_memory=in_memory)
    raise DataError(
        f"Unknown data set '{name}': this is neither a registered name nor a file. {nearest(name, datasets.names())} "
        f"Give a registered name or the path of a {SUFFIX_LIST} file."
    )


def load_file(path: Path, *, in_memory: bool = True) -> Dataset:
    """Load a file as a data set. The name of the data set is the name of the file without its suffix.

    Args:
        path: The file.
        in_memory: Whether to keep all rows in memory (see `load`).

    Raises:
        DataError: The file cannot be read, or a row is invalid.
    """
    suffix = require_data_file(path)
    if not in_memory and suffix == ".jsonl" and path.stat().st_size > LARGE_FILE:
        from attnaudit.data.lazy_rows import load_lazily

        return load_lazily(path)
    if (
        not in_memory
        and suffix == ".parquet"
        and path.stat().st_size > 0
        and (rows := ParquetRows(path)).size > LARGE_FILE
    ):
        return _load_parts([rows], path, in_memory=False)
    table = read(path)
    instances = to_instances(table.rows, str(path), all_text=table.all_text, folder=path.parent)
    return dataset_of(instances, name=path.stem, source=str(path), description=described_columns(table.columns, path))


def _load_folder(folder: Path, *, in_memory: bool) -> Dataset:
    """Load a folder of Parquet files, or a folder that `datasets.Dataset.save_to_disk` wrote."""
    if not is_saved_folder(folder):
        parts = [ParquetRows(path) for path in parquet_parts(folder)]
        require_equal_columns(parts)
        return _load_parts(parts, folder, in_memory=in_memory)
    produced = rows_of(saved_dataset(folder), str(folder))
    instances = _from_items(produced, str(folder), in_memory=in_memory, folder=folder)
    return dataset_of(instances, name=folder.name, source=str(folder), description=f"Rows of {folder.name}.")


def _load_parts(parts: Sequence[ParquetRows], path: Path, *, in_memory: bool) -> Dataset:
    """Load the rows of Parquet files as one data set.

    Args:
        parts: The files.
        path: The path of the file or of the folder.
        in_memory: Whether to keep all rows in memory (see `load`).
    """

    def instances(reader: InstanceReader) -> Iterator[Instance]:
        for part in parts:
            reader.name = str(part.path)
            yield from map(reader.from_row, part)

    folder = parts[0].path.parent
    rows: Sequence[Instance]
    if not in_memory and sum(part.size for part in parts) > LARGE_FILE:
        from attnaudit.data.lazy_rows import LazyInstances
        from attnaudit.data.stored_rows import CopiedRows, RowReader

        converted = instances(RowReader(str(path), folder=folder))
        rows = LazyInstances(CopiedRows(converted, str(path), given_ids=Column.ID in parts[0].used))
    else:
        rows = require_rows(list(instances(InstanceReader(str(path), folder=folder))), str(path))
    return dataset_of(rows, name=path.stem, source=str(path), description=described_columns(parts[0].columns, path))


def failure_of(registered: object, name: str, error: BaseException) -> DataError:
    """Return the error for a registered function that raised an exception."""
    return DataError(
        f"data set '{name}': its function {origin(registered)} failed with {type(error).__name__}: {error}. "
        "The function must take no arguments and return a Dataset, or an iterable of Instance objects or dicts."
    )


def _load_registered(name: str, *, in_memory: bool) -> Dataset:
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
        except AuditError:
            raise
        except (Exception, SystemExit) as error:
            raise failure_of(registered, name, error) from error
    if isinstance(produced, Dataset):
        _require_types(produced, name)
        checked = checked_instances(produced.instances, name)
        rows = produced.rows if produced.rows >= 0 else len(checked)
        classes = produced.classes or ordered_classes(checked)
        source = str(produced.source)
        return dataclasses.replace(
            produced, name=name, source=source, instances=checked, classes=tuple(map(str, classes)), rows=rows
        )
    if is_of_datasets(produced):
        produced = rows_of(produced, f"data set '{name}'")
    if not isinstance(produced, Iterable):
        raise DataError(f"data set '{name}': {origin(registered)} returned {type(produced).__name__}. {EXPECTED_ROWS}")
    instances = _from_items(_produced(produced, name, registered), name, in_memory=in_memory)
    return dataset_of(instances, name=name, source=origin(registered), description=description)


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


def _produced(items: Iterable[object], name: str, registered: object) -> Iterator[object]:
    """Yield the rows of a registered function, and convert an exception of the function to a DataError."""
    try:
        yield from items
    except AuditError:
        raise
    except (Exception, SystemExit) as error:
        raise failure_of(registered, name, error) from error


def _from_items(
    produced: Iterable[object], name: str, *, in_memory: bool, folder: Path | None = None
) -> Sequence[Instance]:
    """Convert Instance objects or dicts to validated instances.

    Args:
        produced: The rows.
        name: The name of the data set, for messages.
        in_memory: Whether to keep all rows in memory (see `load`).
        folder: The folder to which the paths in the column `file` are relative; None for a data set in Python.
    """
    kept: list[object] = []
    size = 0
    items = iter(produced)
    for item in items:
        kept.append(dict(item) if isinstance(item, dict) else item)  # a function may fill the same dict each time
        size += _size(item)
        if not in_memory and size > LARGE_FILE:
            from attnaudit.data.lazy_rows import LazyInstances
            from attnaudit.data.stored_rows import CopiedRows, RowReader

            lazy_reader = RowReader(name, folder=folder)
            are_instances = isinstance(kept[0], Instance)
            rows = (
                _of_one_kind(one, number, lazy_reader, are_instances=are_instances)
                for number, one in enumerate(chain(kept, items), start=1)
            )
            given_ids = are_instances or (isinstance(kept[0], dict) and Column.ID in kept[0])
            return LazyInstances(CopiedRows(rows, name, given_ids=given_ids))
    instances = [item for item in kept if isinstance(item, Instance)]
    if len(instances) == len(kept):
        return checked_instances(instances, name)
    reader = InstanceReader(name, folder=folder)
    return require_rows([_from_dict(item, number, reader) for number, item in enumerate(kept, start=1)], name)


def _of_one_kind(item: object, number: int, reader: InstanceReader, *, are_instances: bool) -> Instance:
    """Return a row as `instance_of` does, and refuse an Instance among dicts or a dict among Instances.

    Raises:
        DataError: The row is of the other kind, or invalid.
    """
    if isinstance(item, Instance) != are_instances:
        raise DataError(f"{reader.name}:{number}: found {shorten(repr(item))}. {EXPECTED_ROWS}")
    return instance_of(item, number, reader)


def _size(item: object) -> int:
    """Return roughly how many bytes of text a row contains."""
    texts: list[object] = []
    if isinstance(item, dict):
        texts = list(item.values())
    elif isinstance(item, Instance):
        texts = [item.text, item.query, item.answer, *item.passages]
    return BYTES_PER_ROW + sum(len(text) for text in texts if isinstance(text, str | list | tuple))


def instance_of(item: object, number: int, reader: InstanceReader) -> Instance:
    """Validate an Instance or a dict that a registered function yielded, and return it as an instance.

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
