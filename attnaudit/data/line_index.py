"""Find the lines of a large text file, so that single lines can be read in any order."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from attnaudit.data.files import BYTE_ORDER_MARK, empty, refuse_other_formats, unreadable
from attnaudit.disk_arrays.filed_arrays import ArrayWriter, release
from attnaudit.errors import DataError

#: The number of bytes that are searched at a time.
CHUNK = 1 << 20
#: The number of lines after which the index is removed from memory while lines are read.
RELEASE_EVERY = 64
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
        DataError: The file cannot be read, is not text in UTF-8, or has only blank lines.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with ArrayWriter() as starts, ArrayWriter() as before_blank:
            self.sha256 = self._index(starts, before_blank)
            self._lines, self._lines_before_blank = starts.joined(), before_blank.joined()
        if not len(self._lines):
            raise empty(path)

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
                for count, line in enumerate(lines, start=1):
                    start = int(self._lines[line])
                    if count % RELEASE_EVERY == 0:
                        release(self._lines, self._lines_before_blank)
                    file.seek(start)
                    yield self.number(line), start, file.readline()
        except OSError as error:
            raise unreadable(self.path, error) from error

    def _index(self, starts: ArrayWriter, before_blank: ArrayWriter) -> str:
        """Read the file once, and return its SHA-256 hash, in hexadecimal.

        Args:
            starts: Gets the position of each line that is not blank.
            before_blank: Gets, for each blank line, the number of lines before it that are not blank.

        Raises:
            DataError: The file cannot be read, or is not text in UTF-8.
        """
        digest = hashlib.sha256()
        try:
            with self.path.open("rb") as file:
                self._state = _state(file.fileno())
                mark = file.read(len(BYTE_ORDER_MARK))
                refuse_other_formats(mark, self.path)
                if mark == BYTE_ORDER_MARK:
                    digest.update(mark)
                else:
                    file.seek(0)
                offset = file.tell()
                for chunk in _indexed(iter(lambda: file.read(CHUNK), b""), offset, starts, before_blank):
                    digest.update(chunk)
        except OSError as error:
            raise unreadable(self.path, error) from error
        return digest.hexdigest()


def _indexed(chunks: Iterable[bytes], offset: int, starts: ArrayWriter, before_blank: ArrayWriter) -> Iterator[bytes]:
    """Yield the chunks of a file from `offset` on, after adding their lines to the index (see `LineIndex._index`)."""
    lines, line_start = 0, offset  # the number of lines so far that are not blank
    visible = False  # whether the unfinished line at the end of the last chunk is not blank so far
    for chunk in chunks:
        characters = np.frombuffer(chunk, dtype=np.uint8)
        ends = np.flatnonzero(characters == _NEW_LINE)
        shown = _IS_SHOWN[characters]
        pieces = np.concatenate([[0], ends + 1])
        pieces = pieces[pieces < len(chunk)]
        found = np.logical_or.reduceat(shown, pieces)
        found[0] |= visible
        line_starts = np.concatenate([[line_start], offset + ends + 1])
        complete = found[: len(ends)]
        starts.add(line_starts[:-1][complete].astype(np.int64))
        before_blank.add((lines + np.cumsum(complete)[~complete]).astype(np.int64))
        lines += int(np.count_nonzero(complete))
        line_start = int(line_starts[-1])
        visible = bool(found[-1]) if len(pieces) > len(ends) else False
        offset += len(chunk)
        yield chunk
    if visible:
        starts.add(np.array([line_start], dtype=np.int64))


def _state(descriptor: int) -> tuple[int, int, int]:
    """Return the properties of an open file that change if the file is modified or replaced."""
    known = os.fstat(descriptor)
    return known.st_ino, known.st_size, known.st_mtime_ns
