"""`attnaudit list`: list all names that can be used on the command line or in a policy."""

from __future__ import annotations

import argparse
import importlib

from attnaudit import registry
from attnaudit.commands.conformance_command import read_conftests
from attnaudit.formatting import terminal_safe

#: Imported by name, because modules outside attnaudit.research must not import from it directly.
PAPERS_MODULE = "attnaudit.research.reproduction.papers"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add no arguments, because `attnaudit list` has none."""


def run(options: argparse.Namespace) -> int:
    """Print the names of models, data sets, checks, measures and papers.

    They include the names that conftest.py and audits/conftest.py register.

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
        ("checks", registry.checks.names()),
        ("measures", registry.measures.names()),
        ("papers (attnaudit reproduce)", [f"{name}: {citation}" for name, (_, citation) in papers.items()]),
    ):
        print(f"{title}:")
        for name in names:
            print(f"  {terminal_safe(name)}")
    return 0
