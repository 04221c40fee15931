"""The source of every instance, after repeated token sequences are merged. Imports no torch."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence

from attnaudit.instances import Instance


def merged_sources(instances: Sequence[Instance], sequences: Sequence[Hashable]) -> list[str]:
    """Return the name of the group that each instance is resampled with.

    Instances with the same `source` are one source, and so is an instance without one. A source whose token sequences
    all occur in another source is part of that one, because it contains nothing that the other does not. Sources that
    have some sequences in common, but also some of their own, stay apart. Merging is therefore never transitive: one
    sentence that occurs in many sources cannot join them.

    The result does not depend on the order of the instances. Where several sources would do, the one that comes first
    by name is used.

    Args:
        instances: The n instances.
        sequences: What the model reads of each instance, equal for instances that the model cannot distinguish.

    Returns:
        n names. The prefixes "source" and "row" prevent a source and an id with the same spelling from forming one
        group.
    """
    given = [f"source {one.source}" if one.source else f"row {one.id}" for one in instances]
    contents: dict[str, set[Hashable]] = defaultdict(set)
    for name, sequence in zip(given, sequences, strict=True):
        contents[name].add(sequence)
    first_with: dict[frozenset[Hashable], str] = {}  # content -> the first of the sources with exactly this content
    frozen = {name: frozenset(contents[name]) for name in sorted(contents)}
    for name, content in frozen.items():
        first_with.setdefault(content, name)

    # Larger sources come first, so every source is compared with all those that can contain it.
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
