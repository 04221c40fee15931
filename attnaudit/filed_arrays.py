"""Arrays in temporary files, which numpy computes with block by block. This module does not import torch.

A `FiledArray` is an array of numpy, so code that computes with arrays works with it. Results with many rows are in
temporary files, too, and only one block of rows is in memory at a time. The memory therefore does not grow with the
number of rows. A function of numpy that is not listed in this module gives the same result, but in memory.
"""

from __future__ import annotations

import mmap
import tempfile
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import DTypeLike, NDArray

from attnaudit.temporary_files import temporary_files, temporary_folder

#: The largest number of rows of a block, and of the numbers in its rows. Arrays that have more of either are in files.
BLOCK = 2**16
NUMBERS = 2**20

Array = NDArray[Any]
#: Operations whose result on all rows is the result of the same operation on the results of blocks of rows.
REDUCTIONS = (
    np.add,
    np.maximum,
    np.minimum,
    np.fmax,
    np.fmin,
    np.logical_or,
    np.logical_and,
)

#: The mapped files that are in use.
mapped_files: weakref.WeakSet[mmap.mmap] = weakref.WeakSet()


class FiledArray(np.ndarray[Any, np.dtype[Any]]):
    """An array in a temporary file, which is deleted when the array is no longer used."""

    _mmap: mmap.mmap | None

    def __array_finalize__(self, parent: Any) -> None:
        self._mmap = getattr(parent, "_mmap", None)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
        outputs = kwargs.get("out") or ()
        large, n = is_large(*inputs, *outputs), rows_of(*inputs, *outputs)
        depth = max(map(np.ndim, inputs))
        if large and method == "reduce" and ufunc in REDUCTIONS and "initial" not in kwargs:
            axis = kwargs.get("axis", 0)
            if axis in (None, 0, (0,)) or (axis == -1 and depth == 1):
                return _reduced(ufunc, inputs[0], kwargs)
            if not outputs and axis in (1, -1) and depth > 1:
                return by_rows(n, lambda rows, one: ufunc.reduce(one[rows], **kwargs), *inputs)
        if large and method == "__call__" and len(outputs) <= 1 and ufunc.nout == 1:
            shapes = [np.shape(one) for one in inputs]
            if ufunc is np.matmul and len(shapes[0]) == 1 and shapes[0] == shapes[1]:
                return sum(one[rows] @ other[rows] for rows, one, other in blocks(n, *inputs))
            if ufunc is np.matmul and len(shapes[0]) == 2 and len(shapes[1]) < 3 and shapes[1][0] < n:
                return by_rows(n, lambda rows, one, other: one[rows] @ other, *inputs)
            if ufunc.signature is None and np.broadcast_shapes(*shapes)[0] == n:
                return _elementwise(ufunc, n, depth, inputs, kwargs)
        kwargs = {name: in_memory(value) for name, value in kwargs.items()}
        return getattr(ufunc, method)(*map(in_memory, inputs), **kwargs)

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        from attnaudit.filed_functions import COMPOSED, HANDLERS

        if function in COMPOSED:
            return super().__array_function__(function, types, args, kwargs)
        arguments = flat(args, kwargs)
        if function in HANDLERS and is_large(*arguments):
            found = HANDLERS[function](*args, **kwargs)
            if found is not NotImplemented:
                return found
        found = function(*in_memory(args), **{name: in_memory(value) for name, value in kwargs.items()})
        _release(*arguments)
        return found

    def __getitem__(self, key: Any) -> Any:
        if not (isinstance(key, np.ndarray) and key.ndim == 1 and self.ndim):
            return super().__getitem__(key)
        if len(key) <= BLOCK:
            found = in_memory(self)[in_memory(key)]
            _release(self)
            return found
        if key.dtype == np.bool_:
            return written(values[rows][chosen[rows]] for rows, values, chosen in blocks(len(key), self, key))
        return by_rows(len(key), lambda rows, places: self[places[rows]], key)

    def __setitem__(self, key: Any, value: Any) -> None:
        if isinstance(key, np.ndarray) and key.ndim == 1 and len(key) > BLOCK:
            start = 0
            for rows, chosen in blocks(len(key), key):
                places = rows.start + np.flatnonzero(chosen[rows]) if key.dtype == np.bool_ else chosen[rows]
                one = np.ndim(value) < self.ndim
                in_memory(self)[places] = in_memory(value) if one else in_memory(value)[start : start + len(places)]
                start += len(places)
                _release(self, value)
            return
        target = in_memory(self)[key] if isinstance(key, slice) or key is Ellipsis else None
        if target is not None and np.ndim(value) == target.ndim > 0 and len(target) > BLOCK:
            value = value.copy() if _overlap(value, target) else value
            for rows, source in blocks(len(target), value):
                target[rows] = source[rows]
                _release(self)
            return
        in_memory(self)[in_memory(key)] = in_memory(value)
        if not isinstance(key, int):
            _release(self, value)

    def astype(self, dtype: Any, *args: Any, **kwargs: Any) -> Any:
        """Return the array with another data type, as numpy does."""
        if not is_large(self) or (not kwargs.get("copy", True) and self.dtype == dtype):
            return in_memory(self).astype(dtype, *args, **kwargs)
        return by_rows(len(self), lambda rows, one: one[rows].astype(dtype), self)

    def copy(self, order: Any = "C") -> Any:
        """Return a copy, which can be written to."""
        return self.astype(self.dtype)


def blocks(n: int, *arrays: Any) -> Iterator[Any]:
    """Yield the slice of each block of n rows, and the arrays without their blockwise arithmetic.

    After each block, its part of the arrays is removed from memory.
    """
    plain = [in_memory(one) for one in arrays]
    widest = max((one.size // max(1, len(one)) for one in plain if isinstance(one, np.ndarray) and one.ndim), default=1)
    step = max(1, min(BLOCK, NUMBERS // max(1, widest)))
    for first in range(0, n, step):
        yield slice(first, min(first + step, n)), *plain
        _release(*arrays)


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


@temporary_files()
def written(parts: Iterable[Array]) -> Any:
    """Join arrays along their first axis, in a temporary file if the result has many rows.

    Args:
        parts: At least one array. They have the same data type, and differ in their first dimension only.
    """
    pending: list[Array] = []
    count = size = 0
    with tempfile.TemporaryFile(prefix="attnaudit-", dir=temporary_folder()) as file:
        for part in parts:
            pending.append(in_memory(part))
            count, size = count + len(part), size + part.size
            if count > BLOCK or size > NUMBERS:
                for one in pending:
                    file.write(np.ascontiguousarray(one).data)
                shape, dtype = (count, *part.shape[1:]), part.dtype
                pending = []
        if pending:
            return pending[0] if len(pending) == 1 else np.concatenate(pending)
        file.flush()
        return filed(np.memmap(file, dtype=dtype, mode="r+", shape=shape)) if size else np.zeros(shape, dtype)


def filed(mapped: np.memmap[Any, Any]) -> FiledArray:
    """Return a mapped file as an array whose arithmetic is done block by block."""
    mapped_files.add(cast(mmap.mmap, mapped._mmap))  # type: ignore[attr-defined]
    return mapped.view(FiledArray)


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
    return max((len(one) for one in arrays if isinstance(one, FiledArray) and one.ndim), default=0)


def is_large(*arrays: Any) -> bool:
    """Return whether any of some arrays in files has more rows or numbers than a block."""
    return any(len(one) > BLOCK or one.size > NUMBERS for one in arrays if isinstance(one, FiledArray) and one.ndim)


def flat(args: Any, kwargs: Any) -> list[Any]:
    """Return all arguments, and the items of those that are sequences."""
    items = [*args, *kwargs.values()]
    return [one for item in items for one in (item if isinstance(item, tuple | list) else (item,))]


def in_memory(array: Any) -> Any:
    """Return an array without its blockwise arithmetic. Everything else is returned unchanged."""
    if isinstance(array, tuple | list):
        return type(array)(map(in_memory, array))
    return array.view(np.ndarray) if isinstance(array, FiledArray) else array


def _release(*arrays: Any) -> None:
    """Remove the content of mapped files from the memory of this process. It is read again when it is needed."""
    if hasattr(mmap, "MADV_DONTNEED"):  # not on Windows
        for one in arrays:
            if isinstance(one, FiledArray) and one._mmap is not None:
                one._mmap.madvise(mmap.MADV_DONTNEED)


def _elementwise(ufunc: np.ufunc, n: int, depth: int, inputs: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Apply an operation to the elements of arrays, of which at least one has n rows."""
    where, output = kwargs.pop("where", True), (kwargs.pop("out", None) or (None,))[0]
    arrays = (*inputs, where, output)

    def part(array: Any, rows: slice) -> Any:
        return array[rows] if np.ndim(array) == depth and len(array) == n else array

    def compute(rows: slice, *plain: Any) -> Array:
        *some, chosen, target = (part(one, rows) for one in plain)
        result: Array = ufunc(*some, out=target, where=chosen, **kwargs)
        return result

    if output is None:
        return by_rows(n, compute, *arrays)
    if any(_overlap(one, output) for one in inputs):
        output[...] = by_rows(n, compute, *inputs, where, None)
        return output
    for block in blocks(n, *arrays):
        compute(*block)
    return output


def _overlap(source: Any, target: Any) -> bool:
    """Return whether writing a block of one array could change another block of the other array."""
    if not isinstance(source, np.ndarray) or not np.may_share_memory(in_memory(source), in_memory(target)):
        return False
    same_place = source.__array_interface__["data"] == target.__array_interface__["data"]
    return not same_place or (source.shape, source.strides) != (target.shape, target.strides)


def _reduced(ufunc: np.ufunc, array: Any, kwargs: dict[str, Any]) -> Any:
    """Reduce the first axis of an array, or all axes."""
    where, output = kwargs.pop("where", True), (kwargs.pop("out", None) or (None,))[0]
    parts = [
        ufunc.reduce(one[rows], where=chosen if np.ndim(chosen) == 0 else chosen[rows], **kwargs)
        for rows, one, chosen in blocks(len(array), array, where)
    ]
    return ufunc.reduce(np.stack(parts), axis=0, out=output)
