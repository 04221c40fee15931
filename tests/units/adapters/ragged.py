"""Batches with padding anywhere, and variants of them that lack any tokens."""

from __future__ import annotations

import torch
from hypothesis import strategies as st
from torch import Tensor


@st.composite
def ragged(draw: st.DrawFn, most: int = 9) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """embeddings (B, T, d), mask (B, T) with padding anywhere, rows (V,), keep (V, T)."""
    count, width, variants = draw(st.integers(1, 4)), draw(st.integers(1, most)), draw(st.integers(1, 9))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))

    def marks(rows: int) -> Tensor:
        return torch.rand(rows, width, generator=generator) < draw(st.sampled_from([0.3, 0.8, 1.0]))

    rows = torch.randint(0, count, (variants,), generator=generator)
    return torch.randn(count, width, 3, generator=generator), marks(count), rows, marks(variants)
