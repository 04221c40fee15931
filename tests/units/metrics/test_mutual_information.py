from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import mutual_info_score
from sklearn.metrics.cluster import expected_mutual_information
from sklearn.metrics.cluster._supervised import contingency_matrix

from attnaudit.metrics import mutual_information, shuffled_information
from attnaudit.metrics.mutual_information import pairwise_information

labels = st.lists(st.tuples(st.integers(-2, 3), st.integers(0, 4)), min_size=1, max_size=40)


@given(labels)
def test_equals_scikit_learn_and_is_symmetric_and_order_invariant(rows: list[tuple[int, int]]) -> None:
    a, b = np.array(rows).T
    value = mutual_information(a, b)
    assert value == pytest.approx(mutual_info_score(a, b), abs=1e-12)
    assert value == pytest.approx(mutual_information(b, a), abs=1e-12)
    assert value == pytest.approx(mutual_information(a[::-1], b[::-1]), abs=1e-12)
    assert 0 <= value <= mutual_information(a, a) + 1e-12


def test_one_label_has_no_information_and_no_instance_is_undefined() -> None:
    assert mutual_information([1, 1, 1], [0, 1, 2]) == 0
    assert np.isnan(mutual_information([], []))


def test_the_shuffle_null_agrees_with_the_expected_information_of_independent_labels() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.integers(0, 50, 334), rng.integers(0, 5, 334)
    null = shuffled_information(a, b, shuffles=200, seed=1)
    expected = expected_mutual_information(contingency_matrix(a, b, sparse=True), len(a))
    assert null.mean() == pytest.approx(expected, abs=4 * null.std() / np.sqrt(200))
    assert null.mean() == pytest.approx(0.34, abs=0.06)
    np.testing.assert_array_equal(null, shuffled_information(a, b, shuffles=200, seed=1))


def test_sequences_of_different_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match=r"b: expected the shape of a, \(2,\), but got \(3,\)"):
        mutual_information([1, 2], [1, 2, 3])
    with pytest.raises(ValueError, match=r"a: expected shape \(n,\) but got \(1, 2\)"):
        mutual_information([[1, 2]], [[1, 2]])
    with pytest.raises(ValueError, match="shuffles: expected at least 1 but got 0"):
        shuffled_information([1], [1], shuffles=0, seed=0)


@given(st.integers(1, 30), st.integers(1, 4), st.integers(1, 5), st.integers(0, 10**6))
def test_all_pairs_together_equal_each_pair_alone(n: int, first: int, second: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    a, b = rng.integers(0, 4, (first, n)), rng.integers(0, 3, (second, n))
    alone = [[mutual_info_score(x, y) for y in b] for x in a]
    np.testing.assert_allclose(pairwise_information(a, b), alone, atol=1e-12)
