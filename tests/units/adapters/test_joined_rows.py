"""Padded tensors that are joined from several passes, and gradients with respect to them."""

from __future__ import annotations

import torch

from attnaudit.adapters.joined_rows import gradients, joined


def test_rows_are_padded_and_put_in_order() -> None:
    parts = [torch.ones(2, 1), 2 * torch.ones(1, 3)]
    found = joined(parts, torch.tensor([2, 0, 1]), (3,))
    assert found.whole.tolist() == [[2, 2, 2], [1, 0, 0], [1, 0, 0]]
    assert joined([torch.ones(1, 1, 1, dtype=torch.bool)], torch.tensor([0]), (1, 2)).whole.tolist() == [
        [[True, False]]
    ]


def test_gradients_with_respect_to_a_joined_tensor_are_those_of_its_parts() -> None:
    short, long = torch.rand(2, 1, requires_grad=True), torch.rand(1, 3, requires_grad=True)
    other = torch.rand(2, requires_grad=True)
    whole = joined([short, long], torch.tensor([2, 0, 1]), (3,))
    unused = joined([torch.rand(3, 1, requires_grad=True)], torch.arange(3), (2,))
    number = 3 * short.sum() + 2 * long.square().sum() + other.sum()
    at_whole, at_other, at_unused = gradients(
        number, [whole.whole, other, unused.whole], [whole, unused], retain_graph=True
    )
    assert at_whole is not None
    assert at_other is not None
    assert at_unused is None
    torch.testing.assert_close(at_whole, torch.stack([4 * long.detach()[0], *torch.tensor([[3.0, 0, 0]] * 2)]))
    assert at_other.tolist() == [1, 1]
    (at_short,) = gradients(short.sum(), [whole.whole], [whole])
    assert at_short is not None  # the other part has the gradient 0
    assert at_short.tolist() == [[0, 0, 0], [1, 0, 0], [1, 0, 0]]


def test_a_joined_tensor_depends_on_its_parts() -> None:
    part = torch.rand(2, 3, requires_grad=True)
    (found,) = torch.autograd.grad(joined([part], torch.tensor([1, 0]), (4,)).whole.square().sum(), part)
    torch.testing.assert_close(found, 2 * part.detach())
