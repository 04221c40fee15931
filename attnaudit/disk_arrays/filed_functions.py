"""Functions of numpy that are computed block by block for arrays in temporary files.

The arrays are those of `attnaudit.disk_arrays.filed_arrays`. This module does not import torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnaudit.disk_arrays.filed_blocks import (
    Array,
    blocks,
    by_rows,
    flat,
    in_memory,
    number_of_blocks,
    rows_of,
    written,
)

#: The number of values per block that are drawn to divide the values into ranges, before they are sorted.
SAMPLED = 100


def _rowwise(function: Any) -> Callable[..., Any]:
    """Return a function that computes each row of its result from the same row of its arguments, block by block."""

    def compute(*args: Any, **kwargs: Any) -> Any:
        arguments = flat(args, kwargs)
        n = rows_of(*arguments)

        def part(one: Any, rows: slice) -> Any:
            if isinstance(one, tuple | list) and any(isinstance(item, np.ndarray) for item in one):
                return type(one)(part(item, rows) for item in one)
            return in_memory(one)[rows] if isinstance(one, np.ndarray) and one.ndim and len(one) == n else one

        def some_rows(rows: slice, *_: Any) -> Array:
            result: Array = function(
                *(part(one, rows) for one in args), **{name: part(one, rows) for name, one in kwargs.items()}
            )
            return result

        return by_rows(n, some_rows, *arguments)

    return compute


def _concatenate(arrays: Sequence[Any], axis: int = 0, **kwargs: Any) -> Any:
    if kwargs or axis not in (0, 1, -1):
        return NotImplemented
    if axis and np.ndim(arrays[0]) > 1:
        return _rowwise(np.concatenate)(arrays, axis=axis)
    dtype = np.result_type(*arrays)
    pieces = (one[rows] for array in arrays for rows, one in blocks(len(array), np.asanyarray(array)))
    return written(piece.astype(dtype, copy=False) for piece in pieces)


def _flatnonzero(array: Any) -> Any:
    if array.ndim != 1:
        return NotImplemented
    return written(rows.start + np.flatnonzero(one[rows]) for rows, one in blocks(len(array), array))


def _count_nonzero(array: Any, axis: Any = None, **kwargs: Any) -> Any:
    if axis is not None or kwargs:
        return NotImplemented
    return sum(int(np.count_nonzero(one[rows])) for rows, one in blocks(len(array), array))


def _bincount(array: Any, weights: Any = None, minlength: int = 0) -> Any:
    length = max(minlength, int(array.max()) + 1)
    parts = (
        np.bincount(one[rows], None if weight is None else weight[rows], length)
        for rows, one, weight in blocks(len(array), array, weights)
    )
    return sum(parts)


def _unique(array: Any, **kwargs: Any) -> Any:
    if kwargs:
        return NotImplemented
    found: Array = np.zeros(0, dtype=array.dtype)
    for rows, one in blocks(len(array), array):
        found = np.unique(np.concatenate([found, one[rows].ravel()]))
    return found


def _histogram(array: Any, bins: Any = 10, range: Any = None, **kwargs: Any) -> Any:
    if kwargs or range is None:
        return NotImplemented
    counts = [np.histogram(one[rows], bins, range)[0] for rows, one in blocks(len(array), array)]
    return np.sum(counts, axis=0), np.histogram_bin_edges(np.zeros(0), bins, range)


def _cumsum(array: Any, **kwargs: Any) -> Any:
    if kwargs or array.ndim != 1:
        return NotImplemented
    total = array.dtype.type(0)

    def sums(rows: slice, one: Array) -> Array:
        nonlocal total
        found: Array = np.cumsum(np.concatenate([[total], one[rows]]))[1:]
        total = found[-1]
        return found

    return by_rows(len(array), sums, array)


def _in_order(array: Any) -> Iterator[tuple[NDArray[np.int64], Array]]:
    """Yield the places and the values of a (n,) array in ascending order, part by part, as a stable sort does."""
    n = len(array)
    drawn = in_memory(array)[np.random.default_rng(0).integers(n, size=SAMPLED * (1 + number_of_blocks(n)))]
    limits = np.unique(np.sort(drawn)[SAMPLED::SAMPLED])
    ranges = by_rows(n, lambda rows, one: _ranges(one[rows], limits), array)
    for number in range(2 * len(limits) + 1):
        if number % 2:  # equal values
            yield from _members(array, ranges, number)
        else:
            places, values = map(np.concatenate, zip(*_members(array, ranges, number), strict=True))
            order = np.argsort(values, kind="stable")
            yield places[order], values[order]


def _ranges(values: Array, limits: Array) -> NDArray[np.uint16]:
    """Return 2 k for values between the limits k - 1 and k, and 2 k + 1 for values that equal the limit k."""
    found = np.searchsorted(limits, values, "left") + np.searchsorted(limits, values, "right")
    return found.astype(np.uint16)


def _members(array: Any, ranges: Any, number: int) -> Iterator[tuple[NDArray[np.int64], Array]]:
    """Yield, for each block, the places and the values of the elements in one range."""
    for rows, values, of_rows in blocks(len(array), array, ranges):
        places = np.flatnonzero(of_rows[rows] == number)
        yield rows.start + places, values[rows][places]


def _sorted(array: Any, axis: int = -1, **kwargs: Any) -> Any:
    if array.ndim != 1 or _has_nan(array):
        return NotImplemented
    return written(values for _, values in _in_order(array))


def _argsort(array: Any, axis: int = -1, kind: Any = None, **kwargs: Any) -> Any:
    if array.ndim != 1 or _has_nan(array):
        return NotImplemented
    return written(places for places, _ in _in_order(array))


def _has_nan(array: Any) -> bool:
    return array.dtype.kind == "f" and bool(np.isnan(array).any())


def _quantile(array: Any, q: Any, axis: Any = None, *, method: Any = "linear", **kwargs: Any) -> Any:
    if axis is not None or kwargs or array.ndim != 1 or _has_nan(array):
        return NotImplemented
    ordered, places = np.sort(array), (len(array) - 1) * np.asarray(q, dtype=np.float64)

    def one(place: float) -> Any:
        floor = int(place)
        around = np.asarray(ordered[floor : floor + 2]).view(np.ndarray)
        return np.quantile(around, place - floor if len(around) > 1 else 0.0, method=method)

    found = np.array([one(place) for place in places.ravel().tolist()], dtype=None).reshape(places.shape)
    return found[()]


def _percentile(array: Any, q: Any, axis: Any = None, **kwargs: Any) -> Any:
    return _quantile(array, np.true_divide(q, 100), axis, **kwargs)


def _median(array: Any, axis: Any = None, **kwargs: Any) -> Any:
    if axis is not None or kwargs or array.ndim != 1 or _has_nan(array):
        return NotImplemented
    ordered, half = np.sort(array), (len(array) - 1) // 2
    return np.median(np.asarray(ordered[half : len(array) // 2 + 1]).view(np.ndarray))


def _without_nan(function: Any) -> Callable[..., Any]:
    """Return a function that calls another one with the elements of a (n,) array that are not NaN."""

    def compute(array: Any, *args: Any, **kwargs: Any) -> Any:
        defined = array[~np.isnan(array)] if array.ndim == 1 else array
        return function(defined, *args, **kwargs) if array.ndim == 1 and len(defined) else NotImplemented

    return compute


#: Functions of numpy that call only functions and operations that are computed block by block.
COMPOSED = (np.append, np.diff, np.ptp, np.ravel)
#: A function of numpy -> a function that returns the same block by block, or NotImplemented for some arguments.
HANDLERS: dict[Any, Callable[..., Any]] = {
    **{
        function: _rowwise(function)
        for function in (
            np.where,
            np.clip,
            np.nan_to_num,
            np.isin,
            np.column_stack,
            np.full_like,
            np.ones_like,
            np.zeros_like,
            np.empty_like,
        )
    },
    np.concatenate: _concatenate,
    np.flatnonzero: _flatnonzero,
    np.count_nonzero: _count_nonzero,
    np.bincount: _bincount,
    np.unique: _unique,
    np.histogram: _histogram,
    np.cumsum: _cumsum,
    np.sort: _sorted,
    np.argsort: _argsort,
    np.quantile: _quantile,
    np.percentile: _percentile,
    np.median: _median,
    np.nanquantile: _without_nan(np.quantile),
    np.nanmedian: _without_nan(np.median),
    np.nanmax: _without_nan(np.max),
    np.nanmin: _without_nan(np.min),
}
