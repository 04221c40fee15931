"""The registered model `demo`: a BiLSTM with additive attention, trained on `movie-reviews-train`.

`tools/make_demo.sh` trains the model.
"""

from __future__ import annotations

from pathlib import Path

from attnaudit.adapters.pooled.pooled_adapter import PooledAttentionAdapter
from attnaudit.models import checkpoint_folder

FOLDER = Path(__file__).parent / "demo"


def model() -> PooledAttentionAdapter:
    """Load the demo model as an adapter."""
    return checkpoint_folder.load(FOLDER)
