"""Show the result of a run at the end of pytest's output: one line per gate, and more with -v."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING

import pytest

from attnaudit.formatting import one_line, plural, terminal_safe
from attnaudit.plugin.displayed_paths import displayed_path
from attnaudit.plugin.state import CONFIGURATION, RunState
from attnaudit.plugin.workers import is_controller

if TYPE_CHECKING:
    from attnaudit.records import RunRecord

#: Word at the beginning of the line of a gate -> its colour.
COLOURS = {
    "pass": "green",
    "fail": "red",
    "no verdict": "red",
    "undefined": "purple",
    "inconclusive": "yellow",
    "excepted": "yellow",
    "not selected": "yellow",
}


def show_run(
    state: RunState,
    terminalreporter: pytest.TerminalReporter,
    config: pytest.Config,
    *,
    shown: Collection[str],
    shows_device: bool,
) -> None:
    """Show the gates, the reasons why checks have no verdict, and the path of the report.

    With -q, nothing else is shown. Without -q, notes and remedies follow; with -v, also a table of all checks.

    Args:
        state: The run.
        terminalreporter: pytest's terminal.
        config: pytest's configuration.
        shown: The failure messages that pytest has shown already. A reason among them is not repeated.
        shows_device: Whether to name the device, because it was not known when the run began.
    """
    if is_controller(config):  # the workers found these errors; without workers, pytest itself reports them
        for message in dict.fromkeys(text for place, text in state.usage_errors.items() if place != CONFIGURATION):
            terminalreporter.write_line(f"ERROR: {message}", red=True)
    run = state.run_record
    if run is not None and not state.usage_errors:
        from attnaudit.report.audited_rows import sampled
        from attnaudit.report.gate_text import gate_notes
        from attnaudit.report.wording import sample_notes

        terminalreporter.write_sep("=", "attention audit")
        _show_gates(run, terminalreporter)
        verbosity = config.get_verbosity()
        if verbosity > 0 and (run.checks or run.missing):
            from attnaudit.run.verdict_table import verdict_table

            writer = config.get_terminal_writer()
            table = verdict_table(run.checks, run.missing, width=writer.fullwidth, color=writer.hasmarkup)
            terminalreporter.write_line(table)
        for note in (*_reasons(run, shown), *_notes(run, verbosity)):
            terminalreporter.write_line(one_line(note))
        for note in gate_notes(run):
            terminalreporter.write_line(one_line(note), red=run.status == "failed", yellow=run.status == "partial")
        if run.status == "passed" and sampled(run):
            rows = ", ".join(sampled(run))
            note = " ".join([f"Only a sample was audited: {rows}.", *sample_notes(run)])
            terminalreporter.write_line(one_line(note), yellow=True)
        devices = sorted({one.device for one in run.measured})
        if devices and shows_device and verbosity >= 0:
            terminalreporter.write_line(one_line(f"measured on {', '.join(devices)}"))
        for note in _identity(run, verbosity):
            terminalreporter.write_line(one_line(note))
        report = state.folder.path / "report.html"
        if report.is_file():  # it is removed if it could not be written again
            terminalreporter.write_line(terminal_safe(f"report: {displayed_path(report, config)}"))
    if state.problem and not state.usage_errors:
        terminalreporter.write_line(one_line(f"attnaudit: {state.problem}"), red=True)


def _show_gates(run: RunRecord, terminalreporter: pytest.TerminalReporter) -> None:
    """Show one line per gate, below the name of its model and data set."""
    from attnaudit.report.gate_lines import gate_lines

    groups = gate_lines(run)
    width = max((len(line.word) for lines in groups.values() for line in lines), default=0)
    for heading, lines in groups.items():
        terminalreporter.write_line(one_line(heading), bold=True)
        for line in lines:
            colour = COLOURS.get(line.word)
            terminalreporter.write(line.word.ljust(width), **({colour: True} if colour else {}))
            terminalreporter.write_line(f"  {one_line(line.text)}")


def _reasons(run: RunRecord, shown: Collection[str]) -> Iterator[str]:
    """Yield lines with the reasons why checks have no verdict. A reason that was shown already is not repeated."""
    counts = Counter(case.reason for case in run.missing)
    above = [count for reason, count in counts.items() if reason in shown]
    if above:
        reasons = "reason" if len(above) == 1 else "reasons"
        yield f"No verdict on {plural(sum(above), 'check')}, for the {reasons} given above."
    for reason, count in counts.items():
        if reason not in shown:
            yield f"No verdict on {plural(count, 'check')}: {reason}"


def _notes(run: RunRecord, verbosity: int) -> Iterator[str]:
    """Yield notes on the gates and on how they were measured, and what may help."""
    from attnaudit.report.measured_causes import cause_notes
    from attnaudit.report.questions import class_notes
    from attnaudit.report.remedies import remedies_in_short
    from attnaudit.report.two_runs.baseline_text import baseline_notes
    from attnaudit.report.unvalidated import unvalidated_notes
    from attnaudit.report.wording import measuring_notes
    from attnaudit.run.verdict_table import explanations

    yield from unvalidated_notes(run)
    yield from class_notes(run)
    if verbosity < 0:
        return
    informational = sum(check.severity != "gate" for check in run.checks)
    if informational and verbosity == 0:
        were, their = ("was", "its value") if informational == 1 else ("were", "their values")
        yield f"{plural(informational, 'informational check')} {were} measured, too. The report and -v show {their}."
    yield from explanations(run.checks, all_of_them=verbosity > 0)
    yield from baseline_notes(run)
    yield from cause_notes(run)
    yield from remedies_in_short(run)
    yield from measuring_notes(run)


def _identity(run: RunRecord, verbosity: int) -> list[str]:
    """Return what identifies the run; with -q, only the options that are not on the command line."""
    from attnaudit.report.gate_text import identity_notes, option_lines

    return identity_notes(run) if verbosity >= 0 else option_lines(run)
