"""Show paths in messages."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from attnaudit.errors import AuditError


def displayed_path(path: Path, config: pytest.Config) -> str:
    """Return a path relative to the working folder if it is inside it, and unchanged otherwise."""
    try:
        return str(path.relative_to(config.invocation_params.dir))
    except ValueError:
        return str(path)


def display_paths(error: AuditError, config: pytest.Config) -> None:
    """Make the paths in the message of an error relative to the working folder if they are inside it, in place."""
    folder = re.compile(rf"(?<![^\s'\"(]){re.escape(str(config.invocation_params.dir) + os.sep)}(?=\S)")
    error.args = tuple(folder.sub("", one) if isinstance(one, str) else one for one in error.args)
    error.lines = tuple(folder.sub("", line) for line in error.lines)
