"""Show paths in messages."""

from __future__ import annotations

from pathlib import Path

import pytest


def displayed_path(path: Path, config: pytest.Config) -> str:
    """Return a path relative to the working folder if it is inside it, and unchanged otherwise."""
    try:
        return str(path.relative_to(config.invocation_params.dir))
    except ValueError:
        return str(path)
