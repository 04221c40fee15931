from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from attnaudit.metrics import normalized_entropy
from tests.strategies import pad_rows, weight_rows


@given(st.lists(weight_rows(min_size=2), min_size=1, max_size=4), st.integers(0, 3))
def test_equals_scipy_entropy_over_log_n_on_ragged_rows_with_zeros(rows: list[list[float]], extra: int) -> None:
    p, mask = pad_rows(rows, extra=extra)
    expected = [stats.entropy(row) / np.log(len(row)) for row in rows]
    np.testing.assert_allclose(normalized_entropy(p, mask).numpy(), expected, atol=1e-12)
    shuffled = torch.flip(p, [1]), torch.flip(mask, [1])
    np.testing.assert_allclose(normalized_entropy(*shuffled).numpy(), expected, atol=1e-12)


@given(weight_rows(min_size=2))
def test_is_between_a_one_hot_and_the_uniform_distribution(row: list[float]) -> None:
    p = torch.tensor(row, dtype=torch.float64)
    assert normalized_entropy(torch.eye(len(row))[0]) == 0
    assert 0 <= normalized_entropy(p) <= 1
    assert normalized_entropy(torch.ones(len(row))).item() == pytest.approx(1.0, abs=1e-12)


def test_one_token_no_token_no_mass_and_nan_are_undefined() -> None:
    p = torch.tensor([[1.0, 0.0], [0.5, 0.5], [0.0, 0.0], [float("nan"), 1.0], [0.5, 0.5]])
    mask = torch.tensor([[True, False], [False, False], [True, True], [True, True], [True, True]])
    assert normalized_entropy(p, mask).isnan().tolist() == [True, True, True, True, False]


def test_three_dimensional_rows_take_a_broadcast_mask() -> None:
    p = torch.rand(2, 4, 3, generator=torch.Generator().manual_seed(0))
    mask = torch.tensor([[True, True, False], [True, True, True]])
    result = normalized_entropy(p, mask[:, None])
    assert result.shape == (2, 4)
    torch.testing.assert_close(result[0], normalized_entropy(p[0, :, :2]))


def test_a_negative_weight_is_refused() -> None:
    with pytest.raises(ValueError, match=r"p: expected weights of at least 0 but got -0\.5"):
        normalized_entropy(torch.tensor([[-0.5, 1.5]]))
