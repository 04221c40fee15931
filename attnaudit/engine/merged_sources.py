"""Merging of sources that repeat the token sequences of another source. This module does not import torch."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnaudit.arrays import Integers
from attnaudit.disk_arrays.filed_arrays import FiledArray, from_numbers
from attnaudit.disk_arrays.filed_blocks import by_rows
from attnaudit.instances import Instance
from attnaudit.statistics.group_names import GroupNames


def merged_sources(instances: Sequence[Instance], sequences: Sequence[Hashable]) -> list[str]:
    """Return the name of the group to which each instance belongs when groups are resampled.

    All instances with the same `source` form one source. An instance without a `source` forms a source by itself. If
    every token sequence of one source also occurs in a second source, the first source is merged into the second,
    because it adds nothing new. Two sources that share some sequences stay separate if each also has sequences that the
    other lacks. Therefore, one sentence that occurs in many sources cannot merge them all.

    The result does not depend on the order of the instances. If a source could be merged into several others, it is
    merged into the one whose name comes first.

    Args:
        instances: The n instances.
        sequences: The token sequence of each instance, or a hash of it. It must be equal for instances that the model
            cannot distinguish.

    Returns:
        n group names. Each begins with "source" or "row". The group of a source therefore differs from that of an
        instance whose id is spelled like the source.
    """
    given = [f"source {one.source}" if one.source else f"row {one.id}" for one in instances]
    contents: dict[str, set[Hashable]] = defaultdict(set)
    for name, sequence in zip(given, sequences, strict=True):
        contents[name].add(sequence)
    first_with: dict[frozenset[Hashable], str] = {}  # content -> the first of the sources with exactly this content
    frozen = {name: frozenset(contents[name]) for name in sorted(contents)}
    for name, content in frozen.items():
        first_with.setdefault(content, name)

    # Larger sources come first, so that every source is compared with all sources that may contain it.
    kept_with: dict[Hashable, list[frozenset[Hashable]]] = defaultdict(list)  # sequence -> the kept sources with it
    merged_into: dict[frozenset[Hashable], str] = {}
    for content in sorted(first_with, key=len, reverse=True):
        candidates = min((kept_with[sequence] for sequence in content), key=len)
        containing = [first_with[other] for other in candidates if content < other]
        merged_into[content] = min(containing, default=first_with[content])
        if not containing:
            for sequence in content:
                kept_with[sequence].append(content)
    return [merged_into[frozen[name]] for name in given]


def merged_rows(ids: Sequence[str], sequences: NDArray[np.void]) -> GroupNames:
    """Return the same names as `merged_sources` for instances without a `source`, in less memory.

    Args:
        ids: The ids of the n instances, in ascending order.
        sequences: (n,) the hash of the token sequence of each instance.
    """
    return GroupNames(first_with_same(sequences), lambda code: f"row {ids[code]}")


def first_with_same(hashes: NDArray[np.void]) -> Integers:
    """Return for each of n hashes the place of the first hash that equals it.

    Args:
        hashes: (n,) the hashes.
    """
    n = len(hashes)
    order: Integers = counted(n)
    if not n:
        return order
    columns = [
        by_rows(n, lambda rows, some, first=first: _numbers(some[rows], first), hashes)
        for first in range(0, hashes.dtype.itemsize, 8)
    ]
    for column in reversed(columns):
        order = order[np.argsort(column[order], kind="stable")]
    is_first = differs(columns[0][order])
    for column in columns[1:]:
        is_first |= differs(column[order])
    # Equal hashes follow each other in the order of their places.
    firsts: Integers = taken(order[np.flatnonzero(is_first)], counts(is_first))
    found: Integers = firsts[np.argsort(order, kind="stable")]
    return found


def _numbers(hashes: NDArray[np.void], first: int) -> NDArray[np.uint64]:
    """Return eight bytes of each hash as a number, from the byte `first` on. Missing bytes are 0."""
    content = np.frombuffer(hashes.tobytes(), dtype=np.uint8).reshape(len(hashes), -1)[:, first : first + 8]
    padded = np.zeros((len(hashes), 8), dtype=np.uint8)
    padded[:, : content.shape[1]] = content
    return padded.view(np.uint64)[:, 0]


def counted(n: int) -> Any:
    """Return the numbers from 0 to n - 1, in a file if there are many."""
    return from_numbers(range(n), np.int64)


def differs(numbers: NDArray[Any]) -> NDArray[np.bool_]:
    """Return for each number whether it differs from the one before it. The first number does."""
    found: NDArray[np.bool_] = np.append(True, numbers[1:] != numbers[:-1])[: len(numbers)]
    return found


def counts(is_first: NDArray[np.bool_]) -> Integers:
    """Number runs of equal numbers from 0 on, given whether each number is the first of its run."""
    found: Integers = np.cumsum(is_first.astype(np.int64)) - 1
    return found


def taken(values: NDArray[Any], places: Integers) -> Any:
    """Return the values at some places. If there are many places, the result is in a file, wherever the values are."""
    if isinstance(values, FiledArray) or not len(places):
        return values[places]
    return by_rows(len(places), lambda rows, some: values[some[rows]], places)
