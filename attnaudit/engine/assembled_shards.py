"""Merge the numbers of all shards of a data set, in memory or, for many rows, in files."""

from __future__ import annotations

import hashlib
import tempfile
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import numpy as np
from numpy.typing import DTypeLike, NDArray

from attnaudit.arrays import Floats, Integers
from attnaudit.disk_arrays.filed_arrays import blocks
from attnaudit.disk_arrays.mapped_arrays import ROWS_IN_MEMORY, new_in_file
from attnaudit.disk_arrays.temporary_files import temporary_files, temporary_folder
from attnaudit.engine.ragged_columns import FiledStrings, RaggedBuilder, RaggedColumn
from attnaudit.engine.shard_numbers import Rows, ShardNumbers
from attnaudit.errors import AuditError
from attnaudit.processes import return_free_memory, return_large_arrays

#: After this number of rows, memory is returned to the operating system, if the numbers are in files.
RELEASE_EVERY = 16_384


class AssembledShards:
    """The numbers of all n rows. Add the shards in the order of their rows.

    Args:
        n: Number of rows of the whole data set.

    Attributes:
        folder: The temporary folder of the files; None if all numbers are in memory.
        predicted: (n,) predicted class indices.
        summaries: The summaries of the attention of each instance.
        scalars: Column name -> (n,) numbers; NaN where undefined.
        facts: Name -> a short text that says how something was measured.
        per_token: Names of the vector columns with one number per real unit.
        shared: Names of the columns that do not depend on the reading.
        passes: Kind of work -> how often it was done.
        batch_size: The largest number of instances in a batch.
        repeated_rows: The number of instances that ran a second time.
        repeated_difference: The largest difference between the two results of these instances.
    """

    @temporary_files()
    def __init__(self, n: int) -> None:
        self.n = n
        self.folder: tempfile.TemporaryDirectory[str] | None = None
        if n > ROWS_IN_MEMORY:
            self.folder = tempfile.TemporaryDirectory(prefix="attnaudit-", dir=temporary_folder())
        self._sequences: NDArray[np.void] = np.zeros(0, dtype="V1")
        self.predicted: Integers = self._array(np.int64)
        self.scalars: dict[str, Floats] = {}
        self.facts: dict[str, str] = {}
        self.per_token: set[str] = set()
        self.shared: set[str] = set()
        self.passes: Counter[str] = Counter()
        self.measure_seconds: defaultdict[str, float] = defaultdict(float)
        self.measure_passes: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self.measure_uses: defaultdict[str, set[str]] = defaultdict(set)
        self.batch_size = self.repeated_rows = 0
        self.repeated_difference = 0.0
        self._rows = 0
        self._files = 0
        self._vectors: dict[str, RaggedBuilder] = {}
        self._states: dict[str, RaggedBuilder] = {}
        self._summaries = self._builder()
        self._tokens: list[list[str]] = []
        self._token_file: BinaryIO | None = None
        if self.folder is not None:
            return_large_arrays()
            return_free_memory()
            self._token_file = (Path(self.folder.name) / "tokens").open("wb")
            self._token_ends: Integers = self._array(np.int64)

    def _path(self) -> Path | None:
        """Return the path of a new file; None if all numbers are in memory."""
        self._files += 1
        return None if self.folder is None else Path(self.folder.name) / str(self._files)

    def _builder(self) -> RaggedBuilder:
        return RaggedBuilder(self._path())

    @temporary_files()
    def add(self, shard: ShardNumbers) -> None:
        """Add the next shard.

        Raises:
            AuditError: A temporary file cannot be written, or the values of a column have another data type or shape
                than in earlier shards.
        """
        first, stop = self._rows, self._rows + len(shard)
        self._rows = stop
        if not len(self._sequences):
            self._sequences = self._array(f"V{len(shard.sequences[0])}")
        self._sequences[first:stop] = np.frombuffer(b"".join(shard.sequences), dtype=self._sequences.dtype)
        self.predicted[first:stop] = shard.predicted
        self._add_tokens(shard.tokens, first)
        for name in shard.scalars:
            if name not in self.scalars:
                self.scalars[name] = self._array(np.float64)
                self.scalars[name][:first] = np.nan
        for name, column in self.scalars.items():
            column[first:stop] = shard.scalars.get(name, np.nan)
        summaries = Rows(shard.summaries.reshape(-1), np.full(len(shard), shard.summaries.shape[1], dtype=np.int64))
        self._summaries.add(*summaries)
        for builders, columns in ((self._vectors, shard.vectors), (self._states, shard.states)):
            for name, rows in columns.items():
                if name not in builders:
                    builders[name] = self._builder()
                    builders[name].add_empty(first)
                _append(builders[name], name, rows)
            for name in builders.keys() - columns.keys():
                builders[name].add_empty(len(shard))
        self.facts.update(shard.facts)
        self.per_token |= shard.per_token
        self.shared |= shard.shared
        self.passes.update(shard.passes)
        for name, seconds in shard.measure_seconds.items():
            self.measure_seconds[name] += seconds
        for name, counts in shard.measure_passes.items():
            self.measure_passes[name].update(counts)
        for name, used in shard.measure_uses.items():
            self.measure_uses[name].update(used)
        self.batch_size = max(self.batch_size, shard.batch_size)
        self.repeated_rows += shard.repeated_rows
        self.repeated_difference = max(self.repeated_difference, shard.repeated_difference)
        if not first or first // RELEASE_EVERY < stop // RELEASE_EVERY:
            self.release_memory()

    def release_memory(self) -> None:
        """Return memory to the operating system, if the numbers are in files."""
        if self.folder is not None:
            return_free_memory()

    def _array(self, dtype: DTypeLike) -> NDArray[Any]:
        """Return an array (n,) of zeros, in memory or in a file."""
        return np.zeros(self.n, dtype=dtype) if self.folder is None else new_in_file(self.n, dtype)

    def _add_tokens(self, tokens: list[list[str]], first: int) -> None:
        """Add the tokens of the next rows, of which the first is the row `first`."""
        if self._token_file is None:
            self._tokens += tokens
            return
        for number, row in enumerate(tokens, start=first):
            self._token_file.write(msgspec.msgpack.encode(row))
            self._token_ends[number] = self._token_file.tell()

    @property
    @temporary_files()
    def tokens(self) -> Sequence[Sequence[str]]:
        """The real units of each instance, as strings."""
        if self.folder is None or self._token_file is None:
            return self._tokens
        self._token_file.flush()
        return FiledStrings(Path(self.folder.name) / "tokens", self._token_ends)

    def sequences(self) -> NDArray[np.void]:
        """Return a hash (n,) of the tokens of each instance."""
        return self._sequences

    @property
    def summaries(self) -> RaggedColumn:
        """The summaries of the attention of each instance."""
        return self._summaries.column()

    def vectors(self) -> dict[str, RaggedColumn]:
        """Return column name -> the arrays of the rows. Columns with the same lengths share their `ends`."""
        known: dict[bytes, Integers] = {}
        found = {}
        for name, builder in self._vectors.items():
            column = found[name] = builder.column()
            digest = hashlib.sha256()
            for rows, ends in blocks(len(column), column.ends):
                digest.update(ends[rows])
            column.ends = known.setdefault(digest.digest(), column.ends)
        return found

    def states(self) -> dict[str, RaggedColumn]:
        """Return name -> the arrays of the rows that `StatefulMeasure.finish` reads."""
        return {name: builder.column() for name, builder in self._states.items()}


def _append(builder: RaggedBuilder, name: str, rows: Rows) -> None:
    """Append rows to a column.

    Raises:
        AuditError: The data type or the shape of their values differs from that of earlier rows.
    """
    try:
        builder.add(*rows)
    except ValueError as error:
        raise AuditError(
            f"The measure of '{name}' returned values of different kinds: {error}. Return values of one data type and "
            "one shape for all instances."
        ) from error
