"""Arrays in temporary files, which numpy computes with block by block. This module does not import torch.

A `FiledArray` is an array of numpy, so code that computes with arrays works with it. Results with many rows are in
temporary files, too, and only one block of rows is in memory at a time. The memory therefore does not grow with the
number of rows. A function of numpy that is not listed in this module gives the same result, but in memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from attnaudit.disk_arrays import filed_blocks
from attnaudit.disk_arrays.filed_blocks import (
    Array,
    ArrayWriter,
    MappedArray,
    blocks,
    by_rows,
    filed,
    filled,
    first_rows,
    flat,
    from_numbers,
    in_memory,
    is_large,
    mapped_file,
    mapped_files,
    number_of_blocks,
    release,
    rows_of,
    written,
)
from attnaudit.disk_arrays.filed_functions import COMPOSED, HANDLERS

__all__ = [
    "ArrayWriter",
    "FiledArray",
    "blocks",
    "filed",
    "filled",
    "first_rows",
    "from_numbers",
    "in_memory",
    "mapped_file",
    "mapped_files",
    "number_of_blocks",
    "release",
    "written",
]

#: The number of rows from which elements at any place are taken at once.
ROWS_AT_ONCE = 2**20
#: Operations whose result on all rows is the result of the same operation on the results of blocks of rows.
REDUCTIONS = (np.add, np.maximum, np.minimum, np.fmax, np.fmin, np.logical_or, np.logical_and)


class FiledArray(MappedArray):
    """An array in a temporary file. Results that have many rows are arrays of this class, too."""

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
        outputs: tuple[Any, ...] = kwargs.get("out") or ()
        large, n = is_large(*inputs, *outputs), rows_of(*inputs, *outputs)
        depth = max(map(np.ndim, inputs))
        if large and method == "reduce" and ufunc in REDUCTIONS and "initial" not in kwargs:
            axis = kwargs.get("axis", 0)
            if axis in (None, 0, (0,)) or (axis == -1 and depth == 1):
                return _reduced(ufunc, inputs[0], kwargs)
            if not outputs and axis in (1, -1) and depth > 1:
                return by_rows(n, lambda rows, one: ufunc.reduce(one[rows], **kwargs), *inputs)
        if large and method == "__call__" and len(outputs) <= 1 and ufunc.nout == 1:
            shapes: list[tuple[int, ...]] = [np.shape(one) for one in inputs]
            if ufunc is np.matmul and len(shapes[0]) == 1 and shapes[0] == shapes[1]:
                return sum(one[rows] @ other[rows] for rows, one, other in blocks(n, *inputs))
            if ufunc is np.matmul and len(shapes[0]) == 2 and len(shapes[1]) < 3 and shapes[1][0] < n:
                return by_rows(n, lambda rows, one, other: one[rows] @ other, *inputs)
            if ufunc.signature is None and np.broadcast_shapes(*shapes)[:1] == (n,):
                return _elementwise(ufunc, n, depth, inputs, kwargs)
        kwargs = {name: in_memory(value) for name, value in kwargs.items()}
        result = getattr(ufunc, method)(*map(in_memory, inputs), **kwargs)
        release(*inputs, *outputs)
        return outputs[0] if len(outputs) == 1 else result

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        if function in COMPOSED:
            return super().__array_function__(function, types, args, kwargs)
        arguments = flat(args, kwargs)
        if function in HANDLERS and is_large(*arguments):
            found = HANDLERS[function](*args, **kwargs)
            if found is not NotImplemented:
                return found
        found = function(*in_memory(args), **{name: in_memory(value) for name, value in kwargs.items()})
        release(*arguments)
        return found

    def __getitem__(self, key: Any) -> Any:
        if not (isinstance(key, np.ndarray) and key.ndim == 1 and self.ndim):
            return super().__getitem__(key)
        if len(key) <= filed_blocks.BLOCK:
            return _taken(self, key)
        if key.dtype == np.bool_:
            return written(values[rows][chosen[rows]] for rows, values, chosen in blocks(len(key), self, key))
        return by_rows(len(key), lambda rows, places: self[places[rows]], key)

    def __setitem__(self, key: Any, value: Any) -> None:
        if isinstance(key, np.ndarray) and key.ndim == 1 and len(key) > filed_blocks.BLOCK:
            start = 0
            for rows, chosen in blocks(len(key), key):
                places = rows.start + np.flatnonzero(chosen[rows]) if key.dtype == np.bool_ else chosen[rows]
                one = np.ndim(value) < self.ndim
                in_memory(self)[places] = in_memory(value) if one else in_memory(value)[start : start + len(places)]
                start += len(places)
                release(self, value)
            return
        target = in_memory(self)[key] if isinstance(key, slice) or key is Ellipsis else None
        if target is not None and np.ndim(value) == target.ndim > 0 and len(target) > filed_blocks.BLOCK:
            value = value.copy() if _overlap(value, target) else value
            for rows, source in blocks(len(target), value):
                target[rows] = source[rows]
                release(self)
            return
        in_memory(self)[in_memory(key)] = in_memory(value)
        if not isinstance(key, int):
            release(self, value)

    def astype(self, dtype: Any, *args: Any, **kwargs: Any) -> Any:
        """Return the array with another data type, as numpy does."""
        if not is_large(self) or (not kwargs.get("copy", True) and self.dtype == dtype):
            return in_memory(self).astype(dtype, *args, **kwargs)
        return by_rows(len(self), lambda rows, one: one[rows].astype(dtype), self)

    def copy(self, order: Any = "C") -> Any:
        """Return a copy, which can be written to."""
        return self.astype(self.dtype)


def _taken(array: FiledArray, key: Any) -> Array:
    """Return `array[key]` for a (m,) key of at most a block. Only a part of a long array is in memory at a time."""
    plain, places, n = in_memory(array), in_memory(key), len(array)
    if places.dtype == np.bool_ or n <= ROWS_AT_ONCE:
        found: Array = plain[places]
        release(array, key)
        return found
    places = np.where(places < 0, places + n, places)
    if len(places) and not (places.min() >= 0 and places.max() < n):
        raise IndexError(f"an index is out of bounds for {n} rows")
    found = np.empty((len(places), *plain.shape[1:]), plain.dtype)
    for first in range(0, n, ROWS_AT_ONCE):
        some = np.flatnonzero((places >= first) & (places < first + ROWS_AT_ONCE))
        found[some] = plain[places[some]]
        release(array, key)
    return found


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
