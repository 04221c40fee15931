"""Differences between two runs, found with and without the test for equal bits."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from attnaudit.adapters.huggingface.probes.observed_modules import ROUNDING, _any_differs

NUMBERS = st.sampled_from([0.0, 1.0, 1.0 + ROUNDING / 2, 1.0 + 3 * ROUNDING, -2.0, float("nan"), float("inf")])
ROWS = st.integers(0, 6).flatmap(
    lambda n: st.tuples(*(st.lists(of, min_size=n, max_size=n) for of in (NUMBERS, NUMBERS, st.booleans())))
)


def differ_one_by_one(value: Tensor, clean: Tensor, mask: Tensor) -> bool:
    """Compare every pair of entries of the mask on its own."""
    finite = [abs(one) for one in clean.tolist() if abs(one) < float("inf")]
    allowed = float(torch.tensor(ROUNDING * max(finite, default=0.0)))
    pairs = zip(value, clean, mask.tolist(), strict=True)
    return any(bool((one - other).abs() > allowed) for one, other, is_compared in pairs if is_compared)


@given(ROWS)
def test_a_difference_is_found_as_by_comparing_every_entry(rows: tuple[list[float], list[float], list[bool]]) -> None:
    value, clean = (torch.tensor(one, dtype=torch.float32) for one in rows[:2])
    mask = torch.tensor(rows[2], dtype=torch.bool)
    assert _any_differs(value, clean, mask) == differ_one_by_one(value, clean, mask)
    assert _any_differs(value, clean, None) == differ_one_by_one(value, clean, torch.ones_like(mask))


def test_integers_and_booleans_differ_if_they_are_not_equal() -> None:
    ids, mask = torch.tensor([3, 4]), torch.tensor([True, False])
    assert not _any_differs(ids, torch.tensor([3, 5]), mask)
    assert _any_differs(ids, torch.tensor([2, 4]), mask)
    assert _any_differs(mask, ~mask, None)
