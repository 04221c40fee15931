"""Outputs of attention functions that are multiples of the weighted sum of the values."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("transformers", reason="needs transformers: pip install 'attnaudit[transformers]'")

from attnaudit.adapters.huggingface.attention.weighted_values import apply_weights, output_factor, scales_output

GENERATOR = torch.Generator().manual_seed(0)
WEIGHTS = torch.rand(2, 4, 3, 5, generator=GENERATOR).softmax(-1)
VALUE = torch.randn(2, 2, 5, 6, generator=GENERATOR)
FACTOR = torch.rand(2, 4, 3, 1, generator=GENERATOR) + 0.1
SUM = apply_weights(WEIGHTS, VALUE)


def test_the_factor_of_an_output_is_found() -> None:
    output = SUM * FACTOR.transpose(1, 2)
    assert scales_output(output, WEIGHTS, VALUE)
    torch.testing.assert_close(output_factor(output, WEIGHTS, VALUE), FACTOR)
    torch.testing.assert_close(apply_weights(WEIGHTS * output_factor(output, WEIGHTS, VALUE), VALUE), output)


def test_other_outputs_are_not_scaled() -> None:
    assert not scales_output(SUM, WEIGHTS, VALUE)
    assert not scales_output(SUM + 0.1, WEIGHTS, VALUE)
    assert not scales_output(torch.zeros_like(SUM), WEIGHTS, torch.zeros_like(VALUE))
    assert not scales_output(SUM[..., :3], WEIGHTS, VALUE)
    assert not scales_output(SUM, torch.cat([WEIGHTS, WEIGHTS[..., :1]], dim=-1), VALUE)  # one key without a value


def test_a_sum_of_zero_has_the_factor_1_and_a_gradient() -> None:
    value = torch.zeros_like(VALUE).requires_grad_(True)
    factor = output_factor(apply_weights(WEIGHTS, value) * 0.5, WEIGHTS, value)
    assert torch.equal(factor, torch.ones_like(factor))
    (gradient,) = torch.autograd.grad((WEIGHTS * factor).sum(), value)
    assert torch.isfinite(gradient).all()
