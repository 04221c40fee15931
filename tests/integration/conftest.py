"""The project that the tests of false greens audit in processes of its own, and the browser that opens pages."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import browser
from tests.audited_project import AuditedProject
from tests.forking_interpreter import shared
from tests.opened_runs import RUNS


@pytest.fixture
def audited(tmp_path: Path) -> AuditedProject:
    """A project with two gates, which pass until a test spoils something."""
    return AuditedProject(tmp_path, shared())


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """Chromium, for the tests of one module."""
    with browser.started() as started:
        yield started


@pytest.fixture(scope="session")
def page_of_run(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return the page of a run by its name in `tests.opened_runs`. Each run is made once."""
    pages: dict[str, Path] = {}

    def page(name: str) -> Path:
        if name not in pages:
            pages[name] = RUNS[name](tmp_path_factory.mktemp("run") / "run")
        return pages[name]

    return page
