from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from attnaudit.metrics import kendall, kendall_p_value, kendall_tau_b, near_tied_pairs, weighted_kendall_tau
from tests.strategies import pad_rows

# Few distinct values, so that ties are common.
pairs = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), min_size=1, max_size=12)
batches = st.lists(pairs, min_size=1, max_size=5)


def columns(rows: list[list[tuple[int, int]]]) -> tuple[list[np.ndarray], list[np.ndarray]]:
    return [np.array(row)[:, 0] for row in rows], [np.array(row)[:, 1] for row in rows]


def scipy_kendall(x: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    if len(x) < 2:
        return np.nan, np.nan
    result = stats.kendalltau(x, y)
    return float(result.statistic), float(result.pvalue)


@given(batches)
def test_tau_b_and_p_value_equal_scipy_with_ties_on_ragged_batches(rows: list[list[tuple[int, int]]]) -> None:
    left, right = columns(rows)
    x, mask = pad_rows(left)
    y, _ = pad_rows(right, fill=-1.0)
    expected = np.array([scipy_kendall(a, b) for a, b in zip(left, right, strict=True)])
    np.testing.assert_allclose(kendall_tau_b(x, y, mask).numpy(), expected[:, 0], atol=1e-12)
    np.testing.assert_allclose(kendall_p_value(x, y, mask).numpy(), expected[:, 1], atol=1e-12)


@pytest.mark.parametrize("length", [2, 3, 10, 33, 34, 35, 60, 200, 256, 257, 700])
@pytest.mark.parametrize("kind", ["random", "sorted", "one exchange", "reversed", "ties"])
def test_p_value_equals_scipy_at_every_length_and_departure(length: int, kind: str) -> None:
    rng = np.random.default_rng(length)
    x = np.arange(length, dtype=float)
    y = {
        "random": rng.permutation(length).astype(float),
        "sorted": x.copy(),
        "one exchange": x[[1, 0, *range(2, length)]],
        "reversed": -x,
        "ties": np.floor(x / 2) + rng.integers(0, 2, length) * (length > 3) + (x == length - 1) * length,
    }[kind]
    result = kendall(torch.from_numpy(x), torch.from_numpy(y))
    expected = scipy_kendall(x, y)
    assert result.tau.item() == pytest.approx(expected[0], abs=1e-12)
    assert result.p_value.item() == pytest.approx(expected[1], rel=1e-9, abs=1e-300)


@given(pairs)
def test_tau_is_symmetric_bounded_and_changes_sign_with_its_argument(row: list[tuple[int, int]]) -> None:
    x, y = (torch.tensor(side, dtype=torch.float64) for side in zip(*row, strict=True))
    tau = kendall_tau_b(x, y)
    assert torch.equal(tau.isnan(), torch.tensor(len(set(x.tolist())) < 2 or len(set(y.tolist())) < 2))
    if not tau.isnan():
        assert tau.abs() <= 1
        assert tau.item() == pytest.approx(kendall_tau_b(y, x).item(), abs=1e-15)
        assert tau.item() == -kendall_tau_b(-x, y).item()


@given(batches, st.integers(0, 5), st.randoms(use_true_random=False))
def test_tau_does_not_depend_on_padding_order_of_tokens_or_batch(rows, extra, random) -> None:
    left, right = columns(rows)
    x, mask = pad_rows(left)
    y, _ = pad_rows(right)
    together = kendall_tau_b(x, y, mask)
    order = list(range(x.shape[1] + extra))
    random.shuffle(order)
    wide_x, wide_mask = pad_rows(left, fill=float("nan"), extra=extra)
    wide_y, _ = pad_rows(right, fill=float("inf"), extra=extra)
    shuffled = kendall_tau_b(wide_x[:, order], wide_y[:, order], wide_mask[:, order])
    alone = torch.stack([kendall_tau_b(x[i : i + 1], y[i : i + 1], mask[i : i + 1])[0] for i in range(len(x))])
    assert torch.equal(together.nan_to_num(9.0), shuffled.nan_to_num(9.0))
    assert torch.equal(together.nan_to_num(9.0), alone.nan_to_num(9.0))


def test_rows_with_nothing_to_rank_are_undefined() -> None:
    x = torch.tensor([[1.0, 2.0, 3.0], [1.0, 1.0, 1.0], [1.0, 2.0, 3.0], [1.0, float("nan"), 3.0], [1.0, 2.0, 3.0]])
    mask = torch.tensor([[True, False, False], [True] * 3, [False] * 3, [True] * 3, [True] * 3])
    assert kendall_tau_b(x, x, mask).isnan().tolist() == [True, True, True, True, False]
    assert kendall_p_value(x, x, mask).isnan().tolist() == [True, True, True, True, False]
    assert near_tied_pairs(x, mask).isnan().tolist() == [True, False, True, True, False]


def test_long_and_short_rows_share_a_batch() -> None:
    rng = np.random.default_rng(3)
    left = [rng.integers(0, 50, n) for n in (4, 600, 30, 300)]
    right = [rng.integers(0, 50, len(row)) for row in left]
    x, mask = pad_rows(left)
    y, _ = pad_rows(right)
    expected = [scipy_kendall(a, b)[0] for a, b in zip(left, right, strict=True)]
    np.testing.assert_allclose(kendall_tau_b(x, y, mask).numpy(), expected, atol=1e-12)


def test_integers_half_precision_and_infinities_are_ranked() -> None:
    x = torch.tensor([[1, 2, 3]])
    assert kendall_tau_b(x, x.half()).item() == pytest.approx(1.0)
    endless = torch.tensor([[float("-inf"), 0.0, float("inf"), float("inf")]])
    assert kendall_tau_b(endless, torch.tensor([[0.0, 1.0, 2.0, 2.0]])).item() == pytest.approx(1.0)


def test_a_wrong_shape_or_mask_is_named() -> None:
    x = torch.zeros(2, 3)
    with pytest.raises(ValueError, match=r"y: expected the shape of x, \(2, 3\), but got \(2, 4\)"):
        kendall_tau_b(x, torch.zeros(2, 4))
    with pytest.raises(ValueError, match=r"mask: expected a boolean tensor.* but got torch.float32"):
        kendall_tau_b(x, x, torch.ones(2, 3))
    with pytest.raises(ValueError, match=r"mask: expected a shape that broadcasts to \(2, 3\) but got \(5, 3\)"):
        kendall_tau_b(x, x, torch.ones(5, 3, dtype=torch.bool))
    with pytest.raises(ValueError, match="x: expected a tensor of shape"):
        kendall_tau_b(torch.tensor(1.0), torch.tensor(1.0))


def shieh(x: np.ndarray, y: np.ndarray, w: np.ndarray) -> float:
    """Return Shieh's weighted τ, computed pair by pair."""
    above = below = 0.0
    for i in range(len(x)):
        for j in range(i + 1, len(x)):
            above += w[i] * w[j] * np.sign(x[i] - x[j]) * np.sign(y[i] - y[j])
            below += w[i] * w[j]
    return above / below


@given(st.integers(2, 12), st.integers(0, 10_000))
def test_weighted_tau_equals_scipy_without_ties(n: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    x, y, w = rng.normal(size=n), rng.normal(size=n), rng.uniform(0.01, 1, n)
    expected = stats.weightedtau(x, y, rank=False, weigher=lambda r: w[r], additive=False).statistic
    result = weighted_kendall_tau(*(torch.from_numpy(v) for v in (x, y, w)))
    assert result.item() == pytest.approx(expected, abs=1e-12)


@given(batches, st.integers(0, 1000))
def test_weighted_tau_follows_the_formula_with_ties_and_padding(rows, seed: int) -> None:
    left, right = columns(rows)
    rng = np.random.default_rng(seed)
    weight = [rng.uniform(0.01, 1, len(row)) for row in left]
    x, mask = pad_rows(left, extra=2)
    y, _ = pad_rows(right, extra=2)
    w, _ = pad_rows(weight, fill=-5.0, extra=2)
    result = weighted_kendall_tau(x, y, w, mask)
    for a, b, c, value in zip(left, right, weight, result.tolist(), strict=True):
        if len(set(a)) < 2 or len(set(b)) < 2:
            assert np.isnan(value)
        else:
            assert value == pytest.approx(shieh(a, b, c), abs=1e-12)


def test_weighted_tau_blocks_of_a_long_row_add_up() -> None:
    rng = np.random.default_rng(0)
    x, y, w = rng.normal(size=3000), rng.normal(size=3000), rng.uniform(size=3000)
    expected = stats.weightedtau(x, y, rank=False, weigher=lambda r: w[r], additive=False).statistic
    assert weighted_kendall_tau(*(torch.from_numpy(v) for v in (x, y, w))).item() == pytest.approx(expected, abs=1e-10)


def test_weighted_tau_is_undefined_without_a_weighted_pair_and_refuses_negative_weights() -> None:
    x = torch.tensor([1.0, 2.0, 3.0])
    assert weighted_kendall_tau(x, x, torch.tensor([1.0, 0.0, 0.0])).isnan()
    assert weighted_kendall_tau(x, x, torch.zeros(3)).isnan()
    assert weighted_kendall_tau(x[:1], x[:1], x[:1]).isnan()
    with pytest.raises(ValueError, match=r"weights: expected weights of at least 0 but got -1\.0"):
        weighted_kendall_tau(x, x, torch.tensor([1.0, -1.0, 1.0]))


@given(st.lists(st.lists(st.floats(0, 1), min_size=2, max_size=10), min_size=1, max_size=4), st.floats(0, 0.3))
def test_near_ties_are_counted_pair_by_pair(rows: list[list[float]], tolerance: float) -> None:
    x, mask = pad_rows([np.array(row) for row in rows])
    result = near_tied_pairs(x, mask, tolerance=tolerance).tolist()
    for row, value in zip(rows, result, strict=True):
        low, high = (
            np.mean([abs(a - b) <= tolerance + slack for i, a in enumerate(row) for b in row[:i]])
            for slack in (-1e-12, 1e-12)
        )
        assert low - 1e-12 <= value <= high + 1e-12


def test_a_negative_tolerance_is_refused() -> None:
    with pytest.raises(ValueError, match="tolerance: expected a number of at least 0 but got -1"):
        near_tied_pairs(torch.zeros(1, 2), tolerance=-1)
