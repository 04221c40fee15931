"""Pairs counted by blocks, compared with pairs counted one by one."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from attnaudit.metrics.discordance import count_pairs

VALUES = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4), st.integers(0, 3)), min_size=1, max_size=19)


@settings(max_examples=120)
@given(rows=st.lists(VALUES, min_size=1, max_size=4), weighted=st.booleans())
def test_every_count_equals_a_loop_over_pairs(rows: list[list[tuple[int, int, int]]], weighted: bool) -> None:
    width = max(map(len, rows)) + 2
    x, y, w = (torch.zeros(len(rows), width) for _ in range(3))
    for r, row in enumerate(rows):
        for t, (a, b, weight) in enumerate(row):
            x[r, t], y[r, t], w[r, t] = a, b, weight
    lengths = torch.tensor([len(row) for row in rows])
    counted = count_pairs(x, y, lengths, w if weighted else None)
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
            assert getattr(counted, name)[r].item() == pytest.approx(value), name
        groups = [len(list(g)) for _, g in itertools.groupby(sorted(a for a, _, _ in row))]
        assert counted.cubes_x[r].item() == sum(t * (t - 1) * (t - 2) for t in groups)


def test_counts_of_long_rows_are_whole_numbers() -> None:
    generator = torch.Generator().manual_seed(0)
    order = torch.rand(3, 999, generator=generator)
    counted = count_pairs(order, order.flip(1), torch.tensor([999, 500, 2]))
    assert (counted.discordant == counted.discordant.round()).all()
    assert counted.every.tolist() == [999 * 998 / 2, 500 * 499 / 2, 1]


@given(
    width=st.sampled_from([31, 32, 33, 64, 100, 129, 260]),
    values=st.sampled_from([3, 40, 10**6]),
    seed=st.integers(0, 2**20),
    weighted=st.booleans(),
)
def test_rows_of_several_blocks_are_counted_like_all_pairs_together(
    width: int, values: int, seed: int, weighted: bool
) -> None:
    random = np.random.default_rng(seed)
    x, y = (random.integers(0, values, (3, width)).astype(float) for _ in range(2))
    x[0, : width // 4] = np.inf  # ties that must stay apart from the padding
    y[1, width // 2] = -np.inf
    lengths = random.integers(2, width + 1, 3)
    w = random.random((3, width)) if weighted else np.ones((3, width))
    w = np.where(np.arange(width) < lengths[:, None], w, 0.0)
    given = torch.from_numpy(w) if weighted else None
    counted = count_pairs(torch.from_numpy(x), torch.from_numpy(y), torch.from_numpy(lengths), given)
    for r, n in enumerate(lengths):
        earlier = np.triu(np.outer(w[r, :n], w[r, :n]), 1)
        below, same = (
            (np.less.outer(v[r, :n], v[r, :n]) for v in (x, y)),
            (np.equal.outer(v[r, :n], v[r, :n]) for v in (x, y)),
        )
        (x_below, y_below), (x_same, y_same) = below, same
        opposed = (x_below & y_below.T) | (x_below.T & y_below)
        for name, which in (
            ("tied_x", x_same),
            ("tied_y", y_same),
            ("tied_both", x_same & y_same),
            ("discordant", opposed),
        ):
            assert getattr(counted, name)[r].item() == pytest.approx(earlier[which].sum(), abs=1e-10), name
        assert counted.every[r].item() == pytest.approx(earlier.sum(), abs=1e-10)
