"""Many strings in temporary files, and their order, with only some of them in memory at a time."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, overload

import numpy as np
from numpy.typing import NDArray

from attnaudit.arrays import Integers
from attnaudit.disk_arrays import filed_blocks
from attnaudit.disk_arrays.filed_arrays import ArrayWriter, blocks, filled, in_memory, number_of_blocks, release

if TYPE_CHECKING:
    import pyarrow as pa

#: The number of strings that are read at once.
STRINGS_AT_ONCE = 256
#: The number of strings per block that are drawn to divide the strings into ranges, before they are sorted.
SAMPLED = 100


class StoredStrings(Sequence[str]):
    """Strings, in temporary files if there are many.

    Args:
        content: (bytes,) The UTF-8 encoded strings, one after the other.
        ends: (n,) The position in `content` at which each string ends.
    """

    def __init__(self, content: NDArray[np.uint8], ends: Integers) -> None:
        self._content = content
        self._ends = ends

    def __len__(self) -> int:
        return len(self._ends)

    @overload
    def __getitem__(self, row: int) -> str: ...
    @overload
    def __getitem__(self, row: slice) -> list[str]: ...
    def __getitem__(self, row: int | slice) -> str | list[str]:
        if isinstance(row, slice):
            start, stop, step = row.indices(len(self))
            if step < 0:
                return [self[i] for i in range(start, stop, step)]
            strings: list[str] = self.arrow(start, max(start, stop)).to_pylist()
            return strings[::step]
        if not -len(self) <= row < len(self):
            raise IndexError(f"row {row} of {len(self)}")
        row %= len(self)
        return self[row : row + 1][0]

    def __iter__(self) -> Iterator[str]:
        for first in range(0, len(self), STRINGS_AT_ONCE):
            yield from self[first : first + STRINGS_AT_ONCE]

    def arrow(self, start: int, stop: int) -> pa.Array:
        """Return a copy of consecutive strings as an Arrow array. The files do not stay in memory."""
        import pyarrow as pa

        ends = np.array(in_memory(self._ends[start:stop]), dtype=np.int64)
        first = int(self._ends[start - 1]) if start and len(ends) else 0
        offsets = np.append(0, ends - first).astype(np.int64)
        content = in_memory(self._content[first : first + int(offsets[-1])]).tobytes()
        release(self._ends, self._content)
        return pa.LargeStringArray.from_buffers(len(ends), pa.py_buffer(offsets), pa.py_buffer(content))


@dataclass(frozen=True, slots=True, kw_only=True)
class SortedStrings:
    """Sorted strings. UTF-8 sorts as Python's strings do; equal strings keep their order.

    Attributes:
        order: (n,) The position of each of the sorted strings before sorting.
        strings: The sorted strings.
        earlier: (n,) For each string before sorting, the number of equal strings before it.
        any_repeated: Whether any string occurs twice.
    """

    order: Integers
    strings: StoredStrings
    earlier: NDArray[np.int32]
    any_repeated: bool


class StringWriter:
    """Collects strings in temporary files. Use it in a `with` statement."""

    def __init__(self) -> None:
        self._content = ArrayWriter()
        self._ends = ArrayWriter()
        self._end = 0

    def __enter__(self) -> StringWriter:
        return self

    def __exit__(self, *error: object) -> None:
        self._content.__exit__(*error)
        self._ends.__exit__(*error)

    def add(self, strings: pa.Array) -> None:
        """Add the next strings, an Arrow array of the type large_string without empty cells."""
        _, offsets, content = strings.buffers()
        ends = np.frombuffer(offsets, dtype=np.int64)[strings.offset : strings.offset + len(strings) + 1]
        begin, end = (int(ends[0]), int(ends[-1])) if len(strings) else (0, 0)
        self._content.add(np.frombuffer(content or b"", dtype=np.uint8)[begin:end].copy())
        self._ends.add(ends[1:] - begin + self._end)
        self._end += end - begin

    def add_strings(self, strings: list[str]) -> None:
        """Add the next strings."""
        import pyarrow as pa

        self.add(pa.array(strings, type=pa.large_string()))

    def joined(self) -> StoredStrings:
        """Return all strings."""
        return StoredStrings(self._content.joined(), self._ends.joined())


def stored(strings: Iterable[str]) -> StoredStrings:
    """Store strings, in temporary files if there are many."""
    remaining = iter(strings)
    with StringWriter() as writer:
        while True:
            some = list(islice(remaining, filed_blocks.BLOCK))
            writer.add_strings(some)
            if len(some) < filed_blocks.BLOCK:
                return writer.joined()


def in_order(strings: StoredStrings) -> SortedStrings:
    """Sort strings. The memory depends on their lengths, but not on their number."""
    n, any_repeated = len(strings), False
    earlier: NDArray[np.int32] = filled(n, 0, np.int32)
    with ArrayWriter() as order, StringWriter() as ordered:
        for places, some, counts in _sorted_parts(strings):
            order.add(places)
            ordered.add(some)
            repeated = counts > 0
            if repeated.any():
                any_repeated = True
                earlier[places[repeated]] = counts[repeated]
        return SortedStrings(order=order.joined(), strings=ordered.joined(), earlier=earlier, any_repeated=any_repeated)


def _sorted_parts(strings: StoredStrings) -> Iterator[tuple[Integers, pa.Array, NDArray[np.int32]]]:
    """Yield the places of the strings in ascending order, the strings, and for each the number of equal ones before it.

    The strings are divided into ranges by some of them. Each range has about as many strings as a block, and is sorted
    in memory.
    """
    import pyarrow as pa

    n = len(strings)
    limits = _limits(strings)
    with ArrayWriter() as writer:
        for rows, *_ in blocks(n):
            some = strings[rows]
            # 2 k for strings between the limits k - 1 and k, and 2 k + 1 for strings that equal the limit k
            numbers = (bisect_left(limits, one) + bisect_right(limits, one) for one in some)
            writer.add(np.fromiter(numbers, np.int32, len(some)))
        if not n:
            writer.add(np.zeros(0, np.int32))
        ranges: NDArray[np.int32] = writer.joined()
    for number in range(2 * len(limits) + 1):
        members = _members(strings, ranges, number)
        if number % 2:  # equal strings
            count = 0
            for places, equal in members:
                yield places, equal, np.arange(count, count + len(places), dtype=np.int32)
                count += len(places)
        else:
            found = list(members)
            places = np.concatenate([np.zeros(0, dtype=np.int64), *(one for one, _ in found)])
            some_strings = pa.concat_arrays([pa.array([], type=pa.large_string()), *(one for _, one in found)])
            del found
            yield _sorted(places, some_strings)


def _limits(strings: StoredStrings) -> list[str]:
    """Return the strings that divide all strings into ranges, in ascending order. There is one range for a block."""
    parts = number_of_blocks(len(strings))
    if parts <= 1:
        return []
    places = np.sort(np.random.default_rng(0).integers(len(strings), size=SAMPLED * (1 + parts)))
    return sorted(set(sorted(strings[place] for place in places.tolist())[SAMPLED::SAMPLED]))


def _members(strings: StoredStrings, ranges: NDArray[np.int32], number: int) -> Iterator[tuple[Integers, pa.Array]]:
    """Yield, for each block, the places of the strings in one range, in ascending order, and the strings."""
    for rows, of_rows in blocks(len(strings), ranges):
        places = np.flatnonzero(of_rows[rows] == number)
        if len(places):
            yield rows.start + places, strings.arrow(rows.start, rows.stop).take(places)


def _sorted(places: Integers, strings: pa.Array) -> tuple[Integers, pa.Array, NDArray[np.int32]]:
    """Sort strings, whose places are in ascending order (see `_sorted_parts`)."""
    import pyarrow as pa
    import pyarrow.compute as pc

    table = pa.table({"string": strings, "place": places})
    order = pc.sort_indices(table, sort_keys=[("string", "ascending"), ("place", "ascending")])
    found: Any = strings.take(order)
    same = pc.equal(found.slice(1), found.slice(0, max(0, len(found) - 1))).to_numpy(zero_copy_only=False)
    position = np.arange(len(found), dtype=np.int32)
    firsts = np.maximum.accumulate(np.where(np.append(False, same)[: len(found)], 0, position))
    return places[order.to_numpy()], found, (position - firsts).astype(np.int32)
