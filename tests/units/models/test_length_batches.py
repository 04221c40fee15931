"""Batches for evaluation contain every row once, shortest first, and are never too large."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from attnaudit.models.length_batches import within_tokens


@given(lengths=st.lists(st.integers(1, 40), max_size=60), tokens=st.integers(1, 200))
def test_every_row_is_in_one_batch_within_the_limit(lengths: list[int], tokens: int) -> None:
    batches = list(within_tokens(lengths, tokens))
    assert sorted(row for batch in batches for row in batch) == list(range(len(lengths)))
    widest = [max(lengths[row] for row in batch) for batch in batches]
    assert widest == sorted(widest)
    for batch, width in zip(batches, widest, strict=True):
        assert len(batch) == 1 or len(batch) * width <= tokens
    for batch, later in itertools.pairwise(batches):
        assert (len(batch) + 1) * lengths[later[0]] > tokens
