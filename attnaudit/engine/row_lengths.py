"""The lengths of the rows of large data sets, in temporary files. This module does not import torch."""

from __future__ import annotations

import contextlib
import tempfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, overload

import numpy as np
from numpy.typing import DTypeLike

from attnaudit.arrays import Integers
from attnaudit.disk_arrays.filed_arrays import blocks, from_numbers, mapped_file, written
from attnaudit.disk_arrays.temporary_files import temporary_files, temporary_folder


class RowLengths(Sequence[int]):
    """The number of real units of each of n rows, in a temporary file if there are many rows.

    A copy of the object in another process has its own temporary file, unless there is a file for all (see `shared`).

    Args:
        lengths: The lengths.
    """

    def __init__(self, lengths: Iterable[int]) -> None:
        self._lengths: Integers = from_numbers(lengths, np.int32)
        self._path: Path | None = None

    @contextlib.contextmanager
    def shared(self) -> Iterator[RowLengths]:
        """Yield the same lengths as an object whose copies in other processes on this machine map one file.

        The file has a name, and is deleted at the end of the context. Copies cannot be written to.

        Raises:
            AuditError: The file cannot be written.
        """
        found = RowLengths(())
        found._lengths = self._lengths
        with contextlib.ExitStack() as stack:
            with temporary_files():
                folder = tempfile.TemporaryDirectory(prefix="attnaudit-", dir=temporary_folder())
                stack.enter_context(folder)
                found._path = Path(folder.name) / "lengths"
                with found._path.open("wb") as file:
                    for rows, lengths in blocks(len(self), self._lengths):
                        file.write(np.ascontiguousarray(lengths[rows]).data)
            yield found

    def __len__(self) -> int:
        return len(self._lengths)

    @overload
    def __getitem__(self, row: int) -> int: ...
    @overload
    def __getitem__(self, row: slice) -> list[int]: ...
    def __getitem__(self, row: int | slice) -> int | list[int]:
        some: list[int] | int = self._lengths[row].tolist()
        return some

    def __iter__(self) -> Iterator[int]:
        for rows, lengths in blocks(len(self), self._lengths):
            yield from lengths[rows].tolist()

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> Any:
        if dtype is None or dtype == self._lengths.dtype:
            return self._lengths.copy() if copy else self._lengths
        return self._lengths.astype(dtype)

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        """Pickle the path of the shared file or, without one, compressed parts, which take one to two bytes per row."""
        if self._path is not None:
            return _mapped, (str(self._path), len(self))
        parts = [zlib.compress(lengths[rows].tobytes(), 1) for rows, lengths in blocks(len(self), self._lengths)]
        return _unpickled, (parts,)


def _unpickled(parts: list[bytes]) -> RowLengths:
    found = RowLengths(())
    if parts:
        found._lengths = written(np.frombuffer(zlib.decompress(part), np.int32) for part in parts)
    return found


def _mapped(path: str, count: int) -> RowLengths:
    found = RowLengths(())
    found._lengths = mapped_file(Path(path), np.int32, (count,))
    return found
