"""Measure needs on the small texts of the tests."""

from __future__ import annotations

from typing import Any

from attnaudit.adapters import PooledAttentionAdapter
from attnaudit.engine.measurements import Measurements
from attnaudit.engine.measuring import measure
from tests.small_models import TEXTS, dataset

#: The measures of erasure, of randomised parameters and of hidden states.
NEEDS = [
    "comprehensiveness.deletion",
    "comprehensiveness.mask",
    "sufficiency.deletion",
    "sufficiency.mask",
    "flip",
    "top_token",
    "token_probability",
    "conicity",
    "randomised",
]


def measured(
    model: PooledAttentionAdapter, needs: list[str] = NEEDS, texts: list[str] = TEXTS, **options: Any
) -> Measurements:
    return measure(model, dataset(texts), needs, model="lstm", seed=3, **options)[0]
