from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from attnaudit.metrics import (
    adversarial_upper_bound,
    exact_adversarial_attention,
    jensen_shannon,
    largest_jensen_shannon,
    searched_adversarial_attention,
    total_variation,
)
from tests.strategies import seeds

tolerances = st.sampled_from([0.0, 0.001, 0.01, 0.05, 0.3, 1.0])


def instance(n: int, seed: int, *, ties: bool = False) -> tuple[Tensor, Tensor, float]:
    rng = np.random.default_rng(seed)
    attention = rng.dirichlet(np.full(n, 0.7))
    logits = rng.normal(size=n) * rng.choice([0.1, 2.0, 10.0])
    if ties:
        logits = np.round(logits)
        attention[rng.random(n) < 0.3] = 0.0
        attention = attention / attention.sum() if attention.sum() else np.eye(n)[0]
    return torch.from_numpy(attention), torch.from_numpy(logits), float(rng.normal())


def two_class(attention: Tensor, logits: Tensor, bias: float) -> Tensor:
    logit = (attention * logits).sum(-1) + bias
    return torch.stack([torch.sigmoid(-logit), torch.sigmoid(logit)], -1)


def grid(n: int, steps: int) -> Tensor:
    """Return every point of the simplex whose weights are multiples of 1/steps."""
    bars = np.array(list(itertools.combinations(range(steps + n - 1), n - 1))).reshape(-1, n - 1)
    edges = np.concatenate([np.full((len(bars), 1), -1), bars, np.full((len(bars), 1), steps + n - 1)], 1)
    return torch.from_numpy((np.diff(edges) - 1) / steps)


GRIDS = {1: torch.ones(1, 1).double(), 2: grid(2, 4000), 3: grid(3, 150), 4: grid(4, 45), 5: grid(5, 24)}


def feasible_maximum(points: Tensor, attention: Tensor, logits: Tensor, bias: float, tvd: float) -> float:
    moved = total_variation(two_class(points, logits, bias), two_class(attention, logits, bias))
    divergence = jensen_shannon(points, attention.expand_as(points))
    return float(divergence[moved <= tvd].max()) if bool((moved <= tvd).any()) else 0.0


@given(st.integers(1, 5), seeds, tolerances, st.booleans())
def test_no_feasible_point_of_a_dense_grid_is_further_away(n: int, seed: int, tvd: float, ties: bool) -> None:
    attention, logits, bias = instance(n, seed, ties=ties)
    _, jsd = exact_adversarial_attention(attention[None], logits[None], bias, tvd)
    assert feasible_maximum(GRIDS[n], attention, logits, bias, tvd) <= jsd.item() + 1e-9


@given(st.integers(2, 4), seeds, st.sampled_from([0.05, 0.3]))
def test_the_grid_comes_close_to_the_optimum(n: int, seed: int, tvd: float) -> None:
    """The optimum is not merely a bound: grid points near the vertex are almost as far away."""
    attention, logits, bias = instance(n, seed)
    adversary, jsd = exact_adversarial_attention(attention[None], logits[None], bias, tvd)
    shares = torch.linspace(0, 1, 400, dtype=torch.float64)[:, None]
    towards = attention + shares * (adversary - attention)
    assert feasible_maximum(towards, attention, logits, bias, tvd + 1e-9) == pytest.approx(jsd.item(), abs=1e-9)


def project_to_simplex(points: Tensor) -> Tensor:
    ordered = points.sort(-1, descending=True).values
    excess = ordered.cumsum(-1) - 1
    count = torch.arange(1, points.shape[-1] + 1)
    last = (ordered - excess / count > 0).sum(-1, keepdim=True)
    return (points - excess.gather(-1, last - 1) / last).clamp(min=0)


@settings(max_examples=15)
@given(st.integers(2, 5), seeds, st.sampled_from([0.01, 0.05]))
def test_no_projected_gradient_ascent_is_further_away(n: int, seed: int, tvd: float) -> None:
    attention, logits, bias = instance(n, seed)
    _, jsd = exact_adversarial_attention(attention[None], logits[None], bias, tvd)
    generator = torch.Generator().manual_seed(seed)
    points = project_to_simplex(attention + 0.3 * torch.randn(64, n, generator=generator, dtype=torch.float64))
    best = 0.0
    for _ in range(60):
        points = points.clone().requires_grad_()
        moved = total_variation(two_class(points, logits, bias), two_class(attention, logits, bias))
        reach = jensen_shannon(points, attention.expand_as(points)) - 20 * torch.relu(moved - tvd)
        (slope,) = torch.autograd.grad(reach.sum(), [points])
        points = project_to_simplex(points.detach() + 0.03 * slope)
        best = max(best, feasible_maximum(points, attention, logits, bias, tvd))
    assert best <= jsd.item() + 1e-9


@settings(max_examples=10)
@given(seeds, st.sampled_from([0.01, 0.05]))
def test_no_search_beats_the_exact_adversary(seed: int, tvd: float) -> None:
    attention, logits, bias = instance(5, seed)

    def decode(weights: Tensor) -> Tensor:
        return two_class(weights, logits, bias)

    _, searched, _ = searched_adversarial_attention(attention[None], decode, tvd, seeds=[seed], steps=60)
    _, exact = exact_adversarial_attention(attention[None], logits[None], bias, tvd)
    assert searched.item() <= exact.item() + 1e-9


@given(st.integers(1, 9), seeds, tolerances, st.booleans(), st.sampled_from([0.0, -40.0, 40.0, 800.0]))
@example(n=4, seed=0, tvd=0.0, ties=False, shift=800.0)
def test_the_adversary_is_a_feasible_distribution(n: int, seed: int, tvd: float, ties: bool, shift: float) -> None:
    attention, logits, bias = instance(n, seed, ties=ties)
    adversary, jsd = exact_adversarial_attention(attention[None], logits[None], bias + shift, tvd)
    moved = total_variation(
        two_class(adversary, logits, bias + shift), two_class(attention[None], logits, bias + shift)
    )
    assert moved.item() <= tvd + 1e-9
    assert adversary.sum().item() == pytest.approx(1.0, abs=1e-12)
    assert (adversary >= 0).all()
    assert jsd.item() == pytest.approx(jensen_shannon(adversary, attention[None]).item(), abs=1e-12)
    assert 0 <= jsd.item() <= largest_jensen_shannon(attention[None]).item() + 1e-12


@given(st.lists(st.tuples(st.integers(1, 8), seeds), min_size=1, max_size=5), st.integers(0, 3), tolerances)
def test_padding_order_and_batch_change_nothing(rows: list[tuple[int, int]], extra: int, tvd: float) -> None:
    parts = [instance(n, seed) for n, seed in rows]
    width = max(n for n, _ in rows) + extra
    attention, logits = torch.full((len(rows), width), torch.nan).double(), torch.full((len(rows), width), 1e9).double()
    mask = torch.zeros(len(rows), width, dtype=torch.bool)
    for i, (a, w, _) in enumerate(parts):
        attention[i, : len(a)], logits[i, : len(a)], mask[i, : len(a)] = a, w, True
    bias = torch.tensor([b for *_, b in parts], dtype=torch.float64)
    order = torch.randperm(width, generator=torch.Generator().manual_seed(extra))
    adversary, jsd = exact_adversarial_attention(attention, logits, bias, tvd, mask)
    turned, turned_jsd = exact_adversarial_attention(attention[:, order], logits[:, order], bias, tvd, mask[:, order])
    torch.testing.assert_close(turned_jsd, jsd, atol=1e-12, rtol=0)
    torch.testing.assert_close(turned, adversary[:, order], atol=1e-9, rtol=0)
    assert (adversary[~mask] == 0).all()
    for i, (a, w, b) in enumerate(parts):
        alone, alone_jsd = exact_adversarial_attention(a[None], w[None], b, tvd)
        torch.testing.assert_close(adversary[i, : len(a)], alone[0], atol=1e-12, rtol=0)
        assert jsd[i].item() == pytest.approx(alone_jsd.item(), abs=1e-12)


@given(st.integers(2, 8), seeds)
def test_divergence_grows_with_the_tolerance_up_to_the_unconstrained_maximum(n: int, seed: int) -> None:
    attention, logits, bias = instance(n, seed)
    curve = [
        exact_adversarial_attention(attention[None], logits[None], bias, tvd)[1].item()
        for tvd in (0.0, 0.005, 0.01, 0.05, 0.2, 0.5, 1.0)
    ]
    assert all(a <= b + 1e-12 for a, b in itertools.pairwise(curve))
    assert curve[-1] == pytest.approx(largest_jensen_shannon(attention[None]).item(), abs=1e-12)


def test_equal_token_logits_leave_every_attention_feasible() -> None:
    attention = torch.tensor([[0.5, 0.3, 0.2]])
    adversary, jsd = exact_adversarial_attention(attention, torch.full((1, 3), 0.1), 0.3, 0.0)
    assert adversary.tolist() == [[0.0, 0.0, 1.0]]
    assert jsd.item() == pytest.approx(largest_jensen_shannon(attention).item())


def test_one_token_can_only_keep_its_weight() -> None:
    adversary, jsd = exact_adversarial_attention(torch.ones(1, 1), torch.tensor([[3.0]]), 0.0, 0.05)
    assert (adversary.item(), jsd.item()) == (1.0, 0.0)


def test_a_slab_that_leaves_zero_to_one_is_open() -> None:
    """At p = .0067, every smaller probability is within .01, so the token with the lowest logit may take all weight."""
    attention, logits = torch.tensor([[0.9, 0.1]]), torch.tensor([[0.0, -50.0]])
    adversary, _ = exact_adversarial_attention(attention, logits, 0.0, 0.01)
    assert adversary.tolist() == [[0.0, 1.0]]


def test_rows_without_real_tokens_or_finite_values_are_undefined() -> None:
    attention = torch.tensor([[0.5, 0.5], [0.5, 0.5], [0.0, 0.0], [0.5, 0.5], [0.5, 0.5], [math.nan, 1.0]])
    logits = torch.tensor([[1.0, 2.0], [1.0, 2.0], [1.0, 2.0], [math.nan, 2.0], [math.inf, 2.0], [1.0, 2.0]])
    mask = torch.ones(6, 2, dtype=torch.bool)
    mask[1] = False
    adversary, jsd = exact_adversarial_attention(attention, logits, torch.zeros(6), 0.05, mask)
    assert jsd.isnan().tolist() == [False, True, True, True, True, True]
    assert adversary.isnan().all(-1).tolist() == jsd.isnan().tolist()
    undefined_bias = exact_adversarial_attention(attention[:1], logits[:1], math.nan, 0.05)[1]
    assert undefined_bias.isnan().all()


def test_an_invalid_tolerance_bias_or_shape_is_refused() -> None:
    attention = torch.tensor([[0.5, 0.5]])
    with pytest.raises(ValueError, match=r"tvd: expected a number in \[0, 1\] but got -0.1"):
        exact_adversarial_attention(attention, attention, 0.0, -0.1)
    with pytest.raises(ValueError, match=r"bias: expected a number or shape \(1,\) but got \(3,\)"):
        exact_adversarial_attention(attention, attention, torch.zeros(3), 0.1)
    with pytest.raises(ValueError, match="token_logits: expected the shape of attention"):
        exact_adversarial_attention(attention, torch.zeros(1, 3), 0.0, 0.1)
    with pytest.raises(ValueError, match="attention: expected weights of at least 0"):
        exact_adversarial_attention(-attention, attention, 0.0, 0.1)
    with pytest.raises(ValueError, match=r"token_logits: expected shape \(1, 2, 'C'\)"):
        adversarial_upper_bound(attention, attention, torch.zeros(2), 0.1)
    with pytest.raises(ValueError, match=r"bias: expected shape \(3,\)"):
        adversarial_upper_bound(attention, torch.zeros(1, 2, 3), torch.zeros(2), 0.1)


@given(st.integers(1, 6), seeds, tolerances)
def test_with_two_classes_the_upper_bound_is_exact(n: int, seed: int, tvd: float) -> None:
    attention, logits, bias = instance(n, seed)
    both = torch.stack([0.5 * logits, 1.5 * logits], -1)
    bound = adversarial_upper_bound(attention[None], both[None], torch.tensor([-bias, 0.0], dtype=torch.float64), tvd)
    exact = exact_adversarial_attention(attention[None], logits[None], bias, tvd)[1]
    assert bound.item() == pytest.approx(exact.item(), abs=1e-9)


@given(st.integers(2, 5), st.integers(3, 4), seeds, st.sampled_from([0.0, 0.01, 0.05, 0.3]))
def test_with_more_classes_no_feasible_grid_point_exceeds_the_bound(
    n: int, classes: int, seed: int, tvd: float
) -> None:
    attention, *_ = instance(n, seed)
    rng = np.random.default_rng(seed)
    logits, bias = torch.from_numpy(rng.normal(size=(n, classes)) * 3), torch.from_numpy(rng.normal(size=classes))
    bound = adversarial_upper_bound(attention[None], logits[None], bias, tvd).item()
    points = torch.cat([GRIDS[n], attention[None]])
    outputs = torch.softmax(points @ logits + bias, -1)
    feasible = total_variation(outputs, outputs[-1:]) <= tvd
    assert jensen_shannon(points, attention.expand_as(points))[feasible].max().item() <= bound + 1e-9
    assert bound <= largest_jensen_shannon(attention[None]).item() + 1e-12


def test_splitting_long_rows_into_blocks_does_not_change_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    attention, logits, bias = instance(300, 5)
    whole = exact_adversarial_attention(attention[None], logits[None], bias, 0.01)
    monkeypatch.setattr("attnaudit.metrics.exact_adversary.ELEMENTS_PER_CHUNK", 1000)
    monkeypatch.setattr("attnaudit.metrics.padded_rows.ELEMENTS_PER_CHUNK", 1000)
    pieces = exact_adversarial_attention(attention[None], logits[None], bias, 0.01)
    torch.testing.assert_close(pieces, whole, atol=1e-12, rtol=0)
