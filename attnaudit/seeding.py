"""Random numbers that depend only on a seed and on keys, such as the id of an instance.

The random numbers therefore do not depend on the batch, the order of the rows or the worker process.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from numpy.random.bit_generator import ISeedSequence


def keyed_integer(seed: int, *keys: str) -> int:
    """Return a 63-bit integer that depends only on the seed and the keys, such as "permutation" and an instance id."""
    digest = hashlib.blake2b("\x1f".join((str(seed), *keys)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


class _Key(ISeedSequence):
    """The key of a Philox generator.

    Args:
        key: An integer from 0 to 2^64 - 1.
    """

    def __init__(self, key: int) -> None:
        self._key = key

    def generate_state(self, n_words: int, dtype: Any = np.uint32) -> Any:
        """Return the two words of the key."""
        return np.array([self._key, 0], dtype=np.uint64)


def keyed_generator(seed: int, *keys: str) -> np.random.Generator:
    """Return a random generator whose random numbers depend only on the seed and the keys."""
    # The numbers are those of Philox(key=...), which first asks the operating system for randomness that it never uses.
    return np.random.Generator(np.random.Philox(_Key(keyed_integer(seed, *keys))))  # type: ignore[arg-type]
