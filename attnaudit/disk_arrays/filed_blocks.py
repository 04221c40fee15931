"""Arrays in temporary files that are read and written block by block. This module does not import torch."""

from __future__ import annotations

import mmap
import tempfile
import weakref
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, cast

import numpy as np
from numpy.typing import DTypeLike, NDArray

from attnaudit.disk_arrays.temporary_files import temporary_files, temporary_folder

#: The largest number of rows of a block, and of the numbers in its rows. Arrays that have more of either are in files.
BLOCK = 2**16
NUMBERS = 2**20

Array = NDArray[Any]

#: The mapped files that are in use.
mapped_files: weakref.WeakSet[mmap.mmap] = weakref.WeakSet()


class MappedArray(np.ndarray[Any, np.dtype[Any]]):
    """An array in a temporary file, which is deleted when the array is no longer used.

    Attributes:
        kind: The class of new arrays in files: the subclass `attnaudit.disk_arrays.filed_arrays.FiledArray`.
    """

    kind: ClassVar[type[MappedArray]]
    _mmap: mmap.mmap | None

    def __init_subclass__(cls) -> None:
        MappedArray.kind = cls

    def __array_finalize__(self, parent: Any) -> None:
        self._mmap = getattr(parent, "_mmap", None)


def blocks(n: int, *arrays: Any) -> Iterator[Any]:
    """Yield the slice of each block of n rows, and the arrays without their blockwise arithmetic.

    After each block, its part of the arrays is removed from memory.
    """
    plain = [in_memory(one) for one in arrays]
    widest = max((one.size // max(1, len(one)) for one in plain if isinstance(one, np.ndarray) and one.ndim), default=1)
    step = max(1, min(BLOCK, NUMBERS // max(1, widest)))
    for first in range(0, n, step):
        yield slice(first, min(first + step, n)), *plain
        release(*arrays)


def number_of_blocks(n: int) -> int:
    """Return the number of blocks of n numbers."""
    return -(-n // BLOCK)


def by_rows(n: int, compute: Callable[..., Array], *arrays: Any) -> Any:
    """Return an array of n rows that is computed block by block.

    Args:
        n: The number of rows.
        compute: Takes the slice of a block and all of the arrays, and returns the rows of the block.
        *arrays: The arrays that it reads.
    """
    return written(compute(*block) for block in blocks(n, *arrays))


def filled(shape: int | tuple[int, ...], value: Any, dtype: DTypeLike = np.float64) -> Any:
    """Return an array of equal elements, which is in a file if it has many rows. It can be written to."""
    n, *rest = (shape,) if isinstance(shape, int) else shape
    return (
        by_rows(n, lambda rows: np.full((rows.stop - rows.start, *rest), value, dtype)) if n else np.zeros(shape, dtype)
    )


def from_numbers(numbers: Iterable[Any], dtype: DTypeLike) -> Any:
    """Return an array of numbers that are computed one after the other. It is in a file if there are many."""

    def parts() -> Iterator[Array]:
        iterator = iter(numbers)
        part = np.fromiter(islice(iterator, BLOCK), dtype)
        yield part
        while len(part) == BLOCK:
            part = np.fromiter(islice(iterator, BLOCK), dtype)
            yield part

    return written(parts())


class ArrayWriter:
    """Joins arrays along their first axis, in a temporary file if the result has many rows.

    Use it in a `with` statement. The file is deleted when the result is no longer used.
    """

    @temporary_files()
    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile(prefix="attnaudit-", dir=temporary_folder())  # noqa: SIM115 - see __exit__
        self._pending: list[Array] = []
        self._last: Array = np.zeros(0)
        self._count = self._size = 0

    def __enter__(self) -> ArrayWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()  # the result is mapped, and needs the open file no longer

    @temporary_files()
    def add(self, part: Array) -> None:
        """Add the next rows. All parts have the same data type, and differ in their first dimension only."""
        self._last = in_memory(part)
        self._pending.append(self._last)
        self._count, self._size = self._count + len(part), self._size + part.size
        if self._count > BLOCK or self._size > NUMBERS:
            for one in self._pending:
                self._file.write(np.ascontiguousarray(one).data)
            self._pending = []

    @temporary_files()
    def joined(self) -> Any:
        """Return the array of all rows. At least one part must have been added."""
        if self._pending:
            return self._pending[0] if len(self._pending) == 1 else np.concatenate(self._pending)
        self._file.flush()
        shape, dtype = (self._count, *self._last.shape[1:]), self._last.dtype
        return (
            filed(np.memmap(self._file, dtype=dtype, mode="r+", shape=shape)) if self._size else np.zeros(shape, dtype)
        )


def written(parts: Iterable[Array]) -> Any:
    """Join arrays along their first axis, in a temporary file if the result has many rows.

    Args:
        parts: At least one array. They have the same data type, and differ in their first dimension only.
    """
    with ArrayWriter() as writer:
        for part in parts:
            writer.add(part)
        return writer.joined()


def filed(mapped: np.memmap[Any, Any]) -> MappedArray:
    """Return a mapped file as an array whose arithmetic is done block by block."""
    mapped_files.add(cast(mmap.mmap, mapped._mmap))  # type: ignore[attr-defined]
    return mapped.view(MappedArray.kind)


def mapped_file(path: Path, dtype: DTypeLike, shape: tuple[int, ...]) -> Any:
    """Return the content of a file as an array that cannot be written to."""
    return filed(np.memmap(path, dtype=dtype, mode="r", shape=shape)) if np.prod(shape) else np.zeros(shape, dtype)


def first_rows(count: int, *keys: Any) -> NDArray[np.int64]:
    """Return the places of the first rows in a stable order.

    Args:
        count: The largest number of rows.
        *keys: (n,) numbers without NaN. Rows are sorted by the first key; equal rows by the next one.
    """
    found = np.zeros(0, dtype=np.int64)
    for rows, *columns in blocks(len(keys[0]), *keys):
        places = np.concatenate([found, np.arange(rows.start, rows.stop)])
        found = places[np.lexsort([column[places] for column in reversed(columns)])[:count]]
    return found


def rows_of(*arrays: Any) -> int:
    """Return the largest number of rows of arrays in files; 0 if there are none."""
    return max((len(one) for one in arrays if isinstance(one, MappedArray) and one.ndim), default=0)


def is_large(*arrays: Any) -> bool:
    """Return whether any of some arrays in files has more rows or numbers than a block."""
    return any(len(one) > BLOCK or one.size > NUMBERS for one in arrays if isinstance(one, MappedArray) and one.ndim)


def flat(args: Any, kwargs: Any) -> list[Any]:
    """Return all arguments, and the items of those that are sequences."""
    items = [*args, *kwargs.values()]
    return [one for item in items for one in (item if isinstance(item, tuple | list) else (item,))]


def in_memory(array: Any) -> Any:
    """Return an array without its blockwise arithmetic. Everything else is returned unchanged."""
    if isinstance(array, tuple | list):
        return type(array)(map(in_memory, array))
    return array.view(np.ndarray) if isinstance(array, MappedArray) else array


def release(*arrays: Any) -> None:
    """Remove the content of mapped files from the memory of this process. It is read again when it is needed."""
    if hasattr(mmap, "MADV_DONTNEED"):  # not on Windows
        for one in arrays:
            if isinstance(one, MappedArray) and one._mmap is not None:
                one._mmap.madvise(mmap.MADV_DONTNEED)
