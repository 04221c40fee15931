"""Strings in temporary files: equal to strings in memory, in any slice, and sorted block by block."""

from __future__ import annotations

import tracemalloc
from collections import Counter
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnaudit.data import sorted_strings
from attnaudit.data.sorted_strings import in_order, stored
from attnaudit.disk_arrays import filed_blocks
from attnaudit.disk_arrays.filed_arrays import FiledArray

WORDS = ["", "a", "a#2", "ab", "b", "ü", "\ufffd", "𝄞", "a" * 300]


@pytest.fixture(scope="module", autouse=True)
def small_blocks() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(filed_blocks, "BLOCK", 8)
        patch.setattr(sorted_strings, "SAMPLED", 2)
        yield


@given(st.lists(st.one_of(st.sampled_from(WORDS), st.text(st.characters(exclude_categories=["Cs"]))), max_size=60))
def test_strings_are_sorted_as_in_memory(strings: list[str]) -> None:
    found = in_order(stored(strings))
    order = sorted(range(len(strings)), key=strings.__getitem__)  # a stable sort
    before: Counter[str] = Counter()
    earlier = []
    for one in strings:
        earlier.append(before[one])
        before[one] += 1
    assert list(found.strings) == sorted(strings)
    assert found.order.tolist() == order
    assert found.earlier.tolist() == earlier
    assert found.any_repeated == (max(earlier, default=0) > 0)


@given(st.lists(st.sampled_from(WORDS), max_size=30), st.slices(30), st.integers(-30, 29))
def test_strings_in_files_equal_those_in_memory(strings: list[str], some: slice, row: int) -> None:
    found = stored(strings)
    assert (len(found), list(found), found[some]) == (len(strings), strings, strings[some])
    if -len(strings) <= row < len(strings):
        assert found[row] == strings[row]
    else:
        with pytest.raises(IndexError):
            found[row]


@pytest.mark.parametrize("repeated", [False, True])
def test_the_memory_does_not_grow_with_the_strings(repeated: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filed_blocks, "BLOCK", 512)
    monkeypatch.setattr(sorted_strings, "SAMPLED", 20)

    def peak(n: int) -> int:
        """Return the memory that sorting n strings needs at most, in bytes."""
        numbers = np.random.default_rng(0).integers(9 if repeated else 10**15, size=n)
        strings = (f"{one:016x}" for one in numbers.tolist())
        strings = iter([*strings])
        tracemalloc.start()
        try:
            found = in_order(stored(strings))
            assert isinstance(found.order, FiledArray)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    few = peak(4_000)  # what is kept after the first call, such as imported modules, does not count
    few, many = peak(4_000), peak(20_000)
    assert (many - few) / 16_000 < 4, f"{few} and {many} bytes"
