"""The model registered as `demo`: BiLSTM + additive + softmax, trained on `movie-reviews` by `tools/make_demo.sh`."""

from __future__ import annotations

from pathlib import Path

from attnaudit.adapters.pooled.pooled_adapter import PooledAttentionAdapter
from attnaudit.models import checkpoint_folder

FOLDER = Path(__file__).parent / "demo"


def model() -> PooledAttentionAdapter:
    """The demo model as an adapter."""
    return checkpoint_folder.load(FOLDER)
