"""Escape what pytest shows of an audit case: the text of its exceptions, its captured output and its warnings.

Models, data and checks can put any text there, such as control sequences of a terminal or commands of a CI system.
"""

from __future__ import annotations

import dataclasses
import re
import warnings
from typing import Any

import pytest

from attnaudit.errors import AuditError, shown_error
from attnaudit.formatting import terminal_safe, without_commands

#: Matches the codes of colours and styles. Some libraries write them even if the output is not a terminal.
STYLES = re.compile(r"\x1b\[[0-9;:]*m")


def clean_report(report: pytest.TestReport) -> None:
    """Escape the traceback, the reason and the captured output in the report of a case, in place.

    The terminal, JUnit files and pytest-xdist all show the texts of the report.

    Args:
        report: The report of any phase of a case, whatever its outcome.
    """
    longrepr: Any = report.longrepr
    if isinstance(longrepr, tuple):  # of a test that was skipped
        path, line, reason = longrepr
        report.longrepr = (terminal_safe(path), line, terminal_safe(reason))
    else:
        report.longrepr = _cleaned(longrepr)
    if isinstance(reason := getattr(report, "wasxfail", None), str):
        report.wasxfail = terminal_safe(reason)
    report.sections = [(terminal_safe(title), clean_output(text)) for title, text in report.sections]


def failure_without_traceback(excinfo: pytest.ExceptionInfo[BaseException]) -> Any:
    """Return the message of an exception as the `longrepr` of a report.

    Args:
        excinfo: The exception. The message of an AuditError becomes one line, followed by the lines of its example. The
            message of any other exception keeps its lines.
    """
    error = excinfo.value
    message = shown_error(error) if isinstance(error, AuditError) else terminal_safe(str(error), keep_lines=True)
    first, *others = message.split("\n")
    representation = excinfo.getrepr(style="value", chain=False)
    if representation.reprcrash is not None:
        representation.reprcrash.message = first
    for entry in representation.reprtraceback.reprentries:
        entry.lines = [first, *others]
    return representation


def clean_output(text: str) -> str:
    """Return captured output without colours, and with control characters and commands escaped.

    A carriage return becomes a new line. Progress bars write carriage returns, so each of their states becomes a line.
    """
    return terminal_safe(re.sub(r"\r+\n?", "\n", STYLES.sub("", text)), keep_lines=True)


def clean_warning(warning: warnings.WarningMessage) -> None:
    """Escape the message of a warning, in place.

    Args:
        warning: The argument `warning_message` of the hook `pytest_warning_recorded`.
    """
    message = str(warning.message)
    cleaned = terminal_safe(message, keep_lines=True)
    if cleaned != message:
        warning.message = cleaned


def clean_case_id(case_id: str, config: pytest.Config) -> str:
    """Return the id of a case for `pytest.param`. The ids of ordinary names are unchanged.

    By default pytest itself escapes control characters and letters beyond ASCII in ids, but not "##[" and "##vso[".

    Args:
        case_id: The id, which contains the names of the model and of the data set.
        config: The configuration of pytest, which may turn pytest's escaping off.
    """
    unescaped = config.getini("disable_test_id_escaping_and_forfeit_all_rights_to_community_support")
    return terminal_safe(case_id) if unescaped else without_commands(case_id)


def _cleaned(value: Any) -> Any:
    """Return a string, list or tuple with all strings escaped. Change other objects of pytest in place."""
    if isinstance(value, str):
        return terminal_safe(value, keep_lines=True)
    if isinstance(value, (list, tuple)):
        return type(value)(map(_cleaned, value))
    if dataclasses.is_dataclass(value):  # the lines, the arguments, the local variables and the places of a traceback
        for name, part in vars(value).items():
            setattr(value, name, _cleaned(part))
    return value
