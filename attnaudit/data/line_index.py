"""Find the lines of a large text file, so that single lines can be read in any order."""

from __future__ import annotations

import hashlib
import os
from array import array
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from attnaudit.data.files import BYTE_ORDER_MARK, empty, refuse_utf16, unreadable
from attnaudit.errors import DataError
from attnaudit.mapped_arrays import in_file

#: The number of bytes that are searched at a time.
CHUNK = 1 << 20
_NEW_LINE = 0x0A
#: (256,) False at the bytes that are white space.
_IS_SHOWN = np.array([not bytes([byte]).isspace() for byte in range(256)])


class LineIndex:
    """An index of a file, which stores where each line begins. Blank lines are left out.

    The file is read once, without being parsed. The index needs 8 bytes per line, in a temporary file.

    Args:
        path: The file, which must be a regular file.

    Attributes:
        path: The file.
        sha256: The SHA-256 hash of the file, in hexadecimal.

    Raises:
        DataError: The file cannot be read, is encoded in UTF-16, or has only blank lines.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._starts = array("q")
        self._blank = array("q")  # numbers of the blank lines, from 0
        digest = hashlib.sha256()
        try:
            with path.open("rb") as file:
                self._state = _state(file.fileno())
                mark = file.read(len(BYTE_ORDER_MARK))
                refuse_utf16(mark, path)
                if mark == BYTE_ORDER_MARK:
                    digest.update(mark)
                else:
                    file.seek(0)
                for chunk in self._indexed(iter(lambda: file.read(CHUNK), b""), offset=file.tell()):
                    digest.update(chunk)
        except OSError as error:
            raise unreadable(path, error) from error
        if not self._starts:
            raise empty(path)
        self.sha256 = digest.hexdigest()
        self._lines = in_file(np.array(self._starts, dtype=np.int64))
        del self._starts
        blank = np.array(self._blank, dtype=np.int64)
        self._lines_before_blank = blank - np.arange(len(blank))

    def __len__(self) -> int:
        return len(self._lines)

    def number(self, line: int) -> int:
        """Return the number of a line in the file, counted from 1. Blank lines are counted.

        Args:
            line: The index of the line among the lines that are not blank, counted from 0.
        """
        if not len(self._lines_before_blank):
            return line + 1
        return line + 1 + int(np.searchsorted(self._lines_before_blank, line, side="right"))

    def read(self, lines: Iterable[int]) -> Iterator[tuple[int, int, bytes]]:
        """Read some lines.

        Args:
            lines: The indices of the lines among the lines that are not blank, counted from 0.

        Yields:
            The number of each line in the file, its position in the file in bytes, and its content.

        Raises:
            DataError: The file cannot be read, or it has changed since the index was built.
        """
        try:
            with self.path.open("rb") as file:
                if _state(file.fileno()) != self._state:
                    raise DataError(
                        f"{self.path}: the file changed while it was being read. Run the audit again when no program "
                        "writes to the file."
                    )
                for line in lines:
                    start = int(self._lines[line])
                    file.seek(start)
                    yield self.number(line), start, file.readline()
        except OSError as error:
            raise unreadable(self.path, error) from error

    def _indexed(self, chunks: Iterable[bytes], *, offset: int) -> Iterator[bytes]:
        """Yield the chunks of the file from `offset` on, after adding their lines to the index."""
        number, line_start = 0, offset
        visible = False  # whether the unfinished line at the end of the last chunk is not blank so far
        for chunk in chunks:
            characters = np.frombuffer(chunk, dtype=np.uint8)
            ends = np.flatnonzero(characters == _NEW_LINE)
            shown = _IS_SHOWN[characters]
            pieces = np.concatenate([[0], ends + 1])
            pieces = pieces[pieces < len(chunk)]
            found = np.logical_or.reduceat(shown, pieces)
            found[0] |= visible
            starts = np.concatenate([[line_start], offset + ends + 1])
            complete = found[: len(ends)]
            self._starts.frombytes(starts[:-1][complete].astype(np.int64).tobytes())
            self._blank.frombytes((number + np.flatnonzero(~complete)).astype(np.int64).tobytes())
            number += len(ends)
            line_start = int(starts[-1])
            visible = bool(found[-1]) if len(pieces) > len(ends) else False
            offset += len(chunk)
            yield chunk
        if visible:
            self._starts.append(line_start)


def _state(descriptor: int) -> tuple[int, int, int]:
    """Return the properties of an open file that change if the file is modified or replaced."""
    known = os.fstat(descriptor)
    return known.st_ino, known.st_size, known.st_mtime_ns
