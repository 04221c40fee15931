"""`attnaudit list`: list all names that can be used on the command line or in a policy."""

from __future__ import annotations

import argparse
import importlib
import inspect
from typing import Any

from attnaudit import registry
from attnaudit.commands.conformance_command import read_conftests
from attnaudit.errors import AuditError
from attnaudit.formatting import one_line

#: Imported by name, because modules outside attnaudit.research must not import from it directly.
PAPERS_MODULE = "attnaudit.research.reproduction.papers"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add no arguments, because `attnaudit list` has none."""


def run(options: argparse.Namespace) -> int:
    """Print the names of models, data sets, checks, measures and papers.

    The line of a check has the arguments for its threshold and the question that it answers. The names include those
    that conftest.py and audits/conftest.py register.

    Returns:
        The exit status, 0.

    Raises:
        ModelError: A conftest.py cannot be imported.
    """
    papers = importlib.import_module(PAPERS_MODULE).PAPERS
    read_conftests()
    for title, names in (
        ("models (--model)", registry.models.names()),
        ("data sets (--data)", registry.datasets.names()),
        ("checks, with the arguments for a threshold", _check_lines()),
        ("measures", registry.measures.names()),
        ("papers (attnaudit reproduce)", [f"{name}: {citation}" for name, (_, citation) in papers.items()]),
    ):
        print(f"{title}:")
        for name in names:
            print(f"  {one_line(name)}")
    return 0


def _check_lines() -> list[str]:
    """Return one line per check: its name, the arguments for its threshold, and its question."""
    from attnaudit.checks.custom_check import CheckFactory

    found = {name: registry.checks.get(name) for name in registry.checks.names()}
    kinds = {name: check.kind if isinstance(check, CheckFactory) else check for name, check in found.items()}
    width = max(map(len, kinds))
    return [
        f"{name.ljust(width)}  {' or '.join(kind.directions).ljust(len('at_least'))}  {_question(kind)}"
        for name, kind in kinds.items()
    ]


def _question(kind: Any) -> str:
    """Return the question that a check answers with its default arguments, or the first line of its docstring.

    The docstring is used if the check has a required argument.
    """
    try:
        question: str = kind(severity="report").question
    except (AuditError, TypeError):  # an argument is required
        return (inspect.getdoc(kind) or "").partition("\n")[0]
    return question
