"""Batches stay within the token budget, and need as little time as possible."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from attnaudit.engine.batches.batch_sizes import sizes_of_batches

WIDTHS = st.lists(st.integers(1, 12), max_size=7)


def cost(widths: list[int], sizes: list[int], per_pass: int) -> int:
    ends = [sum(sizes[: i + 1]) for i in range(len(sizes))]
    return sum(per_pass + size * max(widths[end - size : end]) for end, size in zip(ends, sizes, strict=True))


@given(WIDTHS, st.integers(1, 40), st.integers(0, 15), st.none() | st.integers(1, 4))
def test_no_other_split_within_the_budget_costs_less(
    widths: list[int], budget: int, per_pass: int, most: int | None
) -> None:
    sizes = sizes_of_batches(widths, budget, per_pass=per_pass, most=most)
    assert sum(sizes) == len(widths)
    allowed = []
    for cuts in range(2 ** max(0, len(widths) - 1)):
        ends = [0, *(i + 1 for i in range(len(widths) - 1) if cuts >> i & 1), len(widths)]
        split = [after - before for before, after in pairwise(ends)] if widths else []
        longest = [max(widths[start:end]) for start, end in pairwise(ends)] if widths else []
        if all(
            size == 1 or (size * width <= budget and size <= (most or size))
            for size, width in zip(split, longest, strict=True)
        ):
            allowed.append(split)
    assert sizes in allowed
    assert cost(widths, sizes, per_pass) == min(cost(widths, split, per_pass) for split in allowed)


def test_without_a_cost_of_passes_batches_are_filled() -> None:
    assert sizes_of_batches([10, 5, 5, 5, 1], 20) == [2, 3]
    assert sizes_of_batches([10, 5, 5, 5, 1], 20, most=1) == [1] * 5
    assert sizes_of_batches([30, 5], 20) == [1, 1]
    assert sizes_of_batches([5, 10, 5, 1], 20) == [2, 2]
    assert sizes_of_batches([], 20) == []
