"""Merging of sources that repeat the token sequences of another source. This module does not import torch."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence

import numpy as np
from numpy.typing import NDArray

from attnaudit.arrays import Integers
from attnaudit.filed_arrays import blocks, filled, number_of_blocks
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
    codes: Integers = filled(len(sequences), 0, np.int64)
    parts = number_of_blocks(len(sequences))
    for part in range(parts):  # equal sequences are in the same part
        found = []
        for some, hashes in blocks(len(sequences), sequences):
            members = some.start + np.flatnonzero(_parts(hashes[some], parts) == part)
            found.append((members, hashes[members]))
        rows, of_rows = map(np.concatenate, zip(*found, strict=True))
        order = np.argsort(of_rows, kind="stable")
        ordered = of_rows[order]
        begins = np.append(True, ordered[1:] != ordered[:-1])[: len(order)]
        codes[rows[order]] = rows[order][begins][np.cumsum(begins) - 1]
    return GroupNames(codes, lambda code: f"row {ids[code]}")


def _parts(hashes: NDArray[np.void], parts: int) -> Integers:
    """Return the part to which each hash belongs, by its first two bytes."""
    content = np.frombuffer(hashes.tobytes(), dtype=np.uint8).reshape(len(hashes), -1)[:, :2].astype(np.int64)
    found: Integers = (256 * content[:, 0] + content[:, 1]) * parts >> 16
    return found
