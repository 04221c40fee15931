from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import f1_score

from attnaudit.metrics import f1
from tests.strategies import seeds


@given(st.integers(2, 5), st.integers(1, 20), seeds)
def test_equals_scikit_learn(classes: int, n: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    true, predicted = rng.integers(0, classes, n), rng.integers(0, classes, n)
    result = f1(true, predicted, classes)
    if classes > 2:
        assert result == pytest.approx(f1_score(true, predicted, average="macro"))
    elif (true == 1).any() or (predicted == 1).any():
        assert result == pytest.approx(f1_score(true, predicted))
    else:
        assert np.isnan(result)


def test_several_sets_of_predictions_are_scored_one_by_one() -> None:
    rng = np.random.default_rng(0)
    true, predicted = rng.integers(0, 3, 30), rng.integers(0, 3, (30, 7))
    expected = [f1(true, predicted[:, r], ("a", "b", "c")) for r in range(7)]
    np.testing.assert_allclose(f1(true, predicted, ("a", "b", "c")), expected)


def test_nothing_to_score_is_undefined() -> None:
    assert np.isnan(f1([], [], 2))
    assert np.isnan(f1([], np.empty((0, 4), dtype=int), 3)).tolist() == [True] * 4
    assert np.isnan(f1([0, 0], [0, 0], 2))


def test_values_that_are_not_class_indices_are_refused() -> None:
    with pytest.raises(ValueError, match="predicted: expected class indices from 0 to 1 but got 2"):
        f1([0, 1], [0, 2], 2)
    with pytest.raises(ValueError, match="true: expected class indices from 0 to 1 but got -1"):
        f1([0, -1], [0, 1], 2)
    with pytest.raises(ValueError, match="true: expected class indices, integers, but got"):
        f1(["a", "b"], [0, 1], 2)
    with pytest.raises(ValueError, match=r"predicted: expected shape \(2,\) or \(2, R\) but got \(3,\)"):
        f1([0, 1], [0, 1, 1], 2)
    with pytest.raises(ValueError, match="classes: expected at least 2 but got 1"):
        f1([0], [0], 1)
