"""End a run: settle its gates, decide the exit status, report missing verdicts to other plugins, and write files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from attnaudit.errors import AuditError, shown_error
from attnaudit.formatting import listed, one_line
from attnaudit.plugin.planning_cases import declared_policy
from attnaudit.plugin.selection import ci_variable, selecting_options, stopping_option
from attnaudit.plugin.state import RunState

if TYPE_CHECKING:
    from attnaudit.records import GateRecord, RunRecord, UnvalidatedModel
    from attnaudit.run.plan import Plan

#: The exit status if no gate was judged because no model could be audited ("model") or no data set ("data").
CAUSE_STATUS = {"model": 6, "data": 7}
HOW_TO_EXCEPT = (
    "A gate may be skipped or expected to fail only if the policy names it in an [[exception]] table, with a reason."
)
#: How many failed tests that are not cases of the audit are named.
MOST_SHOWN = 3
#: The problem of a run that passed until pytest was interrupted, or until another plugin changed the exit status.
INTERRUPTED = "pytest was interrupted after the last test"
CHANGED_STATUS = "another plugin made the run fail after the last test"
PARTIAL_IN_CI = (
    "the run is partial, and the environment variable {variable} is set. Run every gate and every test file, or add "
    "--audit-allow-partial if a partial run is intended here."
)


def close_run(state: RunState, session: pytest.Session) -> None:
    """Settle the gates of a run, set the exit status of the session, and write the run.

    An open gate becomes a failed test for all other plugins, including JUnit and the terminal.

    Args:
        state: The run, in the process that writes it.
        session: The session of pytest, which has run all its tests or was stopped.
    """
    from attnaudit.run.finish_run import RunEnding, finish_run
    from attnaudit.run.gates import run_status

    if state.announced:  # pytest counted a failed test that there is not
        session.testsfailed = 0
        if session.exitstatus == pytest.ExitCode.TESTS_FAILED:
            session.exitstatus = pytest.ExitCode.OK
    base = int(session.exitstatus)
    plan, gates, unvalidated = _settled(state, session)
    if not state.usage_errors:
        if base in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
            state.problem = _nothing_audited(state, plan, gates)
        _report_failures(state, plan, gates, session)
        _report_unvalidated(state, plan, unvalidated, session)
        base = _report_conflicts(state, session, base)
    else:
        state.problem = " ".join(dict.fromkeys(state.usage_errors.values()))
        base = int(pytest.ExitCode.USAGE_ERROR)  # without workers, pytest has this status already
    status = run_status(
        gates,
        exit_status=base or int(bool(state.problem)),
        files_left_out=plan.files_left_out,
        unvalidated=unvalidated,
    )
    exit_status = _exit_status(state, gates, base, unvalidated)
    if status == "partial" and state.context.ci and not state.context.allow_partial:
        state.problem = PARTIAL_IN_CI.format(variable=ci_variable() or "CI")
        exit_status = int(pytest.ExitCode.TESTS_FAILED)
        _report_failure(state, session, "partial-run", [state.problem])
    elif exit_status and not session.testsfailed:
        state.problem = state.problem or f"pytest ended with exit status {exit_status}, although no test failed."
        _report_failure(state, session, "ended-early", [state.problem])
    elif exit_status and not state.problem:
        state.problem = _other_failures(state.outcomes.other_failures)
    session.exitstatus = exit_status
    ending = RunEnding(
        status=status, exit_status=exit_status, gates=gates, unvalidated=unvalidated, problem=state.problem
    )
    try:
        state.run_record = finish_run(state.folder, state.context, plan, state.outcomes, ending)
    except AuditError as error:
        _writing_failed(state, error, session)


def announce_failure(state: RunState, session: pytest.Session) -> None:
    """Let pytest count a failed test if the run will fail although all of its tests passed.

    pytest calls `pytest_sessionfinish` with the exit status that follows from the tests, and `close_run` cannot change
    this argument. Without the failed test, the argument would be 0. A hook that ends the process with it, as in
    `os._exit(exitstatus)`, would then hide that a gate is open.

    Args:
        state: The run, in the process that writes it.
        session: The session of pytest, which has run all its tests.
    """
    from attnaudit.run.conflicting_parts import conflicts
    from attnaudit.run.gates import run_status

    if session.testsfailed or not session.testscollected:
        return  # pytest's own exit status is not 0
    plan, gates, unvalidated = _settled(state, session)
    status = run_status(gates, files_left_out=plan.files_left_out, unvalidated=unvalidated)
    refused = status == "partial" and state.context.ci and not state.context.allow_partial
    if status == "failed" or refused or _nothing_audited(state, plan, gates) or conflicts(state.folder):
        session.testsfailed = 1
        state.announced = True


def _settled(state: RunState, session: pytest.Session) -> tuple[Plan, list[GateRecord], list[UnvalidatedModel]]:
    """Return the plan of a run, the outcomes of its gates, and the models that its policy was not validated on.

    If there are usage errors, no gate has an outcome.
    """
    from attnaudit.model_families import unvalidated_models
    from attnaudit.run.finish_run import measured_models
    from attnaudit.run.gates import settle
    from attnaudit.run.plan import Plan

    declared = Plan(
        gates=list(state.declared.values()),
        selected=state.selected,
        # If pytest ended while it collected, no plan was written.
        effective_policy=None if state.usage_errors else declared_policy(state),
    )
    plan = Plan.joined([state.folder.read_plan(), declared])
    models = measured_models(state.folder.read_parts())
    gates: list[GateRecord] = []
    if not state.usage_errors:
        gates = settle(
            plan,
            state.outcomes,
            models=models,
            left_out_by=selecting_options(session.config),
            stopped_by=stopping_option(session),
        )
    return plan, gates, unvalidated_models(plan.effective_policy, models)


def amend_run(state: RunState, exit_status: int, junit_file: Path | None) -> None:
    """Write the run again if another plugin has changed the exit status since it was written.

    If the run failed, a JUnit file without a failure gets one. If a file can be neither written nor removed, its
    error is part of the problem of the run.

    Args:
        state: The run.
        exit_status: The exit status of pytest.
        junit_file: The JUnit file that pytest may have written already; None if it writes none.
    """
    from attnaudit.plugin.junit_file import add_failure

    run = state.run_record
    if run is not None and run.exit_status != exit_status:
        _write_again(state, run, exit_status)
    elif not state.plugin_errors:
        return
    if exit_status:
        raised = [
            f"Another plugin raised {type(error).__name__}: {one_line(str(error))}" for error in state.plugin_errors
        ]
        try:
            add_failure(junit_file, "ended-early", state.problem or " ".join(raised))
        except AuditError as error:
            _add_problem(state, error)


def _write_again(state: RunState, run: RunRecord, exit_status: int) -> None:
    """Write the report and the final audit.json again, with another exit status.

    If they cannot be written, audit.json and the pages are removed, because they may say that the run passed.

    Args:
        state: The run.
        run: The content of audit.json.
        exit_status: The exit status of pytest.
    """
    import msgspec

    from attnaudit.run.finish_run import RunEnding, end_run
    from attnaudit.run.gates import run_status

    interrupted = exit_status == pytest.ExitCode.INTERRUPTED
    state.problem = run.problem or (INTERRUPTED if interrupted else CHANGED_STATUS)
    status = run_status(
        run.gates, exit_status=exit_status, files_left_out=run.files_left_out, unvalidated=run.unvalidated
    )
    ending = RunEnding(
        status=status, exit_status=exit_status, gates=run.gates, unvalidated=run.unvalidated, problem=state.problem
    )
    try:
        state.run_record = end_run(state.folder, run, ending)
    except AuditError as error:
        _add_problem(state, error)
        for remove in (state.folder.remove_record, state.folder.remove_pages):
            try:
                remove()
            except AuditError as another:
                _add_problem(state, another)
        state.run_record = msgspec.structs.replace(run, status="failed", exit_status=exit_status, problem=state.problem)


def _add_problem(state: RunState, error: AuditError) -> None:
    """Add the message of an error to the problem of the run, unless the problem contains it."""
    message = shown_error(error)
    if message not in state.problem:
        state.problem = f"{state.problem.rstrip('.')}. {message}" if state.problem else message


def _nothing_audited(state: RunState, plan: Plan, gates: Sequence[GateRecord]) -> str:
    """Return why a run audited nothing although pytest did not fail; "" if it audited something."""
    if gates:
        return _nothing_decided(state, gates)
    if not plan.selected:
        return (
            "a model was given, but no case of the audit was collected: nothing was audited. Give pytest the folder of "
            "the audit, such as audits/ (`attnaudit init` writes one)."
        )
    if not state.outcomes.ran:
        return "every case of the audit was skipped: nothing was audited. Remove the skip."
    return ""


def _other_failures(failures: Mapping[str, str]) -> str:
    """Return which tests and test files failed that are not cases of the audit, with reasons; "" if there are none."""
    tests = [f"{name} ({reason.rstrip('.')})" for name, reason in failures.items() if "::" in name]
    files = [f"{name} ({reason.rstrip('.')})" for name, reason in failures.items() if "::" not in name]
    found = (("Failed", tests), ("Could not be collected", files))
    return " ".join(f"{what}: {listed(names, MOST_SHOWN)}." for what, names in found if names)


def _nothing_decided(state: RunState, gates: Sequence[GateRecord]) -> str:
    """Return why no gate of a model decided anything although no gate failed; "" if this holds for no model."""
    undecided = {key[:3] for key, record in state.outcomes.records.items() if record.verdict == "inconclusive"}
    states: dict[str, set[str]] = {}
    for gate in gates:
        allowed = gate.state == "passed" and (gate.model, gate.data, gate.check) in undecided
        states.setdefault(gate.model, set()).add("inconclusive" if allowed else gate.state)
    idle = {"excepted", "inconclusive", "informational"}
    found = [model for model, of in states.items() if of <= idle and of != {"informational"}]
    if not found:
        return ""
    of_found = set().union(*(states[model] for model in found))
    which = "every gate that is not informational" if "informational" in of_found else "every gate"
    where = f" of {listed(found)}" if len(found) < len(states) else ""
    if "inconclusive" not in of_found:
        return f"the policy excepts {which}{where}, so nothing was decided. Remove an exception."
    excepted = "excepted or " if "excepted" in of_found else ""
    return (
        f"{which}{where} is {excepted}inconclusive, which the policy allows, so nothing was decided. Audit more rows."
    )


def _exit_status(
    state: RunState, gates: Sequence[GateRecord], base: int, unvalidated: Sequence[UnvalidatedModel]
) -> int:
    """Return the exit status of a run that is not partial."""
    from attnaudit.model_families import blocked_models

    cause = state.outcomes.only_cause()
    if base == pytest.ExitCode.TESTS_FAILED and cause:
        return CAUSE_STATUS[cause]
    if base:
        return base
    if any(gate.state in ("failed", "open") for gate in gates) or blocked_models(unvalidated):
        return int(pytest.ExitCode.TESTS_FAILED)
    return int(pytest.ExitCode.NO_TESTS_COLLECTED) if state.problem else 0


def _report_failures(state: RunState, plan: Plan, gates: Sequence[GateRecord], session: pytest.Session) -> None:
    """Report one failed test per reason for the gates that did not pass although no failed test names them."""
    results = state.outcomes.results
    failed_tests = {test for test, result in results.items() if result.outcome == "failed"}
    skipped_reasons = {result.reason for result in results.values() if result.outcome == "skipped"}
    covered = {case.key for case in plan.selected if case.test in failed_tests}
    covered |= {key for test in failed_tests for key in results[test].named}
    by_reason: dict[str, list[str]] = {}
    for gate in gates:
        key = (gate.model, gate.data, gate.check)
        if gate.state in ("failed", "open") and key not in covered:
            by_reason.setdefault(gate.reason, []).append(f"{gate.check} ({gate.model} on {gate.data})")
    for number, (reason, names) in enumerate(by_reason.items(), 1):
        what = "This gate did" if len(names) == 1 else f"Each of these {len(names)} gates did"
        advice = [HOW_TO_EXCEPT] if reason in skipped_reasons else []
        _report_failure(state, session, f"gates-not-passed-{number}", [f"{what} not pass: {reason}", *names, *advice])
    if state.problem:
        _report_failure(state, session, "nothing-audited", [state.problem])


def _report_unvalidated(
    state: RunState, plan: Plan, unvalidated: Sequence[UnvalidatedModel], session: pytest.Session
) -> None:
    """Report one failed test for each model that fails the run because of its family."""
    from attnaudit.model_families import blocked_models
    from attnaudit.report.unvalidated import unvalidated_sentence

    for number, one in enumerate(blocked_models(unvalidated), 1):
        _report_failure(
            state, session, f"not-validated-{number}", [unvalidated_sentence(one, plan.policy), *one.checks]
        )


def _report_conflicts(state: RunState, session: pytest.Session, base: int) -> int:
    """Report one failed test for all models and data sets that were not the same in all processes.

    Returns:
        The exit status of the session: a failing one if there is such a model or data set, otherwise `base`.
    """
    from attnaudit.run.conflicting_parts import conflicts

    found = conflicts(state.folder)
    if not found:
        return base
    state.problem = " ".join(filter(None, [state.problem, *found]))
    _report_failure(state, session, "different-processes", found)
    return base or int(pytest.ExitCode.TESTS_FAILED)


def _report_failure(state: RunState, session: pytest.Session, name: str, lines: Sequence[str]) -> None:
    """Report a failure of the run to all plugins, such as JUnit, in the form of a failed test.

    If a plugin raises an error, it is raised again after the run was written (see `RunState.plugin_errors`).
    """
    report = pytest.TestReport(
        nodeid=f"attnaudit::{name}",
        location=("attnaudit", 0, name),  # with None instead of 0, plugins that add 1 to the line would fail
        keywords={},
        outcome="failed",
        longrepr="\n".join(map(one_line, lines)),
        when="call",
    )
    report.attnaudit_added = True  # type: ignore[attr-defined]
    try:
        session.config.hook.pytest_runtest_logreport(report=report)
    except Exception as error:
        state.plugin_errors.append(error)
    report.attnaudit_added = False  # type: ignore[attr-defined]  # from now on, it is shown as any other failure


def _writing_failed(state: RunState, error: AuditError, session: pytest.Session) -> None:
    """Fail the run because its files cannot be written.

    If there is an audit.json, its status remains "running". Pages that were written are removed, because they may say
    that the run passed.
    """
    state.problem = shown_error(error)
    try:
        state.folder.remove_pages()
    except AuditError as another:
        _add_problem(state, another)
    if session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
    _report_failure(state, session, "report-not-written", [state.problem])
