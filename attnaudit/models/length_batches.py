"""Batches of rows of similar length, so that little of a batch is padding."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch


def by_length(lengths: Sequence[int], rows: Sequence[int]) -> list[int]:
    """The rows, shortest first; those of one length keep their order."""
    return sorted(rows, key=lambda row: lengths[row])


def within_tokens(lengths: Sequence[int], tokens: int) -> Iterator[list[int]]:
    """Every row once, shortest first, in batches that hold at most so many tokens with their padding, or one row."""
    batch: list[int] = []
    for row in by_length(lengths, range(len(lengths))):
        if batch and lengths[row] * (len(batch) + 1) > tokens:
            yield batch
            batch = []
        batch.append(row)
    if batch:
        yield batch


def shuffled_batches(lengths: Sequence[int], size: int, generator: torch.Generator) -> Iterator[list[int]]:
    """Every row once: shuffled, sorted by length within pools of fifty batches, and the batches drawn at random."""
    order = torch.randperm(len(lengths), generator=generator).tolist()
    pool = 50 * size
    sorted_pools = (by_length(lengths, order[start : start + pool]) for start in range(0, len(order), pool))
    batches = [one[start : start + size] for one in sorted_pools for start in range(0, len(one), size)]
    for index in torch.randperm(len(batches), generator=generator).tolist():
        yield batches[index]
