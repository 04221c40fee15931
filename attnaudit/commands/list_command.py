"""`attnaudit list`: list all names that can be used on the command line or in a policy."""

from __future__ import annotations

import argparse
import importlib
import inspect
import sys
from typing import Any

from attnaudit import registry
from attnaudit.commands.conformance_command import read_conftests
from attnaudit.errors import AuditError
from attnaudit.formatting import one_line, plural

#: Imported by name, because modules outside attnaudit.research must not import from it directly.
PAPERS_MODULE = "attnaudit.research.reproduction.papers"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Set the description of the exit status. `attnaudit list` has no arguments."""
    parser.epilog = (
        "Exit status: 0 if all names can be used; 1 if an installed package provides one that cannot be used."
    )


def run(options: argparse.Namespace) -> int:
    """Print the names of models, data sets, checks, measures and papers.

    The line of a check has the arguments for its threshold and the question that it answers. The names include those
    that conftest.py and audits/conftest.py register. The line of a name that an installed package provides, but that
    cannot be used, has the error.

    Returns:
        The exit status: 0 if all names can be used, 1 if not.

    Raises:
        ModelError: A conftest.py cannot be imported.
    """
    papers = importlib.import_module(PAPERS_MODULE).PAPERS
    read_conftests()
    broken = 0
    for title, one, line in (
        ("models (--model)", registry.models, None),
        ("data sets (--data)", registry.datasets, None),
        ("checks, with the arguments for a threshold", registry.checks, _check_line),
        ("measures", registry.measures, None),
    ):
        print(f"{title}:")
        names = one.names()
        width = max(map(len, names), default=0)
        for name in names:
            try:
                found = one.get(name)
            except AuditError as error:
                broken += 1
                print(f"  {one_line(f'{name.ljust(width)}  cannot be used: {error}')}")
            else:
                print(f"  {one_line(line(name.ljust(width), found) if line else name)}")
    print("papers (attnaudit reproduce):")
    for name, (_, citation) in papers.items():
        print(f"  {one_line(f'{name}: {citation}')}")
    if broken:
        print(f"attnaudit: {plural(broken, 'name')} cannot be used; see the list for the reasons.", file=sys.stderr)
    return int(broken > 0)


def _check_line(name: str, check: Any) -> str:
    """Return the line of a check: its name, the arguments for its threshold, and its question."""
    from attnaudit.checks.custom_check import CheckFactory

    kind = check.kind if isinstance(check, CheckFactory) else check
    return f"{name}  {' or '.join(kind.directions).ljust(len('at_least'))}  {_question(kind)}"


def _question(kind: Any) -> str:
    """Return the question that a check answers with its default arguments, or the first line of its docstring.

    The docstring is used if the check has a required argument.
    """
    try:
        question: str = kind(severity="report").question
    except (AuditError, TypeError):  # an argument is required
        return (inspect.getdoc(kind) or "").partition("\n")[0]
    return question
