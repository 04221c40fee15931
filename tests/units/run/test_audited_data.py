"""Doubts about the accuracy of a model."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest

from attnaudit.run.audited_data import accuracy_notes
from tests.units.report.example_runs import run_record


def notes(labels: list[int], predicted: list[int]) -> list[str]:
    known = np.array(labels) >= 0
    hits = (np.array(labels) == np.array(predicted))[known]
    accuracy = float(hits.mean()) if known.any() else None
    record = msgspec.structs.replace(run_record([]).measured[0], labelled=int(known.sum()), accuracy=accuracy)
    return accuracy_notes(record, np.array(labels))


def test_exchanged_class_names_are_noted() -> None:
    (note,) = notes([0] * 6 + [1] * 4 + [-1], [1] * 6 + [0] * 4 + [0])
    assert note.startswith("The accuracy is 0.000. It would be 0.600 if the model always predicted the most frequent")
    assert "class names are in the order of the model's outputs" in note


@pytest.mark.parametrize("labels", [[0] * 6 + [1] * 4, [0, 1] * 5, [-1] * 10])
def test_constant_answers_and_unlabelled_rows_are_not_doubted(labels: list[int]) -> None:
    assert notes(labels, [0] * 10) == []


@given(st.lists(st.tuples(st.integers(-1, 3), st.integers(0, 3)), min_size=1, max_size=60))
def test_the_doubt_is_a_binomial_test_and_does_not_depend_on_names_or_order(rows: list[tuple[int, int]]) -> None:
    labels, predicted = (list(column) for column in zip(*rows, strict=True))
    known = [row for row in rows if row[0] >= 0]
    doubted = bool(notes(labels, predicted))
    if known:
        share = max(sum(label == one for label, _ in known) for one in range(4)) / len(known)
        hits = sum(label == answer for label, answer in known)
        assert doubted == (binomtest(hits, len(known), share, alternative="less").pvalue < 0.01)
    renamed = [one if one < 0 else 3 - one for one in labels]
    assert bool(notes(renamed[::-1], [3 - one for one in predicted][::-1])) == doubted
