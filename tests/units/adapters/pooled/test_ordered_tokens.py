"""Entries at places, against gather, values and gradients."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from attnaudit.adapters.pooled.ordered_tokens import reordered, select_positions


@given(st.integers(0, 4), st.integers(1, 9), st.integers(1, 9), st.integers(1, 3), st.integers(0, 2**31))
def test_entries_and_their_gradients_are_those_of_gather(
    count: int, width: int, taken: int, size: int, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(width, count, size, generator=generator, dtype=torch.float64).transpose(0, 1).requires_grad_()
    places = torch.randint(0, width, (count, taken), generator=generator)
    wanted = values.gather(1, places[..., None].expand(-1, -1, size))
    found = select_positions(values, places)
    assert torch.equal(found, wanted)
    upstream = torch.randn(found.shape, generator=generator, dtype=torch.float64)
    torch.testing.assert_close(*(torch.autograd.grad(one, values, upstream)[0] for one in (found, wanted)))


@given(st.integers(1, 9), st.integers(1, 3), st.integers(0, 2**31))
def test_reordered_entries_and_their_derivatives_are_those_of_indexing(count: int, size: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(count, size, generator=generator, dtype=torch.float64).requires_grad_()
    order = torch.randperm(count, generator=generator)
    weights = torch.randn(count, size, generator=generator, dtype=torch.float64)
    derivatives = []
    for rows in (reordered(values, order, order.argsort()), values[order]):
        assert torch.equal(rows, values[order])
        (slope,) = torch.autograd.grad((rows.pow(3) * weights).sum(), values, create_graph=True)
        (curvature,) = torch.autograd.grad(slope.square().sum(), values)
        derivatives.append((slope, curvature))
    for found, wanted in zip(*derivatives, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-12, atol=0)
