"""Columns whose rows have different lengths, in memory or in a file. This module does not import torch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Sized
from pathlib import Path
from typing import Any, TypeAlias, overload

import msgspec
import numpy as np
from numpy.typing import DTypeLike, NDArray

from attnaudit.arrays import Integers
from attnaudit.disk_arrays.chosen_rows import ChosenRows
from attnaudit.disk_arrays.filed_arrays import mapped_file, release
from attnaudit.disk_arrays.mapped_arrays import new_in_file

#: An array of numbers of any type.
Array: TypeAlias = NDArray[Any]
#: Number of rows that are read from a file at once.
ROWS_AT_ONCE = 256
#: Number of rows whose lengths are compared at once.
ENDS_AT_ONCE = 2**16


class RaggedColumn(Sequence[Array]):
    """One array per row. The arrays have the same data type, and differ in their first dimension only.

    Args:
        values: (E, ...) the arrays of all rows, one after the other.
        ends: (n,) the position in `values` at which each row ends.
    """

    def __init__(self, values: Array, ends: Integers) -> None:
        self.ends = ends
        self._values = values
        values.setflags(write=False)

    def __len__(self) -> int:
        return len(self.ends)

    @overload
    def __getitem__(self, row: int) -> Array: ...
    @overload
    def __getitem__(self, row: slice) -> list[Array]: ...
    def __getitem__(self, row: int | slice) -> Array | list[Array]:
        if isinstance(row, slice):
            start, stop, step = row.indices(len(self))
            return self._rows(start, stop) if step == 1 else [self[i] for i in range(start, stop, step)]
        if not -len(self) <= row < len(self):
            raise IndexError(f"row {row} of {len(self)}")
        row %= len(self)
        start = int(self.ends[row - 1]) if row else 0
        return self.between(start, int(self.ends[row]))

    def __iter__(self) -> Iterator[Array]:
        for first in range(0, len(self), ROWS_AT_ONCE):
            yield from self._rows(first, first + ROWS_AT_ONCE)

    def _rows(self, start: int, stop: int) -> list[Array]:
        """Return consecutive rows, which are read from a file at once."""
        ends = self.ends[start:stop]
        if not len(ends):
            return []
        offset = int(self.ends[start - 1]) if start else 0
        return np.split(self.between(offset, int(ends[-1])), ends[:-1] - offset)

    def between(self, start: int, stop: int) -> Array:
        """Return `values[start:stop]`, which cannot be written to."""
        return self._values[start:stop]

    def values(self) -> Array:
        """Return the arrays of all rows, one after the other."""
        return self.between(0, int(self.ends[-1]) if len(self) else 0)

    def stacked(self) -> Array:
        """Return rows of the same length L as one (n, L, ...) array.

        Raises:
            ValueError: The rows have different lengths.
        """
        values = self.values()
        length = len(values) // max(1, len(self))
        blocks = range(0, len(self), ENDS_AT_ONCE)
        expected = (np.arange(first + 1, min(first + ENDS_AT_ONCE, len(self)) + 1) * length for first in blocks)
        if not all(map(np.array_equal, (self.ends[first : first + ENDS_AT_ONCE] for first in blocks), expected)):
            raise ValueError("the rows have different lengths")
        return values.reshape(len(self), length, *values.shape[1:])


class FiledColumn(RaggedColumn):
    """A ragged column that is stored in a file. Rows are loaded into memory only when they are read.

    Args:
        path: The file, which contains the values and nothing else.
        dtype: The data type of the values.
        shape: The shape of one value: () for numbers, (m,) for states of m features.
        ends: (n,) the position, in values, at which each row ends.
    """

    def __init__(self, path: Path, dtype: DTypeLike, shape: tuple[int, ...], ends: Integers) -> None:
        super().__init__(np.zeros((0, *shape), dtype=dtype), ends)
        self._path = path
        self._size = np.dtype(dtype).itemsize * int(np.prod(shape, dtype=np.int64))

    def values(self) -> Array:
        number = int(self.ends[-1]) if len(self) else 0
        found: Array = mapped_file(self._path, self._values.dtype, (number, *self._values.shape[1:]))
        return found

    def between(self, start: int, stop: int) -> Array:
        with self._path.open("rb") as file:
            file.seek(start * self._size)
            content = file.read((stop - start) * self._size)
        found: Array = np.frombuffer(content, dtype=self._values.dtype).reshape(-1, *self._values.shape[1:])
        return found


class FiledStrings(Sequence[Sequence[str]]):
    """Lists of strings that are stored in a file. Rows are loaded into memory only when they are read.

    Args:
        path: The file, which contains one list in MessagePack per row.
        ends: (n,) the position, in bytes, at which each row ends.
    """

    def __init__(self, path: Path, ends: Integers) -> None:
        self._bytes = FiledColumn(path, np.uint8, (), ends)

    def __len__(self) -> int:
        return len(self._bytes)

    @overload
    def __getitem__(self, row: int) -> Sequence[str]: ...
    @overload
    def __getitem__(self, row: slice) -> list[Sequence[str]]: ...
    def __getitem__(self, row: int | slice) -> Sequence[str] | list[Sequence[str]]:
        if isinstance(row, slice):
            some: list[Sequence[str]] = []
            some += (msgspec.msgpack.decode(content.tobytes(), type=list[str]) for content in self._bytes[row])
            return some
        strings: list[str] = msgspec.msgpack.decode(self._bytes[row].tobytes(), type=list[str])
        return strings

    def __iter__(self) -> Iterator[list[str]]:
        for content in self._bytes:
            yield msgspec.msgpack.decode(content.tobytes(), type=list[str])


def rows_at(column: Sequence[Array], rows: Sequence[int]) -> Iterator[Array]:
    """Yield some rows of a column. The positions of rows in a file do not stay in memory."""
    for count, row in enumerate(rows, start=1):
        yield column[row]
        if count % ROWS_AT_ONCE == 0 and isinstance(column, RaggedColumn):
            release(column.ends)


def lengths_of(rows: Sequence[Sized]) -> Integers:
    """Return the length of each row. Of a ragged column, no row is read."""
    if isinstance(rows, ChosenRows):
        if isinstance(rows.rows, RaggedColumn):
            return lengths_of(rows.rows)[rows.chosen]
    elif isinstance(rows, RaggedColumn):
        return np.diff(rows.ends, prepend=0)
    return np.array([len(row) for row in rows], dtype=np.int64)


class RaggedBuilder:
    """Appends rows to a ragged column, in memory or in a file.

    Args:
        path: The file to write; None to keep the values in memory.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._chunks: list[Array] = []
        self._counts: list[NDArray[np.int32]] = []
        self._kind: tuple[np.dtype[Any], tuple[int, ...]] | None = None  # the data type, and the shape of one value

    def add(self, values: Array, counts: Integers) -> None:
        """Append rows: their values, one after the other, and the number of values of each row.

        Raises:
            ValueError: The data type or the shape of the values differs from that of earlier rows.
        """
        if len(values):
            kind = (values.dtype, values.shape[1:])
            if self._kind is not None and self._kind != kind:
                raise ValueError(
                    f"{kind[0].name} values of shape {kind[1]} follow {self._kind[0].name} values of shape "
                    f"{self._kind[1]}"
                )
            self._kind = kind
        self._add_counts(counts)
        if self._path is None:
            self._chunks.append(values)
        elif len(values):
            with self._path.open("ab") as file:
                file.write(np.ascontiguousarray(values).data)

    def add_empty(self, rows: int) -> None:
        """Append rows without values."""
        self._add_counts(np.zeros(rows, dtype=np.int64))

    def _add_counts(self, counts: Integers) -> None:
        """Append the numbers of values of rows. If the values are in a file, so are their numbers."""
        if self._path is None:
            self._counts.append(counts.astype(np.int32))
        else:
            with self._path.with_suffix(".counts").open("ab") as file:
                file.write(counts.astype(np.int32).data)

    def column(self) -> RaggedColumn:
        """Return the column of all rows."""
        if self._path is None:
            ends = np.cumsum(np.concatenate([np.zeros(0, dtype=np.int32), *self._counts]), dtype=np.int64)
            chunks = [chunk for chunk in self._chunks if len(chunk)]
            return RaggedColumn(np.concatenate(chunks) if chunks else np.zeros(0), ends)
        self._path.touch()
        dtype, shape = self._kind or (np.dtype(np.float64), ())
        return FiledColumn(self._path, dtype, shape, _ends(self._path.with_suffix(".counts")))


def _ends(path: Path) -> Integers:
    """Return the positions at which rows end, in a temporary file.

    Args:
        path: A file with the number of values of each row. If it does not exist, there are no rows.
    """
    rows = path.stat().st_size // np.dtype(np.int32).itemsize if path.exists() else 0
    if not rows:
        return np.zeros(0, dtype=np.int64)
    ends: Integers = new_in_file(rows, np.int64)
    end = 0
    with path.open("rb") as file:
        for first in range(0, rows, ENDS_AT_ONCE):
            counts = np.fromfile(file, dtype=np.int32, count=ENDS_AT_ONCE)
            block = ends[first : first + len(counts)]
            np.cumsum(counts, dtype=np.int64, out=block)
            block += end
            end = int(block[-1])
    return ends
