"""Pairs counted bit by bit against pairs counted one by one."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from attnaudit.metrics.discordance import count_pairs

VALUES = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4), st.integers(0, 3)), min_size=1, max_size=19)


@settings(max_examples=120, deadline=None)
@given(rows=st.lists(VALUES, min_size=1, max_size=4), weighted=st.booleans())
def test_every_count_is_that_of_a_loop_over_pairs(rows: list[list[tuple[int, int, int]]], weighted: bool) -> None:
    width = max(map(len, rows)) + 2
    x, y, w = (torch.zeros(len(rows), width) for _ in range(3))
    for r, row in enumerate(rows):
        for t, (a, b, weight) in enumerate(row):
            x[r, t], y[r, t], w[r, t] = a, b, weight
    lengths = torch.tensor([len(row) for row in rows])
    found = count_pairs(x, y, lengths, w if weighted else None)
    for r, row in enumerate(rows):
        expected = dict.fromkeys(("every", "tied_x", "tied_y", "tied_both", "discordant"), 0)
        for (a, b, v), (c, d, u) in itertools.combinations(row, 2):
            size = v * u if weighted else 1
            expected["every"] += size
            expected["tied_x"] += size * (a == c)
            expected["tied_y"] += size * (b == d)
            expected["tied_both"] += size * (a == c and b == d)
            expected["discordant"] += size * ((a - c) * (b - d) < 0)
        for name, value in expected.items():
            assert getattr(found, name)[r].item() == pytest.approx(value), name
        groups = [len(list(g)) for _, g in itertools.groupby(sorted(a for a, _, _ in row))]
        assert found.cubes_x[r].item() == sum(t * (t - 1) * (t - 2) for t in groups)


def test_counts_of_long_rows_are_whole_numbers() -> None:
    generator = torch.Generator().manual_seed(0)
    order = torch.rand(3, 999, generator=generator)
    found = count_pairs(order, order.flip(1), torch.tensor([999, 500, 2]))
    assert (found.discordant == found.discordant.round()).all()
    assert found.every.tolist() == [999 * 998 / 2, 500 * 499 / 2, 1]
