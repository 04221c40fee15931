"""Random numbers that depend only on a seed and on keys, such as the id of an instance.

The random numbers therefore do not depend on the batch, the order of the rows or the worker process.
"""

from __future__ import annotations

import hashlib

import numpy as np


def keyed_integer(seed: int, *keys: str) -> int:
    """Return a 63-bit integer that depends only on the seed and the keys, such as "permutation" and an instance id."""
    digest = hashlib.blake2b("\x1f".join((str(seed), *keys)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def keyed_generator(seed: int, *keys: str) -> np.random.Generator:
    """Return a random generator whose random numbers depend only on the seed and the keys."""
    return np.random.Generator(np.random.Philox(key=keyed_integer(seed, *keys)))
