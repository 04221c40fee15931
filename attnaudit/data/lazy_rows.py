"""Instances of large data sets, in the order of their ids. Each instance is read only when it is needed."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import overload

import numpy as np
from numpy.typing import NDArray

from attnaudit.data.column_names import described_columns
from attnaudit.data.row_parsing import dataset_of, ordered_labels
from attnaudit.data.sorted_strings import StoredStrings, StringWriter, in_order, stored
from attnaudit.data.stored_rows import JsonLines, StoredRows
from attnaudit.data.stored_sources import stored_sources
from attnaudit.disk_arrays.chosen_rows import ChosenRows
from attnaudit.disk_arrays.filed_arrays import ArrayWriter, blocks
from attnaudit.errors import DataError
from attnaudit.instances import Dataset, Instance

#: Number of rows that are read at once.
ROWS_AT_ONCE = 256
#: Number of labels that are collected before they are written.
LABELS_AT_ONCE = 65_536


class LazyInstances(Sequence[Instance]):
    """Instances outside memory, sorted by id.

    All rows are read once to validate them. Only the id, the label, the source and the position of every row are kept,
    in temporary files.

    Args:
        rows: The rows.

    Attributes:
        sorted_by_id: True.
        ids: The ids, in ascending order.
        labels: The label of every instance.
        have_sources: Whether any instance has a source.
        sources: The source of every instance; None if no instance has one.
        have_label_lists: Whether any instance has a list of labels.
        classes: The labels that occur in the column `label`.

    Raises:
        DataError: The rows cannot be read, or a row is invalid.
    """

    sorted_by_id = True

    def __init__(self, rows: StoredRows) -> None:
        self._rows = rows
        labels: dict[str, int] = {}  # label -> its code
        self.have_sources = self.have_label_lists = False
        with ArrayWriter() as writer, StringWriter() as source_writer:
            ids = stored(self._ids_of_rows(labels, writer, source_writer))
            codes = writer.joined()
            sources = source_writer.joined() if self.have_sources else None
        sorted_ids = in_order(ids)
        if sorted_ids.any_repeated and rows.given_ids:
            line = int(np.flatnonzero(sorted_ids.earlier)[0])  # the first of the lines that repeat an id
            place = int(np.flatnonzero(sorted_ids.order == line)[0])
            before, again = rows.read([int(sorted_ids.order[place - 1]), line])
            raise DataError(
                f"{again.where}: column 'id': {again.id!r} was given before, in {before.where}. Make the ids unique, "
                "or remove the column: ids are then derived from the content."
            )
        if sorted_ids.any_repeated:
            sorted_ids = in_order(stored(_numbered(ids, sorted_ids.earlier)))
        self._order = sorted_ids.order
        self.ids = sorted_ids.strings
        self.sources = None if sources is None else stored_sources(sources, self._order)
        self.labels = ChosenRows[str | None]([*labels, None], codes[self._order])  # the code -1 is the last entry
        self.classes = ordered_labels(labels)

    def _ids_of_rows(self, labels: dict[str, int], codes: ArrayWriter, sources: StringWriter) -> Iterator[str]:
        """Read and validate all rows, and yield their ids.

        Args:
            labels: Gets the code of each label that occurs.
            codes: Gets the code of the label of each row; -1 for rows without a label.
            sources: Gets the source of each row; "" for rows without a source.
        """
        some: list[int] = []
        names: list[str] = []
        for instance in self._rows.read(range(len(self._rows))):
            self.have_sources |= bool(instance.source)
            self.have_label_lists |= instance.labels is not None
            some.append(-1 if instance.label is None else labels.setdefault(instance.label, len(labels)))
            names.append(instance.source or "")
            if len(some) == LABELS_AT_ONCE:
                codes.add(np.array(some, dtype=np.int32))
                sources.add_strings(names)
                some, names = [], []
            yield instance.id
        codes.add(np.array(some, dtype=np.int32))
        sources.add_strings(names)

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
        read = self._rows.read(self._order[np.array(places, dtype=np.int64)].tolist())
        ids = (
            self.ids[places.start : places.stop : places.step]
            if isinstance(places, range)
            else [self.ids[place] for place in places]
        )
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


def load_lazily(path: Path) -> Dataset:
    """Load a JSON Lines file as a data set whose instances are read when they are needed.

    Raises:
        DataError: The file cannot be read, or a row is invalid.
    """
    rows = JsonLines(path)
    instances = LazyInstances(rows)  # reads all rows, so that all columns are known
    description = described_columns(rows.columns, path)
    return dataset_of(instances, name=path.stem, source=str(path), description=description)


def _numbered(ids: StoredStrings, earlier: NDArray[np.int32]) -> Iterator[str]:
    """Yield the ids, with the endings "#2", "#3" and so on for repetitions, as `InstanceReader` does.

    Args:
        ids: The ids of the n lines.
        earlier: (n,) The number of earlier lines with the same id.
    """
    for rows, counts in blocks(len(ids), earlier):
        for one, count in zip(ids[rows], counts[rows].tolist(), strict=True):
            yield f"{one}#{count + 1}" if count else one
