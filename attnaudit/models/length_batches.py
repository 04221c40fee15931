"""Batches of rows of similar length, so that little of a batch is padding."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

#: `shuffled_batches` sorts by length within pools of this number of batches.
_BATCHES_PER_POOL = 50


def by_length(lengths: Sequence[int], rows: Sequence[int]) -> list[int]:
    """Return the rows sorted by length, shortest first; rows of equal length keep their order.

    Args:
        lengths: Length of every row in the data set.
        rows: Indices of the rows to sort.
    """
    return sorted(rows, key=lambda row: lengths[row])


def within_tokens(lengths: Sequence[int], tokens: int) -> Iterator[list[int]]:
    """Yield every row once, shortest first, in batches of a limited number of tokens.

    Args:
        lengths: Length of every row.
        tokens: Most tokens in a batch, padding included. A longer row is a batch of its own.
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
    """Yield every row once, in batches of rows of similar length; the order of the batches is random.

    The rows are shuffled, divided into pools of fifty batches, and sorted by length within each pool.

    Args:
        lengths: Length of every row.
        size: Rows per batch.
        generator: Source of randomness.
    """
    order = torch.randperm(len(lengths), generator=generator).tolist()
    pool_size = _BATCHES_PER_POOL * size
    pools = (by_length(lengths, order[start : start + pool_size]) for start in range(0, len(order), pool_size))
    batches = [pool[start : start + size] for pool in pools for start in range(0, len(pool), size)]
    for index in torch.randperm(len(batches), generator=generator).tolist():
        yield batches[index]
