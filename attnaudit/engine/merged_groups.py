"""Merging of the sources of many rows, with all numbers in temporary files. This module does not import torch."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnaudit.arrays import Integers
from attnaudit.disk_arrays import filed_blocks
from attnaudit.disk_arrays.filed_arrays import blocks, filled, in_memory, release, written
from attnaudit.engine.merged_sources import counted, counts, differs, first_with_same, taken
from attnaudit.instances import CodedSources
from attnaudit.statistics.group_names import GroupNames

#: The number of groups after which the files are removed from memory.
RELEASE_EVERY = 256
#: The largest number of sequences of a group of which the rarest is searched.
MOST_SEARCHED = 4_096


def merged_groups(ids: Sequence[str], sources: CodedSources, sequences: Integers) -> GroupNames:
    """Return the same names as `attnaudit.engine.merged_sources.merged_sources`, in less memory.

    Rows without a source come first in the order of the names, sorted by their ids.

    Args:
        ids: The ids of the n instances, in ascending order.
        sources: Their sources.
        sequences: (n,) for each instance, the place of the first instance with the same token sequence.
    """
    n = len(sequences)
    given = np.where(sources.codes < 0, counted(n), sources.codes + n)
    groups = _Groups.of(given, sequences)
    order = np.argsort(given, kind="stable")  # the rows of the first group, then those of the second one, and so on
    codes = taken(taken(groups.codes, _merged(groups)), counts(differs(given[order])))[np.argsort(order, kind="stable")]

    def name_of(code: int) -> str:
        return f"row {ids[code]}" if code < n else f"source {sources.names[code - n]}"

    return GroupNames(codes, name_of)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Groups:
    """The groups of rows before they are merged, in the order of their names.

    Attributes:
        codes: (groups,) The code of each group.
        starts: (groups,) Where the content of each group begins in `contents`.
        sizes: (groups,) The number of different sequences of each group.
        contents: (pairs,) The sequences of each group in ascending order, one group after the other.
        numbers: (pairs,) The number of the group that has each of the contents.
        base: A number larger than every sequence and every number of a group.
    """

    codes: Integers
    starts: Integers
    sizes: Integers
    contents: Integers
    numbers: Integers
    base: int

    @classmethod
    def of(cls, given: Integers, sequences: Integers) -> _Groups:
        """Return the groups of n rows.

        Args:
            given: (n,) The code of the group of each row.
            sequences: (n,) The sequence of each row, a number less than n.
        """
        base = len(given) + 1
        pairs = np.sort(given * base + sequences)
        pairs = pairs[differs(pairs)]
        codes = pairs // base
        starts = np.flatnonzero(differs(codes))
        sizes = np.diff(np.append(starts, len(pairs)))
        return cls(
            codes=codes[starts],
            starts=starts,
            sizes=sizes,
            contents=pairs % base,
            numbers=counts(differs(codes)),
            base=base,
        )

    def content(self, group: int) -> Integers:
        """Return the sequences of a group, without reading them into memory yet."""
        start = int(self.starts[group])
        found: Integers = in_memory(self.contents)[start : start + int(self.sizes[group])]
        return found

    def release(self, *arrays: Any) -> None:
        """Remove the content of the groups, and of further arrays, from memory."""
        release(self.starts, self.sizes, self.contents, *arrays)


def _merged(groups: _Groups) -> Integers:
    """Return the (groups,) number of the group into which each group is merged; its own number if it is kept."""
    base = groups.base
    target: Integers = counted(len(groups.codes))
    several = np.flatnonzero(groups.sizes > 1)
    if len(several):
        same = first_with_same(written(_digests(groups, several)))
        _merge_contained(groups, several[same == counted(len(several))], target)
        target[several] = taken(target, taken(several, same))

    # For each sequence, in this order: the kept groups that have it and others; and the groups that have only it.
    single = taken(groups.sizes, groups.numbers) == 1
    listed = single | (taken(target, groups.numbers) == groups.numbers)
    found = np.sort(((groups.contents * 2 + single) * base + groups.numbers)[listed])
    sequences = found // (2 * base)
    first = taken((found % base)[np.flatnonzero(differs(sequences))], counts(differs(sequences)))
    merged = np.sort(((found % base) * base + first)[found // base % 2 == 1])
    if len(merged):
        target[merged // base] = merged % base
    return target


def _digests(groups: _Groups, chosen: Integers) -> Iterator[NDArray[np.void]]:
    """Yield a hash of the content of each chosen group, in parts."""
    pending: list[bytes] = []
    for rows, numbers in blocks(len(chosen), chosen):
        for number in numbers[rows].tolist():
            content, digest = groups.content(number), hashlib.blake2b(digest_size=16)
            for first in range(0, len(content), filed_blocks.BLOCK):
                digest.update(content[first : first + filed_blocks.BLOCK].tobytes())
            pending.append(digest.digest())
            if len(pending) == RELEASE_EVERY:
                yield np.frombuffer(b"".join(pending), "V16")
                pending = []
                groups.release()
    yield np.frombuffer(b"".join(pending), "V16")


def _merge_contained(groups: _Groups, chosen: Integers, target: Integers) -> None:
    """Find the groups whose content is a part of the content of another group, and set their `target`.

    Args:
        groups: All groups.
        chosen: The numbers of groups with at least two sequences. No two of them have the same content.
        target: (groups,) The number of each group.
    """
    base = groups.base
    is_chosen = filled(len(groups.codes), False, np.bool_)
    is_chosen[chosen] = True
    pairs = np.sort((groups.contents * base + groups.numbers)[taken(is_chosen, groups.numbers)])
    sequences = pairs // base
    starts = np.flatnonzero(differs(sequences))
    occurrences = taken(np.diff(np.append(starts, len(pairs))), counts(differs(sequences)))
    # A group can be contained in another only if each of its sequences occurs in another.
    repeated = np.sort((pairs % base)[occurrences > 1])
    starts = np.flatnonzero(differs(repeated))
    candidates, shared = repeated[starts], np.diff(np.append(starts, len(repeated)))
    candidates = candidates[shared == taken(groups.sizes, candidates)]
    # Larger groups come first, so that it is known whether a group that may contain another is kept.
    candidates = candidates[np.argsort(-taken(groups.sizes, candidates), kind="stable")]
    plain = in_memory(pairs)
    for rows, numbers in blocks(len(candidates), candidates):
        for count, number in enumerate(numbers[rows].tolist(), start=1):
            content = groups.content(number)
            searched = content[:MOST_SEARCHED]
            begins, ends = np.searchsorted(plain, searched * base), np.searchsorted(plain, (searched + 1) * base)
            rarest = int(np.argmin(ends - begins))
            for first in range(int(begins[rarest]), int(ends[rarest]), filed_blocks.BLOCK):
                others = plain[first : min(first + filed_blocks.BLOCK, int(ends[rarest]))] % base
                kept = (in_memory(groups.sizes)[others] > len(content)) & (in_memory(target)[others] == others)
                found = next((one for one in others[kept].tolist() if _contains(groups.content(one), content)), None)
                if found is not None:
                    target[number] = found
                    break
            if count % RELEASE_EVERY == 0:
                groups.release(pairs, target)


def _contains(larger: Integers, smaller: Integers) -> bool:
    """Return whether sorted numbers contain other sorted numbers."""
    for first in range(0, len(smaller), filed_blocks.BLOCK):
        part = smaller[first : first + filed_blocks.BLOCK]
        places = np.searchsorted(larger, part)
        if places[-1] == len(larger) or (larger[places] != part).any():
            return False
    return True
