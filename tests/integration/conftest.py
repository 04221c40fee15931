"""The project that the tests of false greens audit in processes of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.audited_project import AuditedProject
from tests.forking_interpreter import ForkingInterpreter

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def forking_interpreter(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkingInterpreter]:
    """A process that starts Python modules in other processes, which import torch in no time."""
    interpreter = ForkingInterpreter(ROOT, tmp_path_factory.mktemp("processes"))
    yield interpreter
    interpreter.close()


@pytest.fixture
def audited(tmp_path: Path, forking_interpreter: ForkingInterpreter) -> AuditedProject:
    """A project with two gates, which pass until a test spoils something."""
    return AuditedProject(tmp_path, forking_interpreter)
