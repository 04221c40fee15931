from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.spatial.distance import jensenshannon

from attnaudit.metrics import jensen_shannon, largest_jensen_shannon, total_variation
from tests.strategies import pad_rows, weight_row_pairs


@given(st.lists(weight_row_pairs(), min_size=1, max_size=4), st.integers(0, 3))
def test_jsd_is_the_square_of_scipys_distance_on_ragged_rows_with_zeros(rows, extra: int) -> None:
    p, mask = pad_rows([a for a, _ in rows], extra=extra)
    q, _ = pad_rows([b for _, b in rows], extra=extra, fill=float("nan"))
    expected = [jensenshannon(a, b) ** 2 for a, b in rows]
    result = jensen_shannon(p, q, mask)
    np.testing.assert_allclose(result.numpy(), np.nan_to_num(expected), atol=1e-9)
    order = torch.randperm(p.shape[1], generator=torch.Generator().manual_seed(extra))
    torch.testing.assert_close(jensen_shannon(p[:, order], q[:, order], mask[:, order]), result, atol=1e-12, rtol=0)
    torch.testing.assert_close(jensen_shannon(p[:1], q[:1], mask[:1]), result[:1], atol=1e-12, rtol=0)


@given(weight_row_pairs())
def test_jsd_is_symmetric_bounded_by_ln_2_and_zero_for_equal_rows(row) -> None:
    p, q = (torch.tensor(side, dtype=torch.float64) for side in row)
    assert torch.isclose(jensen_shannon(p, q), jensen_shannon(q, p), atol=1e-15)
    assert 0 <= jensen_shannon(p, q) <= math.log(2)
    assert jensen_shannon(p, p) == 0


def test_jsd_has_a_finite_gradient_at_zero_weights() -> None:
    p = torch.tensor([[0.5, 0.5, 0.0]], requires_grad=True)
    jensen_shannon(p, torch.tensor([[0.0, 0.2, 0.8]])).sum().backward()
    assert p.grad is not None
    assert p.grad.isfinite().all()


def test_rows_without_tokens_or_mass_are_undefined() -> None:
    p = torch.tensor([[1.0, 0.0], [0.0, 0.0], [1.0, 0.0], [float("nan"), 1.0]])
    q = torch.full((4, 2), 0.5)
    mask = torch.tensor([[False, False], [True, True], [True, False], [True, True]])
    assert jensen_shannon(p, q, mask).isnan().tolist() == [True, True, False, True]
    assert largest_jensen_shannon(p, mask).isnan().tolist() == [True, True, False, True]


def test_negative_weights_and_different_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match=r"q: expected weights of at least 0 but got -1\.0"):
        jensen_shannon(torch.ones(1, 2), torch.tensor([[2.0, -1.0]]))
    with pytest.raises(ValueError, match=r"q: expected the shape of p, \(1, 2\), but got \(1, 3\)"):
        jensen_shannon(torch.ones(1, 2), torch.ones(1, 3))
    with pytest.raises(
        ValueError, match=r"q: expected as many classes as in p, of shape \(1, 2\), but got the shape \(1, 3\)"
    ):
        total_variation(torch.ones(1, 2), torch.ones(1, 3))
    with pytest.raises(ValueError, match="q: expected a shape that broadcasts"):
        total_variation(torch.ones(2, 2), torch.ones(3, 2))


@given(weight_row_pairs())
def test_total_variation_is_the_largest_difference_of_any_event(row) -> None:
    p, q = (np.array(side) / sum(side) for side in row)
    events = [[bool(e >> i & 1) for i in range(len(p))] for e in range(2 ** len(p))]
    expected = max(abs(p[event].sum() - q[event].sum()) for event in events)
    result = total_variation(torch.from_numpy(p), torch.from_numpy(q))
    assert result.item() == pytest.approx(expected, abs=1e-12)
    assert torch.equal(result, total_variation(torch.from_numpy(q), torch.from_numpy(p)))


def test_total_variation_broadcasts_over_alternatives() -> None:
    alternatives = torch.tensor([[[0.7, 0.3], [0.5, 0.5]]])
    torch.testing.assert_close(
        total_variation(alternatives, torch.tensor([[[0.5, 0.5]]])), torch.tensor([[0.2, 0.0]]).double()
    )


@given(weight_row_pairs(), st.integers(0, 3))
def test_the_largest_jsd_is_reached_by_a_one_hot_and_never_exceeded(row, extra: int) -> None:
    attention, mask = pad_rows([row[0]], extra=extra)
    n = len(row[0])
    corners = jensen_shannon(torch.eye(n, dtype=torch.float64), attention[:, :n].expand(n, n))
    largest = largest_jensen_shannon(attention, mask)
    assert largest.item() == pytest.approx(corners.max().item(), abs=1e-12)
    assert jensen_shannon(torch.tensor([row[1]]), attention[:, :n]).item() <= largest.item() + 1e-12
