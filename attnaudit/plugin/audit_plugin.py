"""The plugin object of one pytest run: it owns the state of the audit and implements the hooks that need it."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from attnaudit import __version__
from attnaudit.errors import AuditError
from attnaudit.plugin.case_collection import attach_cases, is_audit_function, parametrize_cases
from attnaudit.plugin.command_line import names_a_model
from attnaudit.plugin.interrupts import TerminationHandler
from attnaudit.plugin.rerun import displayed_path, rerun_command
from attnaudit.plugin.state import CASE, MeasurementsRequest, RunState, new_state
from attnaudit.plugin.workers import is_controller, is_worker

if TYPE_CHECKING:
    from attnaudit.records import RunRecord


class AuditPlugin:
    """The audit of one pytest run. It prints nothing in a run without an audit.

    The audit begins at the first audit function, or in the controller of xdist, whose workers collect the functions.

    Args:
        config: pytest's configuration.
    """

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.state: RunState | None = None
        self._termination = TerminationHandler()

    def begin(self) -> RunState:
        """Return the state of the audit, which begins at the first call."""
        if self.state is None:
            self.state = new_state(self.config)
        return self.state

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Send the name of the run to a worker of xdist, so that all processes write to the same folder."""
        node.workerinput["attnaudit_run"] = self.begin().folder.name

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object | None) -> None:
        """Receive the usage errors that a worker of xdist found while it collected."""
        self.begin().usage_errors.update(getattr(node, "workeroutput", {}).get("attnaudit_usage_errors", {}))

    def pytest_report_header(self) -> str | None:
        """Show what is audited."""
        if not names_a_model(self.config):
            return None
        options = self.begin().options
        header = f"attnaudit {__version__}: {', '.join(options.models)} on {', '.join(options.data)}"
        header += f", seed {options.seed}"
        if options.max_instances is not None:
            header += f", at most {options.max_instances} instances"
        return f"{header}, device {options.device}"

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Make one case per model, data set and check."""
        if is_audit_function(metafunc):
            parametrize_cases(metafunc, self.begin())

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """After other plugins have deselected cases, report usage errors and a report folder that is not writable.

        Raises:
            pytest.UsageError: There are errors. A worker of xdist sends them to its controller instead.
        """
        state, config = self.state, self.config
        if state is None:
            return
        errors = attach_cases(items, state)
        has_cases = any(CASE in item.stash for item in items)
        if not has_cases and names_a_model(config):
            errors = state.usage_errors  # perhaps -k matches no case because the errors prevented all of them
        if has_cases and not errors and not config.option.collectonly:
            try:
                state.options.require_writable_reports()
            except AuditError as error:
                errors["reports"] = str(error)
        state.usage_errors = errors
        if errors and is_worker(config):
            config.workeroutput["attnaudit_usage_errors"] = errors  # type: ignore[attr-defined]
            items.clear()
        elif errors:
            raise pytest.UsageError(*dict.fromkeys(errors.values()))

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> None:
        """Write down the cases before the first one runs, so that none is lost in a crash, and request their measures.

        By now, all plugins have deselected the cases that they leave out.
        """
        state, config = self.state, self.config
        collection_failed = session.testsfailed and not config.option.continue_on_collection_errors
        if state is None or config.option.collectonly or collection_failed:
            return
        from attnaudit.run.run_folder import SelectedCase

        several_files = len(state.files_with_checks) > 1
        for item in session.items:
            case = item.stash.get(CASE, None)
            if case is None:
                continue
            if isinstance(case, MeasurementsRequest):
                check, needs = "", case.needs
            else:
                check, needs = case.check.id, case.check.needs_under_reading()
                case.test = item.nodeid
                case.rerun_command = rerun_command(config, item.nodeid, several_files=several_files)
            state.session.request(case.model, case.data, needs)
            state.selected.append(SelectedCase(test=item.nodeid, model=case.model, data=case.data, check=check))
        if state.selected or is_controller(config):
            self._termination.install(config)
        if state.selected:
            state.folder.write_selected(state.selected, worker=state.session.worker, policy=state.policy)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Collect the outcome of a case, in the process that writes the run."""
        if self.state is None or is_worker(self.config):
            return
        carried = getattr(report, "attnaudit", None)
        is_crash = report.when not in ("setup", "call", "teardown")
        if carried is None and not is_crash:
            return
        self.state.outcomes.add(
            report.nodeid,
            when=report.when or "",
            outcome=report.outcome,
            reason=(carried and carried["reason"]) or _reason_of(report),
            record=carried and carried["record"],
        )

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> Generator[None, None, None]:
        """Decide the exit status and write the run, even if this hook of another plugin fails or is interrupted."""
        try:
            yield
        except BaseException as error:
            interrupted = isinstance(error, KeyboardInterrupt)
            if interrupted or session.exitstatus == pytest.ExitCode.OK:
                session.exitstatus = pytest.ExitCode.INTERRUPTED if interrupted else pytest.ExitCode.TESTS_FAILED
            self._finish(session)
            if self.state is not None and self.state.run_record is not None:
                report = displayed_path(self.state.folder.path / "report.html", self.config)
                line = f"\nattention audit: the report of the verdicts reached so far is {report}"
                self.config.get_terminal_writer().line(line)
            if interrupted:
                raise pytest.exit.Exception("interrupted", pytest.ExitCode.INTERRUPTED) from None
            raise
        self._finish(session)

    def _finish(self, session: pytest.Session) -> None:
        """Decide the exit status and write the run, unless this is a worker or nothing was to be run."""
        state, config = self.state, self.config
        if state is None or is_worker(config) or config.option.collectonly:
            return
        if state.usage_errors:
            if is_controller(config):  # without workers, pytest itself reported the errors
                session.exitstatus = pytest.ExitCode.USAGE_ERROR
            return
        selected = state.selected or state.folder.read_selected()
        if session.exitstatus == pytest.ExitCode.OK:
            if not selected and names_a_model(config):
                state.failure = "a model was given, but no case of the audit was collected: nothing was audited."
            elif selected and not state.outcomes.ran:
                state.failure = "every case of the audit was skipped: nothing was audited."
            if state.failure:
                session.exitstatus = pytest.ExitCode.NO_TESTS_COLLECTED
            elif tests := state.outcomes.tests_without_enforcement(selected):
                state.failure = f"no verdict was enforced: call check.enforce() in {', '.join(tests)}."
                session.exitstatus = pytest.ExitCode.TESTS_FAILED
        if not selected:
            return
        from attnaudit.run.finish_run import finish_run

        self._termination.ignore()
        try:
            state.run_record = finish_run(
                state.folder,
                state.outcomes,
                state.options,
                selected,
                version=__version__,
                created=state.created,
                command=["pytest", *map(str, config.invocation_params.args)],
                exit_status=int(session.exitstatus),
            )
        except AuditError as error:
            state.failure = str(error)
            if session.exitstatus == pytest.ExitCode.OK:
                session.exitstatus = pytest.ExitCode.TESTS_FAILED

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> Generator[None, None, None]:
        """Show the verdicts and the path of the report, after all other summaries."""
        yield
        state = self.state
        if state is None or self.config.option.collectonly:
            return
        if is_controller(self.config):
            for message in dict.fromkeys(state.usage_errors.values()):
                terminalreporter.write_line(f"ERROR: {message}", red=True)
        if state.run_record is not None:
            self._show_verdicts(state.run_record, state.folder.path / "report.html", terminalreporter)
        if state.failure:
            terminalreporter.write_line(f"attnaudit: {state.failure}", red=True)

    def _show_verdicts(self, run: RunRecord, report: Path, terminalreporter: pytest.TerminalReporter) -> None:
        """Write the table of verdicts and the notes below it."""
        from attnaudit.report.questions import policy_notes, remedies_in_short
        from attnaudit.report.wording import measuring_notes
        from attnaudit.run.verdict_table import verdict_table

        writer = self.config.get_terminal_writer()
        terminalreporter.write_sep("=", "attention audit")
        terminalreporter.write_line(
            verdict_table(run.checks, run.missing, width=writer.fullwidth, color=writer.hasmarkup)
        )
        for note in (*policy_notes(run), *remedies_in_short(run), *measuring_notes(run)):
            terminalreporter.write_line(note)
        terminalreporter.write_line(f"report: {displayed_path(report, self.config)}")


def _reason_of(report: pytest.TestReport) -> str:
    """Return why a test failed or was skipped, in one line."""
    longrepr = report.longrepr
    if isinstance(longrepr, tuple):
        return longrepr[2].removeprefix("Skipped: ")
    crash = getattr(longrepr, "reprcrash", None)
    return str(getattr(crash, "message", longrepr) or report.outcome)
