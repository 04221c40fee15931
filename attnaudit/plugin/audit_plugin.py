"""The plugin object of one pytest run: it owns the state of the audit and implements the hooks that need it."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from attnaudit import __version__
from attnaudit.devices import AUTO, device_in_advance
from attnaudit.errors import AuditError, shown_error
from attnaudit.formatting import terminal_safe
from attnaudit.plugin.case_collection import (
    attach_cases,
    collect_case,
    declare_uncollected,
    deselect_cases,
    is_audit_function,
    parametrize_cases,
)
from attnaudit.plugin.case_reports import complete_report, reason_of, short_reason, skip_repetition
from attnaudit.plugin.clean_reports import clean_report, clean_warning
from attnaudit.plugin.closing import amend_run, announce_failure, close_run
from attnaudit.plugin.command_line import KEYS, keys_in_effect, names_a_model
from attnaudit.plugin.displayed_paths import displayed_path
from attnaudit.plugin.files_left_out import paths_without_tests
from attnaudit.plugin.ignored_configuration import ignored_keys
from attnaudit.plugin.interrupts import TerminationHandler
from attnaudit.plugin.junit_file import junit_path, remove_earlier
from attnaudit.plugin.mistyped_names import mistyped_keys
from attnaudit.plugin.planning_cases import plan_cases
from attnaudit.plugin.selection import ci_variable, is_audit_run, is_called_by_user, showing_option
from attnaudit.plugin.shown_failures import shorten_failures
from attnaudit.plugin.state import CASE, CONFIGURATION, RunState, new_state
from attnaudit.plugin.terminal_summary import show_run
from attnaudit.plugin.workers import is_controller, is_worker

#: Shown if the user interrupts the writing of a run. Until its last file is written, the status in audit.json is
#: "running".
UNWRITTEN = "the audit was interrupted while its report was written. Run it again."


class AuditPlugin:
    """The audit of one pytest run. Without a model to audit, it prints nothing.

    Args:
        config: pytest's configuration.
    """

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.state: RunState | None = None
        self._closing = False
        self._shown = False
        self._problem_shown = ""
        self._junit_file: Path | None = None
        self._reasons_shown: set[str] = set()
        self._device_shown = False
        self._termination = TerminationHandler()

    def begin(self) -> RunState:
        """Return the state of the audit. The first call begins the audit."""
        if self.state is None:
            self.state = new_state(self.config)
        return self.state

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionstart(self) -> None:
        """Create the folder of the run before anything is collected or loaded.

        Raises:
            pytest.UsageError: The folder of the reports cannot be written to.
        """
        if not is_audit_run(self.config) or self.config.option.collectonly:
            return
        from attnaudit.checks.decorator import declared_functions
        from attnaudit.run.finish_run import begin_run

        # An earlier session in this process may have declared some, in modules that were imported again since then.
        declared_functions[:] = [declared for declared in declared_functions if declared.is_current]
        state = self.begin()
        self._junit_file = junit_path(self.config)
        try:
            state.options.require_writable_reports()
            remove_earlier(self._junit_file)
            begin_run(state.folder, state.context, resume=state.options.resume is not None)
        except AuditError as error:
            raise pytest.UsageError(shown_error(error)) from error
        state.begun = True

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Send the name of the run to a worker of xdist, so that all processes write to the same folder."""
        node.workerinput["attnaudit_run"] = self.begin().folder.name

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object | None) -> None:
        """Receive the usage errors that a worker of xdist found during the collection."""
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
        if options.sequential:
            header += ", sequential"
        device = device_in_advance(options.device)
        self._device_shown = device != AUTO
        return terminal_safe(f"{header}, device {device}")

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_collection(self) -> Generator[None, object, object]:
        """Refuse keys of the audit that are mistyped, or where pytest does not read them.

        Raises:
            pytest.UsageError: There is such a key.
        """
        try:
            return (yield)
        finally:
            refused: list[str] = []
            if not is_worker(self.config):
                # Other folders count only for an audit: they may contain another project. The controller of xdist does
                # not know of @audit functions, but without a model, its workers refuse them.
                collected = self.state is not None and not is_controller(self.config)
                everywhere = collected or names_a_model(self.config)
                refused = mistyped_keys(self.config, KEYS)
                refused += ignored_keys(self.config, keys_in_effect(self.config), everywhere=everywhere)
            if refused:
                if self.state is not None:
                    self.state.usage_errors[CONFIGURATION] = " ".join(refused)
                raise pytest.UsageError(*refused)

    def pytest_collectstart(self, collector: pytest.Collector) -> None:
        """Record which test files are collected, because each @audit function in them must become a test."""
        if isinstance(collector, pytest.Module) and names_a_model(self.config):
            self.begin().test_modules.setdefault(collector.path, None)

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Make one case per model, data set and check."""
        if is_audit_function(metafunc):
            parametrize_cases(metafunc, self.begin())

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(
        self, collector: pytest.Collector
    ) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
        """Record which test files were imported, and show only the message of an invalid declaration.

        With --full-trace, an invalid declaration is shown with its traceback.
        """
        report = yield
        call: pytest.CallInfo[Any] | None = getattr(report, "call", None)
        # A report without a call comes from another plugin: pytest's own --last-failed makes one without an import.
        if self.state is not None and isinstance(collector, pytest.Module) and call is not None:
            self.state.collected_files[collector.path] = (
                reason_of(report) if report.skipped else _imported_instead(collector) if report.passed else ""
            )
            if report.passed:
                self.state.test_modules[collector.path] = collector.obj
        error = call.excinfo.value if call is not None and call.excinfo is not None else None
        if isinstance(error, AuditError) and not collector.config.getoption("fulltrace", False):
            report.longrepr = shown_error(error)
        return report

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Report usage errors, after other plugins have deselected cases.

        Raises:
            pytest.UsageError: There are errors. A worker of xdist sends them to its controller instead.
        """
        state, config = self.state, self.config
        if state is None:
            return
        if names_a_model(config):
            declare_uncollected(state, config)
        errors = attach_cases(items, state)
        if names_a_model(config):  # an error counts even if its function is not selected: its gates are unknown
            errors = state.usage_errors | errors | paths_without_tests(state, config)
        state.usage_errors = errors
        if errors and is_worker(config):
            config.workeroutput["attnaudit_usage_errors"] = errors  # type: ignore[attr-defined]
            items.clear()
        elif errors:
            raise pytest.UsageError(*dict.fromkeys(errors.values()))

    def pytest_itemcollected(self, item: pytest.Item) -> None:
        """Record which cases are collected. If a conftest.py removes one of them, no option has left it out."""
        if self.state is not None:
            collect_case(item, self.state)

    def pytest_deselected(self, items: list[pytest.Item]) -> None:
        """Record which gates an option such as -k leaves out."""
        if self.state is not None and not is_called_by_user():
            deselect_cases(items, self.state)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> Generator[None, object, object]:
        """Before the first case runs, record the gates and cases to judge. A crash can then hide none of them.

        At this point, other plugins have already deselected cases. After the last case, let pytest fail if a gate is
        open.
        """
        state, config = self.state, self.config
        collection_failed = session.testsfailed and not config.option.continue_on_collection_errors
        if state is None or not names_a_model(config) or config.option.collectonly or collection_failed:
            return (yield)
        plan_cases(state, session)
        if state.selected or is_controller(config):
            self._termination.install(config)
        result = yield
        if state.begun:
            announce_failure(state, session)
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Add the verdict of a case to its pytest report. If the case failed, show only the message, without a
        traceback."""
        report = yield
        if self.state is not None:
            complete_report(item, call, report, self.state)
            if CASE in item.stash:
                clean_report(report)
        return report

    @pytest.hookimpl(tryfirst=True)
    def pytest_warning_recorded(self, warning_message: warnings.WarningMessage, nodeid: str) -> None:
        """Escape the text of warnings, because models and data can put anything into it."""
        if self.state is not None and any(case.test == nodeid for case in self.state.selected):
            clean_warning(warning_message)

    @pytest.hookimpl(tryfirst=True)
    def pytest_report_teststatus(self, report: pytest.TestReport) -> tuple[str, str, str] | None:
        """List a failure of the run itself among the failed tests, but print no letter for it in the progress line.

        With a letter, pytest would count the failure as a test that ran, and show a progress above 100%. If there are
        usage errors, the failure is not listed, because pytest shows usage errors itself.
        """
        if not getattr(report, "attnaudit_added", False):
            return None
        return ("" if self.state is not None and self.state.usage_errors else "failed"), "", ""

    @pytest.hookimpl(tryfirst=True)
    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Note a test file that cannot be collected, so that the report says why the run failed."""
        if report.failed and self.state is not None and not is_worker(self.config):
            self.state.outcomes.other_failures.setdefault(report.nodeid, short_reason(report))

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Collect the outcome of a case, in the process that writes the run."""
        if self.state is None or is_worker(self.config) or self._closing:
            return
        carried = getattr(report, "attnaudit", None)
        if carried is not None:
            skip_repetition(report, self.state)
        is_crash = report.when not in ("setup", "call", "teardown")
        if carried is None and not is_crash:
            if report.failed:
                self.state.outcomes.other_failures.setdefault(report.nodeid, short_reason(report))
            return
        self.state.outcomes.add(
            report.nodeid,
            when=report.when or "",
            outcome=report.outcome,
            reason=(carried and carried["reason"]) or reason_of(report),
            record=carried and carried["record"],
            cause=carried["cause"] if carried else "",
            named=carried["named"] if carried else (),
        )

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> Generator[None, None, None]:
        """Decide the exit status and write the run before other plugins, such as JUnit, write their files.

        If one of these plugins fails, is interrupted or changes the exit status, the run is written again.
        """
        state = self.state
        writes = state is not None and state.begun
        if state is not None and writes:
            self._closing = True
            self._termination.ignore()
            try:
                close_run(state, session)
            except KeyboardInterrupt:
                raise pytest.exit.Exception(UNWRITTEN, int(pytest.ExitCode.INTERRUPTED)) from None
            self._termination.resume()
        elif state is not None and state.usage_errors and is_controller(self.config):
            session.exitstatus = pytest.ExitCode.USAGE_ERROR
        decided = int(session.exitstatus)
        try:
            yield
        except BaseException as error:
            interrupted = isinstance(error, KeyboardInterrupt)
            if interrupted or session.exitstatus == pytest.ExitCode.OK:
                session.exitstatus = pytest.ExitCode.INTERRUPTED if interrupted else pytest.ExitCode.TESTS_FAILED
            if state is not None and writes:
                amend_run(state, int(session.exitstatus), self._junit_file)
                self._show_report_path(state)
                self._show_problem(state)
            if interrupted:
                raise pytest.exit.Exception("interrupted", pytest.ExitCode.INTERRUPTED) from None
            if isinstance(error, pytest.exit.Exception) and not error.returncode:
                error.returncode = int(session.exitstatus)
            raise
        if session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = decided
        if state is not None and writes:
            amend_run(state, int(session.exitstatus), self._junit_file)
            self._show(self.config.pluginmanager.getplugin("terminalreporter"))
            if state.plugin_errors:
                self._show_problem(state)
                raise state.plugin_errors[0]

    def final_status(self, status: int) -> int:
        """Return the exit status of the process. It is 0 only if the audit passed, or if this process has none to run.

        Args:
            status: The exit status of the session.
        """
        option = "" if is_worker(self.config) else showing_option(self.config)
        if option and status == 0 and ci_variable() and not self.config.getoption("--audit-allow-partial"):
            self._complain(
                f"{option} audits nothing, and the environment variable {ci_variable()} is set. Remove {option}, or "
                "add --audit-allow-partial if nothing is to be audited here."
            )
            return int(pytest.ExitCode.TESTS_FAILED)
        if is_worker(self.config) or not is_audit_run(self.config):
            return status
        state = self.state
        if self.config.option.collectonly:
            if status == 0 and ci_variable() and not self.config.getoption("--audit-allow-partial"):
                self._complain(
                    f"--collect-only judges no gate, and the environment variable {ci_variable()} is set. Remove "
                    "--collect-only, or add --audit-allow-partial if no gate is to be judged here."
                )
                return int(pytest.ExitCode.TESTS_FAILED)
            return status
        if state is None or state.run_record is None:
            if status == 0:
                self._complain("pytest ended before the audit did, so nothing was audited. See the output above.")
            if state is not None:
                self._show_problem(state)
            return status or int(pytest.ExitCode.TESTS_FAILED)
        if status == 0 and state.run_record.exit_status:
            status = state.run_record.exit_status
        amend_run(state, status, self._junit_file)
        if status and not state.problem and not self.config.pluginmanager.hasplugin("terminalreporter"):
            self._complain(f"the audit {state.run_record.status}.")
        self._show_problem(state)
        return status

    def record_late_error(self) -> None:
        """Let a run fail that had passed, because the process ends with an error of another plugin."""
        state = self.state
        if state is not None and state.run_record is not None and not state.run_record.exit_status:
            amend_run(state, int(pytest.ExitCode.TESTS_FAILED), self._junit_file)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> Generator[None, None, None]:
        """Show the verdicts and the path of the report, after all other summaries."""
        self._reasons_shown = shorten_failures(terminalreporter, self.config)
        yield
        self._show(terminalreporter)

    def _show(self, terminalreporter: pytest.TerminalReporter | None) -> None:
        """Show the result of the run, unless it was shown before.

        pytest calls no hook for the summary after `pytest.exit(returncode=...)` with some values.
        """
        state = self.state
        if state is None or terminalreporter is None or self._shown or self.config.option.collectonly:
            return
        self._shown = True
        self._problem_shown = state.problem
        show_run(state, terminalreporter, self.config, shown=self._reasons_shown, shows_device=not self._device_shown)

    def _show_report_path(self, state: RunState) -> None:
        """Show the path of the report, because pytest may not have shown its summary."""
        report = state.folder.path / "report.html"
        written = state.run_record is not None and report.is_file()  # it is removed if it cannot be written again
        if written and self.config.pluginmanager.hasplugin("terminalreporter"):
            shown = terminal_safe(displayed_path(report, self.config))
            line = f"\nattention audit: the report shows the verdicts reached so far: {shown}"
            self.config.get_terminal_writer().line(line)

    def _show_problem(self, state: RunState) -> None:
        """Show why the run failed, unless pytest's terminal has shown it."""
        if state.problem and state.problem != self._problem_shown:
            self._problem_shown = state.problem
            self._complain(state.problem)

    @staticmethod
    def _complain(message: str) -> None:
        print(terminal_safe(f"attnaudit: {message}"), file=sys.stderr)


def _imported_instead(collector: pytest.Module) -> str:
    """Return which file pytest imported instead of a test file; "" if it imported the test file itself.

    Two test files with the same module name are usually an error. With the environment variable
    PY_IGNORE_IMPORTMISMATCH=1, pytest takes the first one twice.
    """
    imported = getattr(collector.obj, "__file__", None)
    if not isinstance(imported, str) or not Path(imported).is_file() or Path(imported).samefile(collector.path):
        return ""
    return f"pytest imported {imported} instead, which has the same module name"
