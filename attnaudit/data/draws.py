"""Draw the rows of a data set in a random order, and read no more rows than needed."""

from __future__ import annotations

import dataclasses
import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from attnaudit.data.files import not_utf8, parse_line, require_data_file
from attnaudit.data.lazy_rows import LazyInstances
from attnaudit.data.line_index import LineIndex
from attnaudit.data.row_parsing import InstanceReader, ordered_classes, require_rows
from attnaudit.data.sampling import first_in_random_order, in_random_order, sample_of
from attnaudit.data.sources import failure_of, instance_of, load, origin
from attnaudit.errors import AuditError, DataError
from attnaudit.instances import Dataset, Instance
from attnaudit.processes import return_free_memory
from attnaudit.records import HashedContent
from attnaudit.registry import datasets, has_random_order
from attnaudit.seeding import keyed_generator

#: The object that is returned instead of a row when there are no more rows.
_END = object()


def open_draws(name_or_path: str | Path, seed: int, *, lazily: bool = False) -> Draws:
    """Return the rows of a data set as an object that draws them in random order.

    Args:
        name_or_path: The name of a registered data set, or the path of a file (see `attnaudit.data.load`).
        seed: The seed of the order.
        lazily: Whether to read only the drawn rows of a .jsonl file. Errors in other rows are then not found.

    Raises:
        DataError: The data set is unknown or cannot be read, or a row that is read is invalid.
    """
    name = str(name_or_path)
    if name in datasets and has_random_order(datasets.get(name)):
        return StreamDraws(name, datasets.get(name))
    path = Path(name)
    if lazily and name not in datasets and path.suffix.lower() == ".jsonl" and path.is_file():
        require_data_file(path)
        return FileDraws(path, seed)
    return CompleteDraws(load(name_or_path, in_memory=False), seed)


class Draws(ABC):
    """The rows of a data set in a random order.

    Attributes:
        hashed: The content that `sha256` hashes.
    """

    hashed: ClassVar[HashedContent]

    @property
    @abstractmethod
    def size(self) -> int | None:
        """The number of rows; None if it is unknown or not yet known."""

    @property
    @abstractmethod
    def read(self) -> int:
        """The number of rows that were drawn and are valid."""

    @abstractmethod
    def first(self, count: int | None) -> Dataset:
        """Return the first `count` rows, or all rows if there are fewer or if `count` is None.

        Raises:
            DataError: There are no rows, or a row is invalid. The rows before the invalid row can still be drawn.
        """

    @abstractmethod
    def sha256(self, count: int) -> str:
        """Return the hash, in hexadecimal, that identifies the data if an audit measures the first `count` rows."""


class CompleteDraws(Draws):
    """The rows of a data set that was read completely, in the order of `attnaudit.data.sample`."""

    hashed = "rows"

    def __init__(self, dataset: Dataset, seed: int) -> None:
        self.dataset = dataset
        self._seed = seed
        self._order: Sequence[Instance] = ()
        if isinstance(dataset.instances, LazyInstances):
            return_free_memory()
        self._sha256 = dataset.audited_sha256()

    @property
    def size(self) -> int:
        return len(self.dataset.instances)

    @property
    def read(self) -> int:
        return self.size

    def first(self, count: int | None) -> Dataset:
        if count is None or count >= self.size:
            return self.dataset
        if isinstance(self.dataset.instances, LazyInstances):
            rows = first_in_random_order(self.dataset.instances.ids, count, self._seed)
            return sample_of(self.dataset, [self.dataset.instances[row] for row in rows], self._seed)
        self._order = self._order or in_random_order(self.dataset.instances, self._seed)
        return sample_of(self.dataset, self._order[:count], self._seed)

    def sha256(self, count: int) -> str:
        return self._sha256


class _DrawnOneByOne(Draws):
    """Rows that are drawn one by one and kept.

    Args:
        name: The name of the data set or the file, for messages.
        folder: The folder of the data file; None for a data set in Python.
    """

    def __init__(self, name: str, folder: Path | None = None) -> None:
        self._reader = InstanceReader(name, folder=folder)
        self._drawn: list[Instance] = []

    @property
    def read(self) -> int:
        return len(self._drawn)

    def _draw(self, count: int | None) -> tuple[Instance, ...]:
        """Draw rows until `count` rows are drawn, and return the first `count` rows."""
        if count is None or self.read < count:
            for instance in self._next_rows():
                self._drawn.append(dataclasses.replace(instance, drawn=self.read))
                if self.read == count:
                    break
        return require_rows(self._drawn[:count], self._reader.name)

    @abstractmethod
    def _next_rows(self) -> Iterator[Instance]:
        """Yield the rows that were not drawn yet."""


class FileDraws(_DrawnOneByOne):
    """The rows of a .jsonl file, in a random order that depends only on the seed and the number of lines."""

    hashed = "file"

    def __init__(self, path: Path, seed: int) -> None:
        super().__init__(str(path), path.parent)
        self.path = path
        self._seed = seed
        self._lines = LineIndex(path)
        lines = np.arange(len(self._lines), dtype=np.uint32)
        self._order = keyed_generator(seed, "order of the lines").permutation(lines)

    @property
    def size(self) -> int:
        return len(self._lines)

    def first(self, count: int | None) -> Dataset:
        instances = self._draw(count)
        return Dataset(
            name=self.path.stem,
            source=str(self.path),
            description=f"Rows of {self.path.name}.",
            instances=instances,
            classes=ordered_classes(instances),
            sample_seed=None if len(instances) == self.size else self._seed,
            rows=self.size,
        )

    def sha256(self, count: int) -> str:
        return self._lines.sha256

    def _next_rows(self) -> Iterator[Instance]:
        remaining = (int(line) for line in self._order[self.read :])
        for number, offset, content in self._lines.read(remaining):
            where = f"{self.path}:{number}"
            try:
                line = content.decode("utf-8")
            except UnicodeDecodeError as error:
                raise not_utf8(error, where, offset) from error
            yield self._reader.from_row((number, parse_line(line.rstrip("\r\n"), where)))


class StreamDraws(_DrawnOneByOne):
    """The rows that a registered function yields in random order."""

    hashed = "audited rows"

    def __init__(self, name: str, function: Callable[[], Any]) -> None:
        super().__init__(name)
        self._name = name
        self._function = function
        self._rows: Iterator[object] | None = None
        self._failure: DataError | None = None
        self._ended = False

    @property
    def size(self) -> int | None:
        return self.read if self._ended else None

    def first(self, count: int | None) -> Dataset:
        if count is None and not self._ended:
            raise DataError(
                f"data set '{self._name}': its rows are a stream of unknown length in random order, so not every row "
                "can be audited. Add --audit-max-instances N to audit a fixed sample, the first N rows; or add "
                "--audit-sequential to stop early."
            )
        instances = self._draw(count)
        return Dataset(
            name=self._name,
            source=origin(self._function),
            description=(inspect.getdoc(self._function) or "").partition("\n\n")[0],
            instances=instances,
            classes=ordered_classes(instances),
            rows=self.read if self._ended and len(instances) == self.read else -1,
        )

    def sha256(self, count: int) -> str:
        return self.first(count).audited_sha256()

    def _next_rows(self) -> Iterator[Instance]:
        while (item := self._next_item()) is not _END:
            try:
                yield instance_of(item, self.read + 1, self._reader)
            except DataError as error:
                self._failure = error
                raise

    def _next_item(self) -> object:
        """Return the next row that the function yields; _END after the last one.

        After the function has raised an error, every later call raises the same error. Without this, a generator that
        has failed would seem to have no further rows.
        """
        if self._failure is not None:
            raise self._failure
        try:
            if self._rows is None:
                self._rows = _iterator(self._function(), self._name, self._function)
            item = next(self._rows, _END)
        except DataError as error:
            self._failure = error
            raise
        except AuditError as error:
            self._failure = DataError(str(error))
            raise
        except BaseException as error:
            self._failure = failure_of(self._function, self._name, error)
            if isinstance(error, (Exception, SystemExit, GeneratorExit)):
                raise self._failure from error
            raise  # Ctrl-C, and what pytest raises for a test that was skipped or took too long
        self._ended = item is _END
        return item


def _iterator(produced: object, name: str, function: Callable[[], Any]) -> Iterator[object]:
    """Return an iterator over the rows that a registered function returned."""
    if isinstance(produced, Dataset) or not isinstance(produced, Iterable):
        raise DataError(
            f"data set '{name}': {origin(function)} returned {type(produced).__name__}. With order=\"random\", "
            "expected an iterable of Instance objects or of dicts with the key 'text' or 'file'."
        )
    return iter(produced)
