"""Checkpoint folders and adapters of small random models, built once for all tests of this folder."""

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
    """Return the checkpoint folder of an architecture. Tests must copy it before they change it."""
    folders: dict[str, Path] = {}

    def folder_of(name: str) -> Path:
        if name not in folders:
            folders[name] = architectures.save(name, tmp_path_factory.mktemp(name) / "model")
        return folders[name]

    return folder_of


@pytest.fixture(scope="session")
def load_adapter(folder: Callable[[str], Path]) -> Callable[[str], Any]:
    """Return the adapter of an architecture, as `--model` loads it."""
    adapters: dict[str, Any] = {}

    def adapter_of(name: str) -> Any:
        if name not in adapters:
            adapters[name] = load_model(str(folder(name))).adapter
            adapters[name].model.requires_grad_(False)
        return adapters[name]

    return adapter_of


@pytest.fixture(scope="session")
def instances() -> list[Instance]:
    """Return texts of different lengths; the second is the longest."""
    return [Instance(id=str(n), text=text) for n, text in enumerate(architectures.SENTENCES[4:8])]
