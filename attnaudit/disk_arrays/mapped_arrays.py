"""Large arrays in temporary files, which need memory only while they are used. This module does not import torch.

The code of torch needs memory only while it is used as well, so it can be released in the same way.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import re
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from attnaudit.disk_arrays.filed_arrays import filed, mapped_files
from attnaudit.disk_arrays.temporary_files import temporary_files, temporary_folder

#: If a data set has more rows, their numbers are in files.
ROWS_IN_MEMORY = 20_000
#: The first line of a mapping in /proc/PID/smaps: its start and end, its permissions, and the path of its file.
MAPPING = re.compile(r"([0-9a-f]+)-([0-9a-f]+) (\S{4}) \S+ \S+ \d+ *(.*)")
#: The path of a library that torch loads when it is imported. These libraries stay loaded until the process ends.
LIBRARY = re.compile(r"/torch/lib/libtorch_(cpu|cuda|python)\.so$")


@temporary_files()
def new_in_file(length: int, dtype: DTypeLike) -> NDArray[Any]:
    """Return an array (length,) of zeros that is stored in a temporary file. It can be written to.

    Args:
        length: The number of elements, at least 1.
        dtype: The data type of the elements.

    Raises:
        AuditError: There is not enough space for the file.
    """
    with tempfile.TemporaryFile(prefix="attnaudit-", dir=temporary_folder()) as file:
        # Otherwise, a full disk would be noticed when the array is written, and the system would kill this process.
        _reserve(file.fileno(), length * np.dtype(dtype).itemsize)
        return filed(np.memmap(file, dtype=dtype, mode="w+", shape=(length,)))


def _reserve(descriptor: int, size: int) -> None:
    """Reserve space for a file, where the operating system and the file system can do this.

    Raises:
        OSError: There is not enough space.
    """
    if hasattr(os, "posix_fallocate"):
        try:
            os.posix_fallocate(descriptor, 0, size)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):
                raise


def release_mapped() -> None:
    """Remove the content of all mapped files from the memory of this process, where this is possible.

    The operating system reads it again from the files when it is needed, so nothing is lost.
    """
    if hasattr(mmap, "MADV_DONTNEED"):  # not on Windows
        for one in list(mapped_files):
            one.madvise(mmap.MADV_DONTNEED)


def release_libraries() -> None:
    """Remove the code of torch from the memory of this process, if an array is in a file (only on Linux).

    The code takes about 100 MiB and is not used while checks are judged. The operating system reads it again from the
    libraries, or from its cache, when it is needed.

    Nothing is lost: a mapping is released only if it cannot be written to and none of its pages was modified, so that
    each page equals the file. Only libraries that torch loaded when it was imported are released. They are never
    unloaded, so no other thread can put other content at their addresses. A library that is installed again during
    the run is another file; the old one remains until this process ends.
    """
    madvise = getattr(ctypes.CDLL(None), "madvise", None) if sys.platform == "linux" and mapped_files else None
    if madvise is None or "torch._C" not in sys.modules:  # torch may be loading them in another thread
        return
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    with Path("/proc/self/smaps").open(encoding="utf-8", errors="surrogateescape") as file:
        for start, stop in _unmodified(file):
            madvise(start, stop - start, mmap.MADV_DONTNEED)


def _unmodified(lines: Iterable[str]) -> list[tuple[int, int]]:
    """Return the start and the end of each private, read-only mapping of a library of torch without changes.

    A modified page is counted under `Anonymous`, or under `Swap` after it was moved to a swap area.

    Args:
        lines: The lines of /proc/PID/smaps.
    """
    found: dict[tuple[int, int], set[str]] = {}
    mapping: tuple[int, int] | None = None
    for line in lines:
        if header := MAPPING.match(line):
            start, stop, permissions, path = header.groups()
            library = permissions in ("r--p", "r-xp") and LIBRARY.search(path)
            mapping = (int(start, 16), int(stop, 16)) if library else None
        elif mapping and line.startswith(("Anonymous:", "Swap:")) and line.split()[1] == "0":
            found.setdefault(mapping, set()).add(line.partition(":")[0])
    return [one for one, unchanged in found.items() if len(unchanged) == 2]
