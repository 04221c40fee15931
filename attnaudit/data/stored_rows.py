"""Rows outside memory: in a JSON Lines file, or copied to a temporary file."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Protocol

import msgspec
import numpy as np

from attnaudit.data.column_names import Column
from attnaudit.data.files import not_utf8, parse_line
from attnaudit.data.line_index import RELEASE_EVERY, LineIndex
from attnaudit.data.row_parsing import InstanceReader, Row
from attnaudit.disk_arrays.filed_arrays import from_numbers, release
from attnaudit.disk_arrays.temporary_files import temporary_folder
from attnaudit.errors import DataError
from attnaudit.instances import Instance


class RowReader(InstanceReader):
    """A reader of rows that allows repeated ids. `LazyInstances` makes the ids unique."""

    def _numbered(self, identifier: str) -> str:
        return identifier

    def _require_new(self, identifier: str, where: str) -> None:
        pass


class StoredRows(Protocol):
    """Validated rows that can be read in any order.

    Attributes:
        given_ids: Whether the data contain ids. If not, ids are derived from the content of the rows, and may occur
            repeatedly. This is known only after all rows have been read once.
    """

    given_ids: bool

    def __len__(self) -> int:
        """Return the number of rows."""

    def read(self, rows: Iterable[int]) -> Iterator[Instance]:
        """Yield some rows, given by their positions.

        Raises:
            DataError: The rows cannot be read, or a row is invalid.
        """


class JsonLines:
    """The rows of a JSON Lines file. The position of each row is in a temporary file.

    Args:
        path: The file.

    Attributes:
        columns: The names of the columns of the rows that were read, in the order of their first occurrence.

    Raises:
        DataError: The file cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self.given_ids = False
        self.columns: dict[str, None] = {}
        self._lines = LineIndex(path)
        self._reader = RowReader(str(path), folder=path.parent)

    def __len__(self) -> int:
        return len(self._lines)

    def read(self, rows: Iterable[int]) -> Iterator[Instance]:
        for number, offset, content in self._lines.read(rows):
            where = f"{self._lines.path}:{number}"
            try:
                line = content.decode("utf-8")
            except UnicodeDecodeError as error:
                raise not_utf8(error, where, offset) from error
            row: Row = (number, parse_line(line.rstrip("\r\n"), where))
            self.given_ids = Column.ID in row[1]
            self.columns.update(dict.fromkeys(row[1]))
            yield self._reader.from_row(row)


class CopiedRows:
    """Rows that are copied to a temporary file. Their positions are in a temporary file, too.

    The files are deleted when the object is no longer used. The environment variable TMPDIR selects their folder.

    Args:
        instances: The rows. They are read once.
        name: Name of the data, for messages.
        given_ids: Whether the data contain ids.

    Raises:
        DataError: There are no rows, a row is invalid, or the temporary file cannot be written.
        AuditError: The environment variable TMPDIR names a folder that cannot be used.
    """

    def __init__(self, instances: Iterable[Instance], name: str, *, given_ids: bool) -> None:
        self.given_ids = given_ids
        self._name = name
        self._decoder = msgspec.msgpack.Decoder(Instance)
        folder = temporary_folder()
        self._file = tempfile.TemporaryFile(prefix="attnaudit-", dir=folder)  # noqa: SIM115 - open as long as this object
        self._ends = from_numbers(self._copy(instances), np.int64)
        if not len(self._ends):
            raise DataError(f"{name}: there are no rows. Expected at least one row with a text.")

    def _copy(self, instances: Iterable[Instance]) -> Iterator[int]:
        """Copy the rows to the file, and yield the position at which each row ends."""
        encoder = msgspec.msgpack.Encoder()
        end = 0
        for instance in instances:
            content = encoder.encode(instance)
            try:
                self._file.write(content)
            except OSError as error:
                raise self._unusable(error) from error
            end += len(content)
            yield end

    def __len__(self) -> int:
        return len(self._ends)

    def read(self, rows: Iterable[int]) -> Iterator[Instance]:
        for count, row in enumerate(rows, start=1):
            start, end = int(self._ends[row - 1]) if row else 0, int(self._ends[row])
            if count % RELEASE_EVERY == 0:
                release(self._ends)
            try:
                self._file.seek(start)
                content = self._file.read(end - start)
            except OSError as error:
                raise self._unusable(error) from error
            yield self._decoder.decode(content)

    def _unusable(self, error: OSError) -> DataError:
        return DataError(
            f"{self._name}: the rows cannot be copied to a temporary file in {tempfile.gettempdir()}: "
            f"{error.strerror or error}. Free space, or set the environment variable TMPDIR to another folder."
        )
