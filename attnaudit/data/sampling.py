"""Draw seeded samples from data sets."""

from __future__ import annotations

import dataclasses
import hashlib
import heapq
from collections.abc import Iterable

from attnaudit.errors import DataError
from attnaudit.instances import Dataset, Instance, ids_of


def sample(dataset: Dataset, max_instances: int, seed: int) -> Dataset:
    """Return a random sample of a data set.

    Each instance gets a hash of the seed and its id. The sample contains the instances with the smallest hashes, sorted
    by hash. It therefore does not depend on the order of the rows. With the same seed, a smaller sample is part of a
    larger one. The result keeps the `rows` and `classes` of the full data set, and its `sample_seed` is the seed.

    Args:
        dataset: The data set to sample from. If it has no more than `max_instances` instances, it is returned
            unchanged, without `sample_seed`.
        max_instances: Number of instances in the sample.
        seed: The seed of the sample.

    Raises:
        DataError: `max_instances` is below 1.
    """
    if max_instances < 1:
        raise DataError(f"max_instances is {max_instances}: expected at least 1.")
    if len(dataset.instances) <= max_instances:
        return dataset
    rows = first_in_random_order(ids_of(dataset.instances), max_instances, seed)  # reads no other rows
    return sample_of(dataset, [dataset.instances[row] for row in rows], seed)


def sample_of(dataset: Dataset, chosen: Iterable[Instance], seed: int) -> Dataset:
    """Return the data set with only the chosen instances. It records the seed and the number of all rows."""
    rows = dataset.rows if dataset.rows >= 0 else len(dataset.instances)
    return dataclasses.replace(dataset, instances=tuple(chosen), sample_seed=seed, rows=rows)


def in_random_order(instances: Iterable[Instance], seed: int) -> list[Instance]:
    """Return instances sorted by a hash of the seed and their ids."""
    return sorted(instances, key=lambda one: _seeded_hash(one.id, seed))


def first_in_random_order(ids: Iterable[str], count: int, seed: int) -> list[int]:
    """Return the positions of the first `count` ids in the order of `in_random_order`.

    Only `count` ids are in memory at a time, so that a small sample can be drawn from any number of rows.
    """
    chosen = heapq.nsmallest(count, ((*_seeded_hash(one, seed), row) for row, one in enumerate(ids)))
    return [row for *_, row in chosen]


def _seeded_hash(identifier: str, seed: int) -> tuple[bytes, str]:
    return hashlib.sha256(f"{seed}\x1f{identifier}".encode()).digest(), identifier
