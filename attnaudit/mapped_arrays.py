"""Large arrays in temporary files, which need memory only while they are used. This module imports only numpy.

Libraries need memory only while they are used as well, so their pages can be released in the same way.
"""

from __future__ import annotations

import ctypes
import mmap
import re
import sys
import tempfile
import weakref
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
from numpy.typing import DTypeLike, NDArray

T = TypeVar("T", bound=np.generic)

#: The first line of a mapping in /proc/PID/smaps: its start and end, its permissions, and the path of its file.
MAPPING = re.compile(r"([0-9a-f]+)-([0-9a-f]+) (\S{4}) \S+ \S+ \d+ *(.*)")
#: The end of the path of a library.
LIBRARY = re.compile(r"\.so[.0-9]*$")

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


def release_libraries() -> None:
    """Remove the pages of libraries that are equal to their files from the memory of this process (only on Linux).

    The code of torch alone takes about 100 MiB, and is not used while checks are judged. The operating system reads
    pages again from the files, or from its cache, when they are needed. A mapping is left as it is if it can be written
    to, or if any of its pages was modified, because a modification would be lost. If no array is in a file, nothing is
    released: the data are then small.
    """
    madvise = getattr(ctypes.CDLL(None), "madvise", None) if sys.platform == "linux" and _maps else None
    if madvise is None:
        return
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    with Path("/proc/self/smaps").open(encoding="utf-8", errors="surrogateescape") as file:
        for start, stop in _unmodified(file):
            madvise(start, stop - start, mmap.MADV_DONTNEED)


def _unmodified(lines: Iterable[str]) -> list[tuple[int, int]]:
    """Return the start and the end of each private, read-only mapping of a library in /proc/PID/smaps without changes.

    Args:
        lines: The lines of the file.
    """
    found, mapping = [], None
    for line in lines:
        if header := MAPPING.match(line):
            start, stop, permissions, path = header.groups()
            library = permissions in ("r--p", "r-xp") and LIBRARY.search(path)
            mapping = (int(start, 16), int(stop, 16)) if library else None
        elif mapping and line.startswith("Anonymous:") and line.split()[1] == "0":
            found.append(mapping)
    return found


def _view(mapped: np.memmap[Any, Any]) -> NDArray[Any]:
    """Register the file of an array, and return the array as a plain one."""
    _maps.add(cast(mmap.mmap, mapped.base))
    return np.asarray(mapped)
