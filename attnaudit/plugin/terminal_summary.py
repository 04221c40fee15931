"""Show the result of a run at the end of pytest's output."""

from __future__ import annotations

import pytest

from attnaudit.formatting import one_line, terminal_safe
from attnaudit.plugin.rerun import displayed_path
from attnaudit.plugin.state import RunState
from attnaudit.plugin.workers import is_controller


def show_run(state: RunState, terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Show the table of verdicts, the gates without a verdict, and the path of the report.

    Args:
        state: The run.
        terminalreporter: pytest's terminal.
        config: pytest's configuration.
    """
    if is_controller(config):  # without workers, pytest itself reports usage errors
        for message in dict.fromkeys(state.usage_errors.values()):
            terminalreporter.write_line(f"ERROR: {message}", red=True)
    run = state.run_record
    if run is not None and not state.usage_errors:
        from attnaudit.report.baseline_text import baseline_notes
        from attnaudit.report.gate_text import gate_notes, identity_notes
        from attnaudit.report.questions import policy_notes
        from attnaudit.report.remedies import remedies_in_short
        from attnaudit.report.wording import measuring_notes
        from attnaudit.run.verdict_table import verdict_table

        writer = config.get_terminal_writer()
        terminalreporter.write_sep("=", "attention audit")
        if run.checks or run.missing:
            table = verdict_table(run.checks, run.missing, width=writer.fullwidth, color=writer.hasmarkup)
            terminalreporter.write_line(table)
        for note in (*policy_notes(run), *baseline_notes(run), *remedies_in_short(run), *measuring_notes(run)):
            terminalreporter.write_line(one_line(note))
        for note in gate_notes(run):
            terminalreporter.write_line(one_line(note), red=run.status == "failed", yellow=run.status == "partial")
        for note in identity_notes(run):
            terminalreporter.write_line(one_line(note))
        report = displayed_path(state.folder.path / "report.html", config)
        terminalreporter.write_line(terminal_safe(f"report: {report}"))
    if state.problem and not state.usage_errors:
        terminalreporter.write_line(one_line(f"attnaudit: {state.problem}"), red=True)
