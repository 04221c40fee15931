"""Instances of large data sets, in the order of their ids. Each instance is read only when it is needed."""

from __future__ import annotations

import dataclasses
from array import array
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import numpy as np
from numpy.typing import NDArray

from attnaudit.arrays import Integers
from attnaudit.data.column_names import described_columns
from attnaudit.data.row_parsing import dataset_of, ordered_labels
from attnaudit.data.stored_rows import JsonLines, StoredRows
from attnaudit.errors import DataError
from attnaudit.instances import Dataset, Instance
from attnaudit.mapped_arrays import in_file

if TYPE_CHECKING:
    import pyarrow as pa

#: Number of rows that are read at once.
ROWS_AT_ONCE = 256
#: Number of ids that are collected before they are packed.
IDS_AT_ONCE = 65_536


class LazyInstances(Sequence[Instance]):
    """Instances outside memory, sorted by id.

    All rows are read once to validate them. Only the id, the label and the position of every row are kept, in temporary
    files.

    Args:
        rows: The rows.

    Attributes:
        sorted_by_id: True.
        ids: The ids, in ascending order.
        labels: The label of every instance.
        have_sources: Whether any instance has a source.
        have_label_lists: Whether any instance has a list of labels.
        classes: The labels that occur in the column `label`.

    Raises:
        DataError: The rows cannot be read, or a row is invalid.
    """

    sorted_by_id = True

    def __init__(self, rows: StoredRows) -> None:
        self._rows = rows
        labels: dict[str, int] = {}  # label -> its code
        codes = array("i")
        self.have_sources = self.have_label_lists = False

        def ids() -> Iterator[str]:
            for instance in rows.read(range(len(rows))):
                self.have_sources |= instance.source is not None
                self.have_label_lists |= instance.labels is not None
                codes.append(-1 if instance.label is None else labels.setdefault(instance.label, len(labels)))
                yield instance.id

        found = _packed(ids())
        order = _order(found)
        earlier = _earlier(found, order)
        if earlier.any() and rows.given_ids:
            line = int(np.flatnonzero(earlier)[0])  # the first of the lines that repeat an id
            place = int(np.flatnonzero(order == line)[0])
            before, again = rows.read([int(order[place - 1]), line])
            raise DataError(
                f"{again.where}: column 'id': {again.id!r} was given before, in {before.where}. Make the ids unique, "
                "or remove the column: ids are then derived from the content."
            )
        if earlier.any():
            found = _packed(_numbered(found, earlier))
            order = _order(found)
        del earlier
        self._order = in_file(order)
        self.ids = _Strings(_mapped(found.take(order)))
        self.labels = _Labels(in_file(np.array(codes, dtype=np.int32)[order]), [*labels])
        self.classes = ordered_labels(labels)

    def __len__(self) -> int:
        return len(self._order)

    @overload
    def __getitem__(self, row: int) -> Instance: ...
    @overload
    def __getitem__(self, row: slice) -> list[Instance]: ...
    def __getitem__(self, row: int | slice) -> Instance | list[Instance]:
        if isinstance(row, slice):
            return self._read(range(*row.indices(len(self))))
        if not -len(self) <= row < len(self):
            raise IndexError(f"row {row} of {len(self)}")
        return self._read([row % len(self)])[0]

    def __iter__(self) -> Iterator[Instance]:
        for first in range(0, len(self), ROWS_AT_ONCE):
            yield from self._read(range(first, min(first + ROWS_AT_ONCE, len(self))))

    def read_later(self, start: int, stop: int) -> Sequence[Instance]:
        """Return the instances between two places. They are read when they are first used."""
        return _Later(self, range(*slice(start, stop).indices(len(self))))

    def _read(self, places: Sequence[int]) -> list[Instance]:
        """Return the instances at some places in the order of the ids."""
        read = self._rows.read(self._order[list(places)].tolist())
        ids = (self.ids[place] for place in places)
        return [
            one if one.id == unique else dataclasses.replace(one, id=unique)
            for unique, one in zip(ids, read, strict=True)
        ]


class _Later(Sequence[Instance]):
    """Consecutive instances, which are read when they are first used.

    Args:
        instances: All instances.
        places: The places of these instances among all instances.
    """

    def __init__(self, instances: LazyInstances, places: range) -> None:
        self._instances = instances
        self._places = places
        self._found: list[Instance] | None = None

    @property
    def ids(self) -> Sequence[str]:
        """The ids of the instances, without reading them."""
        return self._instances.ids[self._places.start : self._places.stop]

    def __len__(self) -> int:
        return len(self._places)

    @overload
    def __getitem__(self, row: int) -> Instance: ...
    @overload
    def __getitem__(self, row: slice) -> list[Instance]: ...
    def __getitem__(self, row: int | slice) -> Instance | list[Instance]:
        if self._found is None:
            self._found = self._instances[self._places.start : self._places.stop]
        return self._found[row]

    def __reduce__(self) -> tuple[type[list[Instance]], tuple[list[Instance]]]:
        """Pickle the instances themselves, because another process cannot read them."""
        return list, (self[:],)


class _Labels(Sequence[str | None]):
    """The label of every instance, stored as a number.

    Args:
        codes: (n,) The position of each label in `names`; -1 for instances without a label.
        names: The labels that occur.
    """

    def __init__(self, codes: NDArray[np.int32], names: list[str]) -> None:
        self._codes = codes
        self._names: list[str | None] = [*names, None]  # the code -1 is the last entry

    def __len__(self) -> int:
        return len(self._codes)

    @overload
    def __getitem__(self, row: int) -> str | None: ...
    @overload
    def __getitem__(self, row: slice) -> list[str | None]: ...
    def __getitem__(self, row: int | slice) -> str | list[str | None] | None:
        if isinstance(row, slice):
            return [self._names[code] for code in self._codes[row].tolist()]
        return self._names[int(self._codes[row])]

    def __iter__(self) -> Iterator[str | None]:
        for first in range(0, len(self), ROWS_AT_ONCE):
            yield from self[first : first + ROWS_AT_ONCE]


class _Strings(Sequence[str]):
    """An Arrow array of strings as a sequence."""

    def __init__(self, array: pa.Array) -> None:
        self._array: Any = array

    def __len__(self) -> int:
        return len(self._array)

    @overload
    def __getitem__(self, row: int) -> str: ...
    @overload
    def __getitem__(self, row: slice) -> list[str]: ...
    def __getitem__(self, row: int | slice) -> str | list[str]:
        if isinstance(row, slice):
            start, stop, step = row.indices(len(self))
            strings: list[str] = self._array[start:stop].to_pylist()
            return strings[::step]
        string: str = self._array[row].as_py()
        return string

    def __iter__(self) -> Iterator[str]:
        for first in range(0, len(self), ROWS_AT_ONCE):
            yield from self._array.slice(first, ROWS_AT_ONCE).to_pylist()


def load_lazily(path: Path) -> Dataset:
    """Load a JSON Lines file as a data set whose instances are read when they are needed.

    Raises:
        DataError: The file cannot be read, or a row is invalid.
    """
    rows = JsonLines(path)
    instances = LazyInstances(rows)  # reads all rows, so that all columns are known
    description = described_columns(rows.columns, path)
    return dataset_of(instances, name=path.stem, source=str(path), description=description)


def _packed(ids: Iterable[str]) -> pa.Array:
    """Return ids as one Arrow array."""
    import pyarrow as pa

    chunks, some = [], []
    for one in ids:
        some.append(one)
        if len(some) == IDS_AT_ONCE:
            chunks.append(pa.array(some, type=pa.large_string()))
            some = []
    chunks.append(pa.array(some, type=pa.large_string()))
    return pa.concat_arrays(chunks)


def _mapped(strings: pa.Array) -> pa.Array:
    """Move an Arrow array of strings to temporary files, from which it is read when it is needed."""
    import pyarrow as pa

    buffers = [
        None if one is None or not one.size else pa.py_buffer(in_file(np.frombuffer(one, dtype=np.uint8)))
        for one in strings.buffers()
    ]
    return pa.Array.from_buffers(strings.type, len(strings), buffers, strings.null_count, strings.offset)


def _order(ids: pa.Array) -> Integers:
    """Return the order that sorts ids. UTF-8 sorts as Python's strings do; equal ids keep their order."""
    import pyarrow as pa
    import pyarrow.compute as pc

    table = pa.table({"id": ids, "line": np.arange(len(ids), dtype=np.int64)})
    order = pc.sort_indices(table, sort_keys=[("id", "ascending"), ("line", "ascending")])
    sorted_lines: Integers = order.to_numpy().astype(np.int64)
    return sorted_lines


def _earlier(ids: pa.Array, order: Integers) -> NDArray[np.int32]:
    """Return, for each line, the number of earlier lines with the same id.

    Args:
        ids: The ids of the n lines.
        order: (n,) The order that sorts the ids.
    """
    import pyarrow.compute as pc

    ordered = ids.take(order)
    same = pc.equal(ordered.slice(1), ordered.slice(0, max(0, len(ordered) - 1))).to_numpy(zero_copy_only=False)
    places = np.arange(len(order), dtype=np.int32)
    firsts = np.maximum.accumulate(np.where(np.append(False, same)[: len(order)], 0, places))
    earlier = np.empty(len(order), dtype=np.int32)
    earlier[order] = places - firsts
    return earlier


def _numbered(ids: pa.Array, earlier: NDArray[np.int32]) -> Iterator[str]:
    """Yield the ids, with the endings "#2", "#3" and so on for repetitions, as `InstanceReader` does."""
    for line, one in enumerate(_Strings(ids)):
        yield f"{one}#{earlier[line] + 1}" if earlier[line] else one
