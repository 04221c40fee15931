"""Calls of an attention function for some queries, and with constant weights."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from attnaudit.adapters.huggingface.attention.function_call import FunctionCall


def attend(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, *, bias: Tensor, sinks: Tensor
) -> tuple[Tensor, Tensor]:
    """Attend with a bias for every pair of tokens and a sink for every query, both computed from the states."""
    scores = query @ key.transpose(-1, -2) + bias + (0.0 if mask is None else mask)
    weights = torch.cat([scores, sinks], dim=-1).softmax(-1)[..., :-1]
    return (weights @ value).transpose(1, 2), weights


def call() -> FunctionCall:
    generator = torch.Generator().manual_seed(0)

    def leaf(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).requires_grad_(True)

    parts: dict[str, Any] = {name: leaf(2, 3, 5, 4) for name in ("query", "key", "value")}
    rest = {"bias": leaf(2, 3, 5, 5), "sinks": leaf(2, 3, 5, 1)}
    return FunctionCall(attend, nn.Identity(), **parts, mask=leaf(2, 1, 5, 5), rest=rest)


def test_biases_and_sinks_of_the_chosen_queries_are_used() -> None:
    queries = torch.tensor([[0, 4], [3, 1]])
    whole, chosen = call().eager(), call().at(queries).eager()
    for row, positions in enumerate(queries.tolist()):
        torch.testing.assert_close(chosen[0][row], whole[0][row][positions])
        torch.testing.assert_close(chosen[1][row], whole[1][row][:, positions])


def test_no_gradient_flows_through_constant_weights() -> None:
    one = call()
    output, weights = one.with_constant_weights().eager()
    torch.testing.assert_close(output, one.eager()[0])
    assert not weights.requires_grad
    output.sum().backward()
    assert one.value.grad is not None
    assert all(
        tensor.grad is None for tensor in (one.query, one.key, one.mask, *one.rest.values()) if tensor is not None
    )
