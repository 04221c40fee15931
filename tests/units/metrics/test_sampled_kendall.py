"""τ-b estimated from a sample of units: against scipy, and against all samples of a small set."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from scipy.stats import kendalltau

from attnaudit.metrics import kendall_tau_b
from attnaudit.metrics.sampled_kendall import sampled_tau_b, sampled_tau_b_of_rows


def drawn(seed: int, units: int, *, ties: float, related: float = 0.6) -> tuple[torch.Tensor, torch.Tensor]:
    """Return x and y of units. A share of the values of y is 0."""
    random = np.random.default_rng(seed)
    x = random.normal(size=units)
    y = np.exp(related * x + random.normal(size=units))
    return torch.from_numpy(x), torch.from_numpy(np.where(random.random(units) < ties, 0.0, y))


@pytest.mark.parametrize("ties", [0.0, 0.5])
def test_all_units_give_tau_b_itself(ties: float) -> None:
    x, y = drawn(0, 60, ties=ties)
    found = sampled_tau_b(x, y, 60)
    assert found.tau == pytest.approx(kendalltau(x, y).statistic, abs=1e-12)
    assert found.variance == 0


def test_the_estimate_is_the_jackknife_with_the_finite_population_correction() -> None:
    x, y = drawn(1, 40, ties=0.4)
    found, left = sampled_tau_b(x, y, 100), 1 - 40 / 100
    tau = kendalltau(x, y).statistic
    without = np.array([kendalltau(np.delete(x.numpy(), i), np.delete(y.numpy(), i)).statistic for i in range(40)])
    assert found.tau == pytest.approx(tau - left * 39 * (without.mean() - tau), abs=1e-12)
    assert found.variance == pytest.approx(left * 39 / 40 * np.square(without - without.mean()).sum(), abs=1e-12)


def test_without_ties_the_estimate_is_unbiased_over_all_samples() -> None:
    x, y = drawn(2, 14, ties=0.0)
    estimates = [
        sampled_tau_b(x[list(chosen)], y[list(chosen)], 14).tau for chosen in itertools.combinations(range(14), 12)
    ]
    assert np.mean(estimates) == pytest.approx(kendalltau(x, y).statistic, abs=1e-12)


def test_the_bias_and_the_variance_with_ties() -> None:
    x, y = drawn(3, 1500, ties=0.85)
    truth, random = kendalltau(x, y).statistic, np.random.default_rng(0)
    estimates, plain = [], []
    for _ in range(250):
        chosen = random.permutation(1500)[:120]
        estimates.append(sampled_tau_b(x[chosen], y[chosen], 1500))
        plain.append(kendall_tau_b(x[chosen], y[chosen]).item())
    taus, variances = (np.array([getattr(one, name) for one in estimates]) for name in ("tau", "variance"))
    error = taus.std(ddof=1) / math.sqrt(len(taus))
    assert abs(taus.mean() - truth) < 3 * error
    assert abs(taus.mean() - truth) < abs(np.mean(plain) - truth) + 3 * error
    assert variances.mean() == pytest.approx(taus.var(ddof=1), rel=0.3)


@pytest.mark.parametrize("different", [0, 9, 10])
def test_a_sample_with_few_different_values_is_too_small(different: int) -> None:
    x, y = torch.arange(50.0), torch.zeros(50)
    y[:different] = torch.arange(1.0, different + 1)
    assert math.isnan(sampled_tau_b(x, y, 100).tau) == (different < 10)
    assert math.isnan(sampled_tau_b(y, x, 100).tau) == (different < 10)


def test_the_population_contains_the_sample() -> None:
    with pytest.raises(ValueError, match="at least the 20 units"):
        sampled_tau_b(torch.arange(20.0), torch.arange(20.0), 19)


def test_several_rows_have_the_estimates_of_single_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn((5, 40), generator=generator)
    y = (x + torch.randn((5, 40), generator=generator)).clamp_min(0)
    y[3] = 0
    y[3, :9] = torch.arange(9.0) + 1
    monkeypatch.setattr("attnaudit.metrics.sampled_kendall.PAIRS_AT_ONCE", 2 * 40 * 40 + 1)
    together = sampled_tau_b_of_rows(x, y, 300)
    monkeypatch.setattr("attnaudit.metrics.sampled_kendall.PAIRS_AT_ONCE", 100)
    alone = torch.tensor([sampled_tau_b(one, other, 300) for one, other in zip(x, y, strict=True)])
    torch.testing.assert_close(torch.stack(together, dim=1), alone.double(), equal_nan=True, rtol=1e-6, atol=1e-6)
    assert together[0].isnan().tolist() == [False, False, False, True, False]
