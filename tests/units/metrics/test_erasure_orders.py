from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attnaudit.metrics.erasure_orders import extreme_orders
from tests.strategies import seeds


def by_permutations(falls: np.ndarray, count: int) -> tuple[float, float]:
    found = []
    for order in permutations(range(count)):
        sets = np.cumsum([1 << token for token in order])[:-1]
        found.append(falls[sets].mean())
    return min(found), max(found)


@given(seeds, st.integers(2, 6))
def test_the_extremes_are_those_of_all_permutations(seed: int, count: int) -> None:
    falls = np.random.default_rng(seed).normal(size=2**count)
    assert extreme_orders(torch.from_numpy(falls)) == pytest.approx(by_permutations(falls, count))


@given(seeds, st.integers(2, 7))
def test_the_empty_and_the_whole_set_are_not_read(seed: int, count: int) -> None:
    falls = torch.rand(2**count, generator=torch.Generator().manual_seed(seed))
    before = extreme_orders(falls)
    falls[[0, -1]] = torch.nan
    assert extreme_orders(falls) == before


@pytest.mark.parametrize("size", [1, 2, 3, 6])
def test_a_number_that_is_not_a_power_of_two_is_refused(size: int) -> None:
    with pytest.raises(ValueError, match=f"got {size}"):
        extreme_orders(torch.zeros(size))
