"""Checkpoint folders and adapters of small random models, made once for all tests of this room."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from attnaudit.adapters.loading import load_model
from attnaudit.instances import Instance
from tests import architectures


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Architecture -> its checkpoint folder. Not to be changed: copy it."""
    made: dict[str, Path] = {}

    def of(name: str) -> Path:
        if name not in made:
            made[name] = architectures.save(name, tmp_path_factory.mktemp(name) / "model")
        return made[name]

    return of


@pytest.fixture(scope="session")
def adapter(folder: Callable[[str], Path]) -> Callable[[str], Any]:
    """Architecture -> its adapter, as `--model` loads it."""
    made: dict[str, Any] = {}

    def of(name: str) -> Any:
        if name not in made:
            made[name] = load_model(str(folder(name))).adapter
            made[name].model.requires_grad_(False)
        return made[name]

    return of


@pytest.fixture(scope="session")
def instances() -> list[Instance]:
    """Texts of different lengths, the longest second."""
    return [Instance(id=str(n), text=text) for n, text in enumerate(architectures.SENTENCES[4:8])]
