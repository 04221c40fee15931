"""Batches of rows with similar lengths, which need little padding."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

#: Number of batches in a pool. `shuffled_batches` sorts rows by length within each pool.
_BATCHES_PER_POOL = 50


def by_length(lengths: Sequence[int], rows: Sequence[int]) -> list[int]:
    """Return the rows sorted by length, shortest first. Rows of the same length keep their order.

    Args:
        lengths: Length of every row in the data set.
        rows: Indices of the rows to sort.
    """
    return sorted(rows, key=lambda row: lengths[row])


def within_tokens(lengths: Sequence[int], tokens: int) -> Iterator[list[int]]:
    """Yield every row once, shortest first, in batches with a limited number of tokens.

    Args:
        lengths: Length of every row.
        tokens: Largest number of tokens in a batch, including padding. A longer row forms a batch by itself.
    """
    batch: list[int] = []
    for row in by_length(lengths, range(len(lengths))):
        if batch and lengths[row] * (len(batch) + 1) > tokens:
            yield batch
            batch = []
        batch.append(row)
    if batch:
        yield batch


def shuffled_batches(lengths: Sequence[int], size: int, generator: torch.Generator) -> Iterator[list[int]]:
    """Yield every row once, in batches of rows with similar lengths. The order of the batches is random.

    The rows are shuffled and divided into pools of 50 batches. Within each pool, they are sorted by length.

    Args:
        lengths: Length of every row.
        size: Number of rows per batch. Some batches are smaller.
        generator: Random generator for the order of the rows and batches.
    """
    order = torch.randperm(len(lengths), generator=generator).tolist()
    pool_size = _BATCHES_PER_POOL * size
    pools = (by_length(lengths, order[start : start + pool_size]) for start in range(0, len(order), pool_size))
    batches = [pool[start : start + size] for pool in pools for start in range(0, len(pool), size)]
    for index in torch.randperm(len(batches), generator=generator).tolist():
        yield batches[index]
