"""The command `attnaudit`, for everything except the audit itself, which pytest runs: `pytest audits/ --model ...`.

Only the module of the chosen command is imported, so that the command starts fast.
"""

from __future__ import annotations

import argparse
import importlib
import io
import os
import sys
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from attnaudit import __version__
from attnaudit.command_parser import CommandParser
from attnaudit.devices import let_waiting_threads_sleep
from attnaudit.errors import MAYBE_UNSET, AuditError, invalid_input, require_text, shown_error


class Command(NamedTuple):
    """A command.

    Attributes:
        help: One line that says what the command does.
        module: The name of the module that implements the command. It defines `add_arguments(parser)` and
            `run(options)`, which returns the exit status.
    """

    help: str
    module: str


COMMANDS = {
    "init": Command("write an audits/ folder into your repository", "attnaudit.commands.init_command"),
    "train": Command(
        "train a reference model, or fine-tune a pretrained encoder, and write a checkpoint folder",
        "attnaudit.models.train_command",
    ),
    "conformance": Command(
        "test whether the adapter of a model fulfils the contract that audits rely on",
        "attnaudit.commands.conformance_command",
    ),
    "plant": Command(
        "build models whose attention is known to be faithful or unfaithful",
        "attnaudit.research.planted.plant_command",
    ),
    "validate": Command(
        "measure how often a policy is right about models whose attention is known to be faithful or unfaithful",
        "attnaudit.research.validation.validate_command",
    ),
    "reproduce": Command(
        "reproduce the tables of a paper: train, audit and compare with its numbers",
        "attnaudit.research.reproduction.reproduce_command",
    ),
    "gallery": Command(
        "write pages with pictures that show each check on models whose attention is right, unused or misplaced",
        "attnaudit.commands.gallery_command",
    ),
    "measure": Command(
        "measure some of the shards of an audit, for example in one job of a cluster",
        "attnaudit.commands.measure_command",
    ),
    "merge": Command(
        "merge the shards that several jobs measured, so that pytest can judge them",
        "attnaudit.commands.merge_command",
    ),
    "verify": Command(
        "check that the newest run passed, was not edited, and audited the models to be released",
        "attnaudit.commands.verify_command",
    ),
    "baseline": Command(
        "accept a finished run as the baseline that later models are compared with",
        "attnaudit.commands.baseline_command",
    ),
    "report": Command("rebuild report.html and summary.md of a run", "attnaudit.commands.report_command"),
    "explore": Command("open the instance explorer of a run in a browser", "attnaudit.commands.explore_command"),
    "evidence": Command(
        "write an unsigned in-toto statement, a model card and a test report about a run",
        "attnaudit.commands.evidence_command",
    ),
    "policy": Command("compare two policies, or print the hash of one", "attnaudit.commands.policy_command"),
    "plan": Command("show how many rows a policy needs, before an audit", "attnaudit.commands.plan_command"),
    "compare": Command(
        "compare two runs on the same data: what became better or worse, and on which texts",
        "attnaudit.commands.compare_command",
    ),
    "stability": Command(
        "audit a model several times, and report the verdicts that depend on seeds, batches or workers",
        "attnaudit.commands.stability_command",
    ),
    "schema": Command("print the JSON Schema of audit.json", "attnaudit.commands.schema_command"),
    "list": Command("list models, data sets, checks, measures and papers by name", "attnaudit.commands.list_command"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        arguments: The command line without the name of the program; None for the command line of the process.

    Returns:
        The exit status of the command. It is 0 after printing help; 2 after an AuditError about an option; 1 after
        another AuditError, after a call of sys.exit() in the user's code, and if the output pipe was closed; and 130
        after Ctrl-C.

    Raises:
        SystemExit: With status 2 if argparse cannot parse the command line, and with status 0 after --help and
            --version.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal's character set may lack characters of the output
            stream.reconfigure(errors="backslashreplace")
    let_waiting_threads_sleep()
    words = list(sys.argv[1:] if arguments is None else arguments)
    chosen = next((word for word in words if not word.startswith("-")), None)
    parser = _parser(chosen)
    options = parser.parse_args(words)
    if chosen is None:
        parser.print_help()
        return 0
    try:
        _refuse_empty_values(words)
        status: int = importlib.import_module(COMMANDS[chosen].module).run(options)
    except AuditError as error:
        print(f"attnaudit: {shown_error(error)}", file=sys.stderr)
        return error.exit_status
    except SystemExit as ended:  # raised by a conftest, a model or a data set: the commands never raise it
        print(
            f"attnaudit: a conftest.py, a model or a data set ended the program, with sys.exit({ended.code!r}), before "
            "the command had finished. Remove this call.",
            file=sys.stderr,
        )
        return 1
    except KeyboardInterrupt:
        print(
            "attnaudit: interrupted. If you run plant, validate, reproduce or train (without --base) again, the "
            "command resumes.",
            file=sys.stderr,
        )
        return 130
    except BrokenPipeError:  # the reader closed the pipe, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return status


def _refuse_empty_values(words: Sequence[str]) -> None:
    """Refuse empty words. As a path, an empty word would stand for the working folder.

    Args:
        words: The words of the command line.

    Raises:
        AuditError: A word is empty, or what follows the "=" of a long option.
    """
    with invalid_input():
        for before, word in pairwise(words):
            name, sign, value = word.partition("=")
            if sign and name.startswith("--"):
                require_text(name, value, AuditError)
            elif not word.strip():
                raise AuditError(f"the argument after {before} is empty. {MAYBE_UNSET}")


def _parser(chosen: str | None) -> argparse.ArgumentParser:
    """Build the parser. Only the chosen command gets its arguments, because its module must be imported for them."""
    parser = CommandParser(
        prog="attnaudit",
        description="Audit whether attention explains the predictions of a text classifier. "
        "pytest runs the audit itself: pytest audits/ --model demo",
    )
    parser.add_argument("--version", action="version", version=f"attnaudit {__version__}")
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND")
    for name, command in COMMANDS.items():
        subparser = subparsers.add_parser(name, help=command.help, description=f"{_capitalized(command.help)}.")
        if name == chosen:
            importlib.import_module(command.module).add_arguments(subparser)
    return parser


def _capitalized(sentence: str) -> str:
    return sentence[0].upper() + sentence[1:]
