from itertools import permutations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attnaudit.metrics.shapley import shapley_values
from tests.strategies import seeds


def mean_contributions(payoffs: list[float], players: int) -> list[float]:
    """Return Shapley values by their definition: the mean contribution over all orders."""
    total, orders = [0.0] * players, list(permutations(range(players)))
    for order in orders:
        coalition = 0
        for player in order:
            total[player] += payoffs[coalition | 1 << player] - payoffs[coalition]
            coalition |= 1 << player
    return [value / len(orders) for value in total]


@given(st.integers(1, 6), seeds)
def test_it_is_the_mean_contribution_over_all_orders(players: int, seed: int) -> None:
    payoffs = torch.randn(2**players, 2, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    for game in (0, 1):
        expected = torch.tensor(mean_contributions(payoffs[:, game].tolist(), players), dtype=torch.float64)
        torch.testing.assert_close(shapley_values(payoffs[:, game]), expected)
        torch.testing.assert_close(shapley_values(payoffs)[:, game], expected)


def test_values_sum_to_the_payoff_of_all_players() -> None:
    payoffs = torch.arange(16.0) ** 2
    assert shapley_values(payoffs).sum().item() == pytest.approx(225.0)
    assert shapley_values(torch.tensor([3.0])).tolist() == []


def test_the_number_of_payoffs_must_be_a_power_of_two() -> None:
    with pytest.raises(ValueError, match=r"expected 2\^n numbers"):
        shapley_values(torch.zeros(6))
