"""Hypothesis strategies that several tests share, and the padding that batches of them need."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import torch
from hypothesis import strategies as st
from torch import Tensor

T = TypeVar("T")

seeds = st.integers(0, 10_000)
directions = st.sampled_from(["at_least", "at_most"])

#: One weight: often exactly 0, never so small that rounding decides a test.
weight = st.one_of(st.just(0.0), st.floats(1e-6, 1))


def weight_rows(*, min_size: int = 1, max_size: int = 10) -> st.SearchStrategy[list[float]]:
    """Weights over the tokens of one text, not normalised, at least one of them positive."""
    return st.lists(weight, min_size=min_size, max_size=max_size).filter(any)


def weight_row_pairs(*, max_size: int = 8) -> st.SearchStrategy[tuple[list[float], list[float]]]:
    """Two rows of weights over the tokens of the same text."""
    return st.integers(1, max_size).flatmap(
        lambda size: st.tuples(*[weight_rows(min_size=size, max_size=size) for _ in range(2)])
    )


def texts(words: Sequence[str], *, max_words: int) -> st.SearchStrategy[str]:
    """Texts of 1 to `max_words` words, separated by spaces."""
    return st.lists(st.sampled_from(words), min_size=1, max_size=max_words).map(" ".join)


def with_permutation(rows: st.SearchStrategy[list[T]]) -> st.SearchStrategy[tuple[list[T], list[T]]]:
    """Rows, and the same rows in another order."""
    return rows.flatmap(lambda drawn: st.tuples(st.just(drawn), st.permutations(drawn)))


@st.composite
def ragged_batches(draw: st.DrawFn, max_tokens: int = 9) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """A batch with padding anywhere, and variants of its rows that lack any of the tokens.

    Returns:
        embeddings (B, T, 3), mask (B, T), the row of each variant (V,), and the tokens that each variant keeps (V, T).
    """
    count, width, variants = draw(st.integers(1, 4)), draw(st.integers(1, max_tokens)), draw(st.integers(1, 9))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))

    def random_mask(rows: int) -> Tensor:
        return torch.rand(rows, width, generator=generator) < draw(st.sampled_from([0.3, 0.8, 1.0]))

    rows = torch.randint(0, count, (variants,), generator=generator)
    return torch.randn(count, width, 3, generator=generator), random_mask(count), rows, random_mask(variants)


def pad_rows(rows: Sequence[Sequence[Any]], *, extra: int = 0, fill: float = 99.0) -> tuple[Tensor, Tensor]:
    """Pad rows of different lengths on the right.

    Args:
        rows: B rows of numbers.
        extra: Padding after the longest row.
        fill: The value of the padding.

    Returns:
        values (B, T) in float64 and mask (B, T).
    """
    width = max(map(len, rows)) + extra
    values = torch.full((len(rows), width), fill, dtype=torch.float64)
    mask = torch.zeros(len(rows), width, dtype=torch.bool)
    for i, row in enumerate(rows):
        values[i, : len(row)] = torch.tensor([float(value) for value in row], dtype=torch.float64)
        mask[i, : len(row)] = True
    return values, mask
