"""The lengths of rows in a temporary file: equal to a list, and copied to other processes."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attnaudit.disk_arrays import filed_blocks
from attnaudit.disk_arrays.filed_arrays import FiledArray
from attnaudit.engine.row_lengths import RowLengths
from attnaudit.measures.quantised_states import Retained
from attnaudit.measures.ranked_states import RankedHidden


@pytest.mark.parametrize("n", [0, 3, 100])
def test_lengths_equal_a_list_in_every_process(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filed_blocks, "BLOCK", 8)
    expected = [1 + i % 7 for i in range(n)]
    lengths = RowLengths(iter(expected))
    for found in (lengths, pickle.loads(pickle.dumps(lengths))):
        assert (len(found), list(found), found[1:3]) == (n, expected, expected[1:3])
        assert isinstance(np.asanyarray(found), FiledArray) == (n > 8)
        assert np.asarray(found, dtype=np.int64).tolist() == expected
        if n:
            assert type(found[-1]) is int
            assert found[-1] == expected[-1]


@pytest.mark.parametrize("n", [3, 100])
def test_a_copy_can_be_changed_without_changing_the_lengths(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filed_blocks, "BLOCK", 8)
    lengths = RowLengths([1] * n)
    copied = np.array(lengths)
    copied[0] = 99
    assert (copied[0], list(lengths)) == (99, [1] * n)


def test_pickled_lengths_take_less_than_two_bytes_per_row() -> None:
    lengths = RowLengths(np.random.default_rng(0).integers(1, 40, 200_000).tolist())
    assert len(pickle.dumps(lengths)) < 400_000


@pytest.mark.parametrize("n", [0, 3, 100])
def test_shared_lengths_are_read_from_one_file(n: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(filed_blocks, "BLOCK", 8)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    expected = [1 + i % 7 for i in range(n)]
    with RowLengths(expected).shared() as shared:
        content = pickle.dumps(shared)
        assert len(content) < 300 + len(str(tmp_path))  # the path, and no lengths
        found = pickle.loads(content)
        for one in (shared, found):
            assert (len(one), list(one), one[1:3]) == (n, expected, expected[1:3])
        assert pickle.dumps(found) != content  # a copy of the copy has its own file
        copied = np.array(found)
        copied[:1] = 99
        if n:
            with pytest.raises(ValueError, match="read-only"):
                np.asarray(found)[0] = 99
        assert list(found) == expected
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("measure", "limit"), [(RankedHidden, "MOST_INSTANCES"), (Retained, "MOST_OCCURRENCES")])
def test_the_sample_is_the_same_for_lengths_in_a_file(
    measure: Any, limit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(filed_blocks, "BLOCK", 8)
    lengths = [1 + i % 7 for i in range(60)]
    for most in (10, 1_000):
        monkeypatch.setattr(f"{measure.body.__module__}.{limit}", most)
        in_memory, in_file = (measure.body("name", None, given) for given in (lengths, RowLengths(lengths)))
        assert in_memory._sampled(3).tolist() == in_file._sampled(3).tolist()
        assert (np.diff(in_file._sampled(3)) > 0).all()
