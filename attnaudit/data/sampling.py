"""A seeded sample of a data set."""

from __future__ import annotations

import dataclasses
import hashlib

from attnaudit.errors import DataError
from attnaudit.instances import Dataset


def sample(dataset: Dataset, max_instances: int, seed: int) -> Dataset:
    """At most `max_instances` instances: those whose ids have the smallest hashes under `seed`, in that order.

    Neither the choice nor its order depends on the order of the file, and a smaller sample is part of a larger one.
    `sample_seed` records the seed; `rows` and `classes` stay those of the whole. A data set that is small enough comes
    back as it is. Raises DataError when `max_instances` is below 1.
    """
    if max_instances < 1:
        raise DataError(f"A sample of {max_instances} instances is not possible. Expected at least 1.")
    if len(dataset.instances) <= max_instances:
        return dataset
    chosen = sorted(
        dataset.instances, key=lambda one: (hashlib.sha256(f"{seed}\x1f{one.id}".encode()).digest(), one.id)
    )[:max_instances]
    rows = dataset.rows if dataset.rows >= 0 else len(dataset.instances)
    return dataclasses.replace(dataset, instances=tuple(chosen), sample_seed=seed, rows=rows)
