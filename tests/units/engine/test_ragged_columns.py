"""Some rows of columns in memory and in files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from attnaudit.disk_arrays.chosen_rows import ChosenRows
from attnaudit.engine.ragged_columns import RaggedBuilder, lengths_of

LENGTHS = [3, 0, 2, 5, 1]
CHOSEN = np.array([0, 2, 3])


@pytest.mark.parametrize("in_file", [False, True])
def test_chosen_rows_equal_a_selection(in_file: bool, tmp_path: Path) -> None:
    builder = RaggedBuilder(tmp_path / "column" if in_file else None)
    builder.add(np.arange(float(sum(LENGTHS))), np.array(LENGTHS))
    column = builder.column()
    chosen = ChosenRows(column, CHOSEN)
    expected = [column[i] for i in CHOSEN.tolist()]
    assert len(chosen) == len(expected)
    for found in (list(chosen), chosen[:], [chosen[i] for i in range(3)]):
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_array_equal(one, other)
    np.testing.assert_array_equal(chosen[-1], expected[-1])


def test_lengths_of_rows_in_a_file_are_known_without_reading_it(tmp_path: Path) -> None:
    builder = RaggedBuilder(tmp_path / "column")
    builder.add(np.arange(float(sum(LENGTHS))), np.array(LENGTHS))
    column = builder.column()
    (tmp_path / "column").unlink()
    assert lengths_of(column).tolist() == LENGTHS
    assert lengths_of(ChosenRows(column, CHOSEN)).tolist() == [3, 2, 5]
    assert lengths_of(ChosenRows(["ab", "", "c"], np.array([0, 2]))).tolist() == [2, 1]


@pytest.mark.parametrize("in_file", [False, True])
@pytest.mark.parametrize("other", [np.zeros(2, dtype=np.float32), np.zeros((2, 1))], ids=["data type", "shape"])
def test_values_of_another_kind_are_refused(in_file: bool, other: np.ndarray, tmp_path: Path) -> None:
    builder = RaggedBuilder(tmp_path / "column" if in_file else None)
    builder.add(np.zeros(3), np.array([1, 2]))
    builder.add(other[:0], np.array([0]))
    with pytest.raises(ValueError, match=r"float\d\d values of shape .* follow float64 values of shape \(\)"):
        builder.add(other, np.array([2]))
