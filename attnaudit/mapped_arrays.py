"""Large arrays in temporary files, which need memory only while they are used. This module imports only numpy."""

from __future__ import annotations

import mmap
import tempfile
import weakref
from typing import Any, TypeVar, cast

import numpy as np
from numpy.typing import DTypeLike, NDArray

T = TypeVar("T", bound=np.generic)

#: The mapped files that are in use.
_maps: weakref.WeakSet[mmap.mmap] = weakref.WeakSet()


def in_file(array: NDArray[T]) -> NDArray[T]:
    """Copy an array to a temporary file, and return an equal array that is read from it and cannot be written to.

    The file is deleted when the array is no longer used. The environment variable TMPDIR selects its folder.

    Args:
        array: (n, ...) The array.
    """
    if not array.size:
        return array
    with tempfile.TemporaryFile(prefix="attnaudit-") as file:
        np.ascontiguousarray(array).tofile(file)
        return _view(np.memmap(file, dtype=array.dtype, mode="r", shape=array.shape))


def new_in_file(length: int, dtype: DTypeLike) -> NDArray[Any]:
    """Return an array (length,) of zeros that is stored in a temporary file. It can be written to.

    Args:
        length: The number of elements, at least 1.
        dtype: The data type of the elements.
    """
    with tempfile.TemporaryFile(prefix="attnaudit-") as file:
        return _view(np.memmap(file, dtype=dtype, mode="w+", shape=(length,)))


def release_mapped() -> None:
    """Remove the content of all mapped files from the memory of this process, where this is possible.

    The operating system reads it again from the files when it is needed, so nothing is lost.
    """
    if hasattr(mmap, "MADV_DONTNEED"):  # not on Windows
        for one in list(_maps):
            one.madvise(mmap.MADV_DONTNEED)


def _view(mapped: np.memmap[Any, Any]) -> NDArray[Any]:
    """Register the file of an array, and return the array as a plain one."""
    _maps.add(cast(mmap.mmap, mapped.base))
    return np.asarray(mapped)
