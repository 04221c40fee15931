"""The examples in docstrings, which the API reference shows, give the results that they show."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "attnaudit"
MODULES = [
    ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
    for path in sorted(PACKAGE.rglob("*.py"))
    if " >>> " in path.read_text(encoding="utf-8")
]


@pytest.mark.slow
@pytest.mark.parametrize("name", MODULES)
def test_the_examples_give_what_they_show(name: str) -> None:
    done = doctest.testmod(importlib.import_module(name))
    assert done.attempted > 0
    assert done.failed == 0


@pytest.mark.parametrize("name", MODULES)
def test_examples_have_a_heading(name: str) -> None:
    """Without one, the API reference shows them as nested quotations."""
    for test in doctest.DocTestFinder().find(importlib.import_module(name)):
        lines = (test.docstring or "").splitlines()
        for example in test.examples[:1]:
            above = [line for line in lines[: example.lineno] if line.strip()]
            assert above[-1].strip() == "Examples:", test.name
