"""Sources of rows outside memory are merged into the groups into which those in memory are merged."""

from __future__ import annotations

import hashlib
import tracemalloc
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from attnaudit.data import sorted_strings
from attnaudit.data.sorted_strings import stored
from attnaudit.data.stored_sources import StoredSources, stored_sources
from attnaudit.disk_arrays import filed_blocks
from attnaudit.disk_arrays.filed_arrays import FiledArray, from_numbers, written
from attnaudit.engine import measuring
from attnaudit.engine import merged_groups as module
from attnaudit.engine.merged_groups import merged_groups
from attnaudit.engine.merged_sources import first_with_same, merged_sources
from attnaudit.instances import Instance
from attnaudit.statistics.group_names import GroupNames

SOURCES = ("", "a", "b", "ü", "aa", "Z")


@pytest.fixture(scope="module", autouse=True)
def small_blocks() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(filed_blocks, "BLOCK", 4)
        patch.setattr("attnaudit.disk_arrays.filed_functions.SAMPLED", 2)
        patch.setattr(sorted_strings, "SAMPLED", 2)
        patch.setattr(module, "RELEASE_EVERY", 2)
        patch.setattr(module, "MOST_SEARCHED", 2)
        yield


def sources_of(rows: Sequence[str]) -> StoredSources:
    return stored_sources(stored(rows), from_numbers(range(len(rows)), np.int64))


def hashes(sequences: Sequence[int]) -> NDArray[np.void]:
    content = (hashlib.blake2b(one.to_bytes(4), digest_size=16).digest() for one in sequences)
    return np.frombuffer(b"".join(content), "V16")


class Ids(Sequence[str]):
    """Ids that need no memory."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, row: Any) -> Any:
        return f"{row:06d}"


ROWS = st.lists(st.tuples(st.sampled_from(SOURCES), st.integers(0, 5)), min_size=1, max_size=40)


@settings(max_examples=150, deadline=None)
@given(ROWS)
def test_rows_are_grouped_as_in_memory(rows: list[tuple[str, int]]) -> None:
    ids = [f"{i:02d}" for i in range(len(rows))]
    instances = [Instance(id=one, text="t", source=source or None) for one, (source, _) in zip(ids, rows, strict=True)]
    sequences = hashes([sequence for _, sequence in rows])
    found = merged_groups(ids, sources_of([source for source, _ in rows]), first_with_same(written([sequences])))
    assert list(found) == merged_sources(instances, [one.tobytes() for one in sequences])
    order = sorted(range(len(rows)), key=lambda row: found[row])
    assert (np.diff(np.asarray(found.codes)[order]) >= 0).all()  # the order of the codes is that of the names
    assert found.distinct() == len(set(found))


@given(st.lists(st.sampled_from(SOURCES), max_size=30), st.randoms())
def test_sources_are_stored_in_another_order(rows: list[str], random: object) -> None:
    order = [*range(len(rows))]
    random.shuffle(order)  # type: ignore[attr-defined]
    found = stored_sources(stored(rows), from_numbers(order, np.int64))
    assert list(found.names) == found.names[:] == sorted({*rows} - {""})
    codes = [int(code) for code in found.codes]
    assert ["" if code < 0 else found.names[code] for code in codes] == [rows[row] for row in order]


@pytest.mark.parametrize(
    "kind",
    [
        "few sources",
        *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("many sources", "contained sources", "equal rows")),
    ],
)
def test_the_memory_does_not_grow_with_the_rows(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filed_blocks, "BLOCK", 512)
    monkeypatch.setattr("attnaudit.disk_arrays.filed_functions.SAMPLED", 20)
    monkeypatch.setattr(sorted_strings, "SAMPLED", 20)

    def peak(n: int) -> int:
        """Return the memory that is needed at most, in bytes."""
        places = np.arange(n)
        sources, sequences = [f"s{i % 5}" for i in range(n)], places
        if kind == "many sources":
            sources, sequences = [f"s{i // 3}" if i % 4 else "" for i in range(n)], places // 2
        elif kind == "contained sources":  # every second source has two of the three sequences of the source before it
            sources, sequences = [f"s{i // 5 * 2 + (i % 5 > 2)}" for i in range(n)], places // 5 * 3 + places % 5 % 3
        elif kind == "equal rows":
            sources, sequences = [""] * (n // 2) + ["s"] * (n - n // 2), places % 50
        content = written([hashes(sequences.tolist())])
        tracemalloc.start()
        try:
            found = merged_groups(Ids(n), sources_of(sources), first_with_same(content))
            assert isinstance(found.codes, FiledArray)
            if kind == "contained sources":
                assert found.distinct() == n // 5
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    peak(4_000)  # what is kept after the first call, such as imported modules, does not count
    few, many = peak(4_000), peak(20_000)
    assert (many - few) / 16_000 < 5, f"{few} and {many} bytes"


class Rows(list[Instance]):
    """Instances whose ids and sources are known, as those of large data sets are."""

    def __init__(self, sources: list[str]) -> None:
        super().__init__(Instance(id=f"{i:03d}", text="t", source=one or None) for i, one in enumerate(sources))
        self.ids = [one.id for one in self]
        self.sources = sources_of(sources)


def test_the_sources_of_many_rows_are_merged_in_files(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, sequences = Rows(["a", "a", "b", "", "a", "b"] * 4), hashes([0, 1, 0, 1, 2, 2] * 4)
    assembled: Any = SimpleNamespace(sequences=lambda: written([sequences]))
    expected = measuring._sources(rows, assembled)
    assert expected == (3, ["source a"] * 24)
    monkeypatch.setattr(measuring, "ROWS_IN_MEMORY", 20)
    found = measuring._sources(rows, assembled)
    assert isinstance(found[1], GroupNames)
    assert (found[0], [*found[1]]) == expected
