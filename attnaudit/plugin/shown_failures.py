"""Shorten the failures that the terminal shows. JUnit files and other plugins get the complete reports."""

from __future__ import annotations

import copy

import pytest


def shorten_failures(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> set[str]:
    """Shorten the failures of audit cases before pytest shows them, and return the messages that it will show.

    With -q, the message of a gate is reduced to its first line and the command that runs the case again. The message
    about a model or data that cannot be audited is left out of the short summary, because it is shown above it.

    Args:
        terminalreporter: pytest's terminal.
        config: pytest's configuration.

    Returns:
        The messages of failures without a verdict, which pytest shows in full; empty with --tb=no or --no-summary.
    """
    style = config.option.tbstyle
    if style == "no" or terminalreporter.no_summary:
        return set()
    shown = set()
    failed = terminalreporter.stats.get("failed", [])
    for number, report in enumerate(failed):
        carried = getattr(report, "attnaudit", None)
        is_complete = hasattr(report.longrepr, "reprtraceback")  # another plugin may have replaced it with a text
        if carried is None or not carried["is_message"] or not is_complete:
            continue
        if carried["record"] is None:
            shown.add(carried["reason"])
            failed[number] = _once(report, style)
        elif config.get_verbosity() < 0:
            failed[number] = _in_short(report)
    return shown


def _once(report: pytest.TestReport, style: str) -> pytest.TestReport:
    """Return a copy of a report that makes pytest show the message once: with --tb=line, in the line of the failure."""
    copied = copy.copy(report)
    copied.longrepr = copy.deepcopy(report.longrepr)
    if style == "line":
        for entry in copied.longrepr.reprtraceback.reprentries:  # type: ignore[union-attr]
            entry.lines = []
    else:  # the short summary then has the id of the case alone
        copied.longrepr.reprcrash = None  # type: ignore[union-attr]
    return copied


def _in_short(report: pytest.TestReport) -> pytest.TestReport:
    """Return a copy of a report with only the first line of the message and the command that runs the case again."""
    from attnaudit.run.case import RUN_AGAIN

    copied = copy.copy(report)
    copied.longrepr = copy.deepcopy(report.longrepr)
    for entry in copied.longrepr.reprtraceback.reprentries:  # type: ignore[union-attr]
        entry.lines = [*entry.lines[:1], *(line for line in entry.lines[1:] if line.startswith(RUN_AGAIN))]
    return copied
