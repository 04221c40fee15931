"""The model registered as `demo`: BiLSTM + additive + softmax, trained on `movie-reviews` by `tools/make_demo.sh`."""

from __future__ import annotations

from pathlib import Path

from attnaudit.adapters.pooled import PooledAttentionAdapter
from attnaudit.zoo import checkpoint

FOLDER = Path(__file__).parent / "demo"


def model() -> PooledAttentionAdapter:
    """The demo model as an adapter."""
    return checkpoint.load(FOLDER)
