"""Read the row groups of a Parquet file one by one, without the index of all of them in memory.

The index at the end of a Parquet file describes every column of every row group. pyarrow can only read it as a whole,
and then needs about 1 KiB per column and row group. Here, pyarrow is given an index that describes one row group.

The index is in the compact protocol of Thrift, which is described at
https://github.com/apache/thrift/blob/master/doc/specs/thrift-compact-protocol.md.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    import pyarrow as pa

MAGIC = b"PAR1"
#: The numbers of fields: of the index (`FileMetaData` in parquet.thrift), and of a row group (`RowGroup`).
ROWS, ROW_GROUPS = 3, 4
ROWS_OF_GROUP = 3
#: The types of values.
TRUE, FALSE, BYTE, DOUBLE, BINARY, LIST, STRUCT = 1, 2, 3, 7, 8, 9, 12
INTEGERS = (4, 5, 6)
#: The sizes of items of a list, in bytes, if they are the same for all values of the type.
SIZES = {TRUE: 1, FALSE: 1, BYTE: 1, DOUBLE: 8}

Content: TypeAlias = bytes | mmap.mmap


class RowGroups:
    """The row groups of a Parquet file.

    Args:
        path: The file.
        dictionaries: The names of columns of strings that are read as dictionaries, which saves memory.

    Attributes:
        path: The file.
        rows: The number of rows.
        schema: The schema.

    Raises:
        pyarrow.ArrowInvalid: The file is not a Parquet file, or its index is damaged.
        OSError: The file cannot be read.
    """

    def __init__(self, path: Path, *, dictionaries: Sequence[str] = ()) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        self.path = path
        self._dictionaries = list(dictionaries)
        if path.stat().st_size < 2 * len(MAGIC) + 4:
            raise pa.ArrowInvalid("the file is too short for a Parquet file")
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            end = len(content) - len(MAGIC) - 4
            start = end - int.from_bytes(content[end : end + 4], "little")
            if content[-len(MAGIC) :] != MAGIC or start < len(MAGIC):
                raise pa.ArrowInvalid("the file does not end as a Parquet file does")
            try:
                self._read_index(content, start)
            except (IndexError, KeyError, RecursionError) as error:
                raise pa.ArrowInvalid("the index of the row groups is damaged") from error
        self.schema: pa.Schema = pq.read_schema(_empty_file(self._index(b"", 0)))

    def _read_index(self, content: Content, start: int) -> None:
        """Read the fields of the index, and find where each row group is described.

        Raises:
            IndexError: The index ends too early.
            KeyError: A value has an unknown type, or a field is missing.
            RecursionError: Values are nested too deeply.
        """
        fields = {number: (kind, begin, end) for number, kind, begin, end in _fields(content, start)}
        self.rows = _signed(content, fields[ROWS][1])
        count, _, first = _list(content, fields[ROW_GROUPS][1])
        self._starts = [first]
        for _ in range(count):
            self._starts.append(_after(content, self._starts[-1], STRUCT))
        self._fields = [
            (number, kind, b"" if number in (ROWS, ROW_GROUPS) else content[begin:end])
            for number, (kind, begin, end) in fields.items()
        ]

    def __len__(self) -> int:
        return len(self._starts) - 1

    def __iter__(self) -> Iterator[Any]:
        """Yield a `pyarrow.parquet.ParquetFile` for each row group, in which this is the only row group.

        Raises:
            pyarrow.ArrowInvalid: The file was changed since its index was read.
            OSError: The file cannot be read.
        """
        import pyarrow as pa
        import pyarrow.parquet as pq

        with self.path.open("rb") as file:
            for begin, end in pairwise(self._starts):
                file.seek(begin)
                group = file.read(end - begin)
                try:
                    rows = {number: _signed(group, at) for number, _, at, _ in _fields(group, 0)}[ROWS_OF_GROUP]
                except (IndexError, KeyError) as error:
                    raise pa.ArrowInvalid("the file was changed while it was being read") from error
                metadata = pq.read_metadata(_empty_file(self._index(group, rows)))
                with pq.ParquetFile(self.path, metadata=metadata, read_dictionary=self._dictionaries) as one:
                    yield one

    def _index(self, group: bytes, rows: int) -> bytes:
        """Return an index with one row group, or with none if `group` is empty."""
        replaced = {ROWS: _encoded(rows), ROW_GROUPS: bytes([(16 if group else 0) | STRUCT]) + group}
        fields = (
            bytes([kind]) + _encoded(number) + replaced.get(number, value) for number, kind, value in self._fields
        )
        return b"".join(fields) + b"\0"


def statistics_of(group: Any, column: str) -> Any:
    """Return the statistics of a column in a row group; None if the file has none."""
    metadata = group.metadata.row_group(0)
    chunks = (metadata.column(i) for i in range(metadata.num_columns))
    return next((chunk.statistics for chunk in chunks if chunk.path_in_schema == column), None)


def only_value(group: Any, column: str) -> str | None:
    """Return the value that a column has in all rows of a row group; None if there are several or it is unknown."""
    known = statistics_of(group, column)
    if known is None or not known.has_min_max or known.min != known.max:
        return None
    return str(known.min)


def _empty_file(index: bytes) -> Any:
    """Return a Parquet file that has an index, but no content."""
    import pyarrow as pa

    return pa.BufferReader(MAGIC + index + len(index).to_bytes(4, "little") + MAGIC)


def _fields(content: Content, at: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield the number and the type of each field of a struct, and where its value begins and ends."""
    number = 0
    while header := content[at]:
        at += 1
        if header >> 4:
            number += header >> 4
        else:
            number = _signed(content, at)
            at = _after(content, at, INTEGERS[0])
        end = _after(content, at, header & 15)
        yield number, header & 15, at, end
        at = end


def _after(content: Content, at: int, kind: int) -> int:
    """Return where a value of a type ends. In a struct, the type of a Boolean is its value."""
    if kind in INTEGERS:
        while content[at] & 128:
            at += 1
        return at + 1
    if kind == STRUCT:
        while header := content[at]:
            at += 1
            if not header >> 4:  # the number of the field follows
                at = _after(content, at, INTEGERS[0])
            at = _after(content, at, header & 15)
        return at + 1
    if kind == BINARY:
        return _unsigned(content, at) + _after(content, at, INTEGERS[0])
    if kind == LIST:
        count, of_items, at = _list(content, at)
        if of_items in SIZES:
            return at + count * SIZES[of_items]
        for _ in range(count):
            at = _after(content, at, of_items)
        return at
    return at if kind in (TRUE, FALSE) else at + SIZES[kind]


def _list(content: Content, at: int) -> tuple[int, int, int]:
    """Return the number and the type of the items of a list, and where the first of them begins."""
    header = content[at]
    if header >> 4 < 15:
        return header >> 4, header & 15, at + 1
    return _unsigned(content, at + 1), header & 15, _after(content, at + 1, INTEGERS[0])


def _unsigned(content: Content, at: int) -> int:
    """Return an integer of any length."""
    number = shift = 0
    while content[at] & 128:
        number |= (content[at] & 127) << shift
        shift, at = shift + 7, at + 1
    return number | content[at] << shift


def _signed(content: Content, at: int) -> int:
    """Return an integer of any length that may be negative."""
    number = _unsigned(content, at)
    return number >> 1 ^ -(number & 1)


def _encoded(number: int) -> bytes:
    """Return the encoding of an integer, which `_signed` reads. A damaged index can contain negative ones."""
    number = 2 * number if number >= 0 else -2 * number - 1
    found = bytearray()
    while number > 127:
        found.append(number & 127 | 128)
        number >>= 7
    return bytes([*found, number])
