"""Random numbers that belong to an instance: the same alone, in any batch, in any worker."""

from __future__ import annotations

import hashlib

import numpy as np


def keyed_integer(seed: int, *words: str) -> int:
    """A 63-bit integer that depends on the seed and the words alone, such as ("permutation", instance id)."""
    digest = hashlib.blake2b("\x1f".join((str(seed), *words)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def keyed_generator(seed: int, *words: str) -> np.random.Generator:
    """A generator whose stream depends on the seed and the words alone."""
    return np.random.Generator(np.random.Philox(key=keyed_integer(seed, *words)))
