"""Contexts of bags without some of their units: exact up to one rounding, and the same in any chunk of variants."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from attnaudit.adapters.pooled.masked_bags import contexts_without, weighted_states

#: The largest relative error of rounding a number to float32.
ROUNDING = 2.0**-24


def drawn_bag(units: int, seed: int, sharpness: float) -> tuple[Tensor, Tensor]:
    """Return the states (1, T, 3) and the weights (1, 2, T) of a bag."""
    generator = torch.Generator().manual_seed(seed)
    scores = sharpness * torch.randn((1, 2, units), generator=generator)
    return torch.randn((1, units, 3), generator=generator), scores.softmax(-1)


def kept_units(units: int, variants: int, seed: int) -> Tensor:
    """Return (V, T) which units are kept. Most variants lack one unit, and the others lack about half of them."""
    generator = torch.Generator().manual_seed(seed)
    keep = torch.ones((variants, units), dtype=torch.bool)
    keep[torch.arange(variants), torch.randint(units, (variants,), generator=generator)] = False
    keep[::3] &= torch.rand((len(keep[::3]), units), generator=generator) < 0.5
    keep[:, 0] |= ~keep.any(1)
    return keep


@given(st.integers(2, 300), st.integers(0, 2**16), st.sampled_from([0.0, 1.0, 6.0]))
@settings(max_examples=40)
def test_contexts_without_units_are_exact_and_do_not_depend_on_the_chunk(units: int, seed: int, sharp: float) -> None:
    states, weights = drawn_bag(units, seed, sharp)
    keep = kept_units(units, 7, seed + 1)
    rows, products = torch.zeros(7, dtype=torch.long), weighted_states(states, weights)
    together, vanished = contexts_without(products, rows, keep, ~keep, states.dtype)
    left = weights.double() * keep[:, None]
    expected = left @ states.double() / left.sum(-1, keepdim=True)
    largest = states.double().abs().max()
    assert bool(((together - expected).abs() <= 1.01 * ROUNDING * largest)[~vanished].all())
    alone = [contexts_without(products, rows[:1], keep[v : v + 1], ~keep[v : v + 1], states.dtype) for v in range(7)]
    singles = keep.sum(1) >= units - 8
    assert torch.equal(torch.cat([context for context, _ in alone])[singles], together[singles])


def test_the_order_of_small_effects_is_not_lost_to_rounding() -> None:
    """In a bag of 10,000 units, the effects of most units are as small as the rounding errors of a float32 sum."""
    states, weights = drawn_bag(10_000, 3, 1.0)
    deleted = torch.zeros((500, 10_000), dtype=torch.bool)
    deleted[torch.arange(500), torch.arange(500)] = True
    rows = torch.zeros(500, dtype=torch.long)
    found, _ = contexts_without(weighted_states(states, weights), rows, ~deleted, deleted, torch.float64)
    wide, of_units = weights[0].double(), states[0].double()
    left = [wide * keep for keep in ~deleted]
    expected = torch.stack([one @ of_units / one.sum(-1, keepdim=True) for one in left])
    whole = wide @ of_units
    assert torch.equal((found - whole)[:, 0, 0].argsort(), (expected - whole)[:, 0, 0].argsort())
