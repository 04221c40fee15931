"""Outputs that are compared through their logits: the scale, biases and saturated probabilities do not matter."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from attnaudit.engine.batches.logits import (
    equal_within_rounding,
    log_odds,
    mean_over_draws,
    probabilities,
    sizes_of_logits,
)
from tests.strategies import seeds


def logits_of(seed: int, classes: int, rows: int = 20) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return 3 * torch.randn(rows, classes, generator=generator, dtype=torch.float64)


def equal(first: Tensor, second: Tensor, open_classes: Tensor | None = None) -> list[bool]:
    found: list[bool] = equal_within_rounding(
        first, second, sizes_of_logits(first, second), "float32", open_classes
    ).tolist()
    return found


@given(
    seed=seeds,
    classes=st.integers(1, 5),
    exponent=st.integers(-10, 14),
    size=st.sampled_from([1e-9, 1e-8, 1e-5, 1e-3, 1.0]),
)
def test_equality_does_not_depend_on_the_scale(seed: int, classes: int, exponent: int, size: float) -> None:
    first = logits_of(seed, classes)
    second = first + size * logits_of(seed + 1, classes)
    assert equal(2.0**exponent * first, 2.0**exponent * second) == equal(first, second)


@given(seed=seeds, bias=st.floats(-1e6, 1e6), place=st.integers(0, 2), moves=st.booleans())
def test_a_bias_of_one_class_neither_hides_changes_of_the_others_nor_reveals_noise(
    seed: int, bias: float, place: int, moves: bool
) -> None:
    first = logits_of(seed, 3)
    change = torch.randn(20, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    change = (1e-2 * change.sign() * torch.tensor([1.0, -1.0, 1.0])) if moves else 1e-9 * change
    change[:, place] = 0.0
    if moves:
        others = [c for c in range(3) if c != place]
        change[:, others[0]], change[:, others[1]] = 1e-2, -1e-2
    first[:, place] += bias
    assert equal(first, first + change) == [not moves] * 20


@given(seed=seeds, shift=st.floats(-5, 5))
def test_the_same_shift_of_all_classes_is_no_change_and_closed_classes_are_ignored(seed: int, shift: float) -> None:
    first = logits_of(seed, 4)
    second = first + shift
    assert all(equal(first, second))
    first[:, 3], second[:, 3] = -1e4, -3e4
    is_open = torch.tensor([True, True, True, False]).expand_as(first)
    assert all(equal(first, second, is_open))
    assert not any(equal(first, second))


@given(seed=seeds, classes=st.integers(1, 4))
def test_log_odds_agree_with_the_probabilities_and_do_not_saturate(seed: int, classes: int) -> None:
    logits = logits_of(seed, classes)
    p = probabilities(logits)
    chosen = p.argmax(-1)
    of_chosen = p.gather(-1, chosen[:, None])[:, 0]
    torch.testing.assert_close(log_odds(logits, chosen), (of_chosen / (1 - of_chosen)).log(), rtol=1e-6, atol=1e-9)
    if classes <= 2:
        torch.testing.assert_close(log_odds(1e4 * logits, chosen), 1e4 * log_odds(logits, chosen))


@pytest.mark.parametrize("classes", [1, 3])
def test_the_mean_over_draws_is_the_mean_of_the_probabilities(classes: int) -> None:
    draws = [logits_of(seed, classes) for seed in range(3)]
    mean = mean_over_draws(draws)
    assert mean.shape == draws[0].shape
    torch.testing.assert_close(probabilities(mean), torch.stack([probabilities(one) for one in draws]).mean(0))
    assert mean_over_draws(draws[:1]) is draws[0]
