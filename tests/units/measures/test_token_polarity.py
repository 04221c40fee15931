"""Polarity equals a plain implementation of its definition."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from attnaudit.adapters import PooledAttentionAdapter
from tests.units.measures.test_erasure_against_plain_definitions import INSTANCES, KINDS, Plain, measured


@pytest.fixture(params=list(KINDS))
def model(request: pytest.FixtureRequest) -> PooledAttentionAdapter:
    return KINDS[request.param]()


@pytest.mark.parametrize("operator", ["deletion", "mask"])
def test_polarity_is_the_sign_of_leave_one_out(model: PooledAttentionAdapter, operator: str) -> None:
    measurements = measured(model, f"polarity.{operator}")
    shares = []
    for i, one in enumerate(INSTANCES):
        plain = Plain(model, one)
        found = [measurements.scalar(f"polarity.{operator}.{name}")[i] for name in ("attention", "random")]
        if len(plain.real) == 1:
            assert np.isnan(found).all()
            continue
        c = plain.predicted
        without = [float(plain.without([p], operator)[c]) for p in range(len(plain.real))]
        against = np.array([p > float(plain.p[c]) + 1e-7 for p in without], dtype=np.float64)
        assert found == pytest.approx([against[int(plain.reading.argmax())], against.mean()]), one.text
        shares.append(found[1])
    assert 0 < np.mean(shares) < 1


def test_tokens_that_tie_for_the_largest_weight_count_equally() -> None:
    model = KINDS["two logits"]()
    with torch.no_grad():
        model.attention.score.weight.zero_()
    measurements = measured(model, "polarity.deletion")
    several = measurements.lengths > 1
    np.testing.assert_allclose(
        measurements.scalar("polarity.deletion.attention")[several],
        measurements.scalar("polarity.deletion.random")[several],
    )
