"""Instances of a large JSON Lines file, in the order of their ids. Each instance is read only when it is needed."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from attnaudit.data.files import not_utf8, parse_line
from attnaudit.data.line_index import LineIndex
from attnaudit.data.row_parsing import Column, InstanceReader, Row, ordered_classes
from attnaudit.errors import DataError
from attnaudit.instances import Dataset, Instance

if TYPE_CHECKING:
    import pyarrow as pa

#: A JSON Lines file of at least this many bytes is not kept in memory.
LARGE_FILE = 64 * 1024**2
#: Number of rows that are read at once.
ROWS_AT_ONCE = 256
#: Number of ids that are collected before they are packed.
IDS_AT_ONCE = 65_536


class _Reader(InstanceReader):
    """Converts rows without remembering their ids. `LazyInstances` makes the ids unique."""

    def _numbered(self, identifier: str) -> str:
        return identifier

    def _require_new(self, identifier: str, where: str) -> None:
        pass


class LazyInstances(Sequence[Instance]):
    """The instances of a JSON Lines file, sorted by id.

    The file is read once to validate every row. Only the position and the id of every row are kept in memory.

    Args:
        path: The file.

    Attributes:
        sorted_by_id: True.
        ids: The ids, in ascending order.
        sha256: The hash of the file.
        classes: The labels that occur.

    Raises:
        DataError: The file cannot be read, or a row is invalid.
    """

    sorted_by_id = True

    def __init__(self, path: Path) -> None:
        self._lines = LineIndex(path)
        self.sha256 = self._lines.sha256
        self._reader = _Reader(str(path), folder=path.parent)
        labels: dict[str, Instance] = {}
        given = False

        def ids() -> Iterator[str]:
            nonlocal given
            for cells, instance in self._parsed(range(len(self._lines))):
                given = Column.ID in cells[1]
                for label in {instance.label, *(instance.labels or ())} - {None}:
                    labels.setdefault(str(label), dataclasses.replace(instance, label=str(label), labels=None))
                yield instance.id

        found = _packed(ids())
        order = _order(found)
        repeated = _repeated(found, order)
        if repeated and given:
            first, second = repeated[0]
            raise DataError(
                f"{path}:{self._lines.number(second)}: column 'id': {found[second].as_py()!r} was given before, in "
                f"{path}:{self._lines.number(first)}. Make the ids unique, or remove the column: ids are then derived "
                "from the content."
            )
        if repeated:
            found = _packed(_numbered(found, {line for _, line in repeated}))
            order = _order(found)
        self._order = order
        self._ids = found.take(order)
        self.ids = _Strings(self._ids)
        self.classes = ordered_classes(labels.values())

    def __len__(self) -> int:
        return len(self._order)

    @overload
    def __getitem__(self, row: int) -> Instance: ...
    @overload
    def __getitem__(self, row: slice) -> list[Instance]: ...
    def __getitem__(self, row: int | slice) -> Instance | list[Instance]:
        if isinstance(row, slice):
            return self._read(range(*row.indices(len(self))))
        if not -len(self) <= row < len(self):
            raise IndexError(f"row {row} of {len(self)}")
        return self._read([row % len(self)])[0]

    def __iter__(self) -> Iterator[Instance]:
        for first in range(0, len(self), ROWS_AT_ONCE):
            yield from self._read(range(first, min(first + ROWS_AT_ONCE, len(self))))

    def _read(self, rows: Sequence[int]) -> list[Instance]:
        """Return the instances at some positions."""
        lines = self._order[list(rows)].tolist()
        read = [instance for _, instance in self._parsed(lines)]
        return [dataclasses.replace(instance, id=self.ids[row]) for row, instance in zip(rows, read, strict=True)]

    def _parsed(self, lines: Iterable[int]) -> Iterator[tuple[Row, Instance]]:
        """Yield the cells and the instances of some lines."""
        for number, offset, content in self._lines.read(lines):
            where = f"{self._lines.path}:{number}"
            try:
                line = content.decode("utf-8")
            except UnicodeDecodeError as error:
                raise not_utf8(error, where, offset) from error
            row = (number, parse_line(line.rstrip("\r\n"), where))
            yield row, self._reader.from_row(row)


class _Strings(Sequence[str]):
    """An Arrow array of strings as a sequence."""

    def __init__(self, array: pa.Array) -> None:
        self._array: Any = array

    def __len__(self) -> int:
        return len(self._array)

    @overload
    def __getitem__(self, row: int) -> str: ...
    @overload
    def __getitem__(self, row: slice) -> list[str]: ...
    def __getitem__(self, row: int | slice) -> str | list[str]:
        if isinstance(row, slice):
            start, stop, step = row.indices(len(self))
            strings: list[str] = self._array[start:stop].to_pylist()
            return strings[::step]
        string: str = self._array[row].as_py()
        return string

    def __iter__(self) -> Iterator[str]:
        for first in range(0, len(self), ROWS_AT_ONCE):
            yield from self._array.slice(first, ROWS_AT_ONCE).to_pylist()


def load_lazily(path: Path) -> Dataset:
    """Load a JSON Lines file as a data set whose instances are read when they are needed.

    Raises:
        DataError: The file cannot be read, or a row is invalid.
    """
    instances = LazyInstances(path)
    return Dataset(
        name=path.stem,
        source=str(path),
        description=f"Rows of {path.name}.",
        instances=instances,
        classes=instances.classes,
        rows=len(instances),
    )


def _packed(ids: Iterable[str]) -> pa.Array:
    """Return ids as one Arrow array."""
    import pyarrow as pa

    chunks, some = [], []
    for one in ids:
        some.append(one)
        if len(some) == IDS_AT_ONCE:
            chunks.append(pa.array(some, type=pa.large_string()))
            some = []
    chunks.append(pa.array(some, type=pa.large_string()))
    return pa.concat_arrays(chunks)


def _order(ids: pa.Array) -> Any:
    """Return the order that sorts ids. UTF-8 sorts as Python's strings do; equal ids keep their order."""
    import pyarrow as pa
    import pyarrow.compute as pc

    table = pa.table({"id": ids, "line": np.arange(len(ids), dtype=np.int64)})
    order = pc.sort_indices(table, sort_keys=[("id", "ascending"), ("line", "ascending")])
    return order.to_numpy().astype(np.int64)


def _repeated(ids: pa.Array, order: Any) -> list[tuple[int, int]]:
    """Return the pairs of lines with the same id: each line with the line before it in the order."""
    import pyarrow.compute as pc

    ordered = ids.take(order)
    same = pc.equal(ordered.slice(1), ordered.slice(0, max(0, len(ordered) - 1))).to_numpy(zero_copy_only=False)
    places = np.flatnonzero(same)
    pairs = zip(order[places].tolist(), order[places + 1].tolist(), strict=True)
    return sorted(pairs, key=lambda pair: pair[1])


def _numbered(ids: pa.Array, repeated: set[int]) -> Iterator[str]:
    """Yield the ids, with the endings "#2", "#3" and so on for repetitions, as `InstanceReader` does."""
    counts: Counter[str] = Counter()
    for line, one in enumerate(_Strings(ids)):
        if line in repeated:
            counts[one] += 1
            yield f"{one}#{counts[one] + 1}"
        else:
            yield one
