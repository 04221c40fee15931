"""The pytest plugin: options, collection of cases, records from workers, exit status, the table at the end.

Loaded in every pytest run of the environment, so it imports neither torch nor the rest of the package before there is
a case, and says nothing in a run without one.
"""

from __future__ import annotations

import os
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

import pytest

from attnaudit import __version__
from attnaudit.devices import NAMES
from attnaudit.errors import AuditError
from attnaudit.plugin.state import (
    CASE,
    STATE,
    Imperative,
    case_of,
    command_of,
    current,
    has_workers,
    ignore_terminations,
    interrupt_when_terminated,
    is_worker,
    needs_of,
    option_of,
    options_of,
    reason_of,
    shown_path,
    state_of,
)

if TYPE_CHECKING:
    from attnaudit.engine.measurements import Measurements

#: What an imperative test measures unless its mark says more.
DEFAULT_NEEDS = ("prediction", "attention")
DEFAULT_DATA = "movie-reviews"


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("attnaudit", "attention audit")
    group.addoption(
        "--model",
        action="append",
        metavar="MODEL",
        help="model to audit: a checkpoint folder, a registered name (demo) or package.module:factory; repeatable",
    )
    group.addoption(
        "--data",
        action="append",
        metavar="DATA",
        help="data to audit on: a .jsonl, .csv or .parquet file with text and label, or a registered name; repeatable "
        f"(default: {DEFAULT_DATA})",
    )
    group.addoption("--policy", metavar="FILE", help="TOML file whose checks replace those of every @audit function")
    group.addoption("--audit-device", metavar="DEVICE", help=f"{NAMES} (default: cpu)")
    group.addoption("--audit-reports", metavar="DIR", help="folder that runs are written to (default: reports)")
    group.addoption("--audit-max-instances", type=int, metavar="N", help="audit a seeded sample of N instances")
    group.addoption(
        "--audit-unit", choices=("tokens", "words"), help="what statistics are over: tokens, or words (default: tokens)"
    )
    group.addoption("--audit-seed", type=int, metavar="N", help="seed of samples, permutations, intervals (default: 0)")
    parser.addini("audit_model", "as --model, relative to the configuration file", type="args", default=[])
    parser.addini("audit_data", "as --data, relative to the configuration file", type="args", default=[DEFAULT_DATA])
    parser.addini("audit_policy", "as --policy, relative to the configuration file", default=None)
    parser.addini("audit_device", "as --audit-device", default="cpu")
    parser.addini("audit_reports", "as --audit-reports, relative to the configuration file", default="reports")
    parser.addini("audit_max_instances", "as --audit-max-instances", default="")
    parser.addini("audit_unit", "as --audit-unit", default="tokens")
    parser.addini("audit_seed", "as --audit-seed", default="0")


def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    # Read once, when torch is loaded, which a conftest may do: threads that spin while they wait make an audit many
    # times slower where other processes share the cores.
    if early_config.known_args_namespace.model:
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def pytest_configure(config: pytest.Config) -> None:
    if option_of(config, "--model", "audit_model"):
        options_of(config)  # a wrong value ends the run here, not in the middle of the collection
    config.addinivalue_line(
        "markers",
        "attnaudit(needs=[...]): a case of the attention audit; needs names what the fixture `measurements` measures",
    )


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """xdist, controller: every worker writes into the same run."""
    node.workerinput["attnaudit_run"] = state_of(node.config).folder.name


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object | None) -> None:
    """xdist, controller: a usage error that a worker met while collecting."""
    state_of(node.config).problems.update(getattr(node, "workeroutput", {}).get("attnaudit_problems", {}))


def pytest_report_header(config: pytest.Config) -> str | None:
    if not option_of(config, "--model", "audit_model"):
        return None
    options = state_of(config).options
    words = f"attnaudit {__version__}: {', '.join(options.models)} on {', '.join(options.data)}, seed {options.seed}"
    if options.max_instances is not None:
        words += f", at most {options.max_instances} instances"
    return f"{words}, device {options.device}"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    checks = getattr(metafunc.function, "attnaudit_checks", None)
    imperative = "attnaudit_case" in metafunc.fixturenames
    if checks is None and not imperative:
        return
    state = state_of(metafunc.config)
    argument = "attnaudit_case" if checks is None else "check"
    try:
        if checks is not None and "check" not in metafunc.fixturenames:
            raise AuditError(
                f"{metafunc.definition.nodeid}: is decorated with @audit but takes no argument `check`. "
                f"Write def {metafunc.function.__name__}(check): check.enforce()"
            )
        state.options.check()
        pairs = [(m.id, d.id) for m in state.options.named_models() for d in state.options.named_data()]
        given = state.options.policy_checks()
        if checks is not None:
            record = given.record if given else getattr(metafunc.function, "attnaudit_policy", None)
            checks, state.policy = given or checks, state.policy or record
    except AuditError as error:
        if argument in metafunc.fixturenames:
            metafunc.parametrize(argument, [pytest.param(None, id="not-auditable")], indirect=checks is None)
        state.problems[metafunc.definition.nodeid] = str(error)
        return
    from attnaudit.run import Case

    for check in checks or ():
        state.session.declare(check)
        state.declared_in.add(metafunc.definition.path)
    cases: list[Any] = []
    for model, data in pairs:
        marks = [pytest.mark.xdist_group(f"{model}-{data}")] if metafunc.config.pluginmanager.hasplugin("xdist") else []
        if checks is None:
            imperative_case = Imperative(model, data, state.session)
            cases.append(pytest.param(imperative_case, id=f"{model}-{data}", marks=marks))
            continue
        for check in checks:
            case = Case(check, model=model, data=data, session=state.session)
            cases.append(pytest.param(case, id=case.id, marks=marks))
    metafunc.parametrize(argument, cases, indirect=checks is None)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """A check that cannot be declared is told in words; --full-trace shows where it was."""
    report = yield
    call: pytest.CallInfo[Any] | None = getattr(report, "call", None)
    error = call.excinfo.value if call is not None and call.excinfo is not None else None
    if isinstance(error, AuditError) and not collector.config.getoption("fulltrace", False):
        report.longrepr = str(error)
    return report


@pytest.fixture
def attnaudit_case(request: pytest.FixtureRequest) -> Imperative:
    """The model and the data set that the fixture `measurements` is about."""
    found: Imperative = request.param
    return found


@pytest.fixture
def measurements(attnaudit_case: Imperative) -> Measurements:
    """What was measured of one model on one data set: the numbers that the checks see. Once per --model and --data."""
    return attnaudit_case.session.measurements(attnaudit_case.model, attnaudit_case.data, attnaudit_case.needs)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(session: pytest.Session, config: pytest.Config, items: list[pytest.Item]) -> None:
    """After deselection: which cases there are, and whether the run can be written at all."""
    if STATE not in config.stash:
        return
    state = config.stash[STATE]
    known: dict[tuple[str, str, str], tuple[Any, str]] = {}
    problems: dict[str, str] = {}
    for item in items:
        original = f"{item.parent.nodeid if item.parent else ''}::{getattr(item, 'originalname', item.name)}"
        if original in state.problems:
            problems[original] = state.problems[original]
        case = case_of(item)
        if case is None:
            continue
        item.stash[CASE] = case
        if isinstance(case, Imperative):
            try:
                case.needs = needs_of(item) or DEFAULT_NEEDS
            except AuditError as error:
                problems[original] = str(error)
            continue
        key = (case.model, case.data, case.check.id)
        other, where = known.setdefault(key, (case.check, item.nodeid))
        if other != case.check:
            problems[original] = (
                f"{item.nodeid} and {where} are the same check with other arguments, so one verdict would hide the "
                "other. Keep one of them."
            )
    cases = [item for item in items if CASE in item.stash]
    if not cases and option_of(config, "--model", "audit_model"):
        problems = state.problems  # an audit was asked for, and -k matched no case because none could be made
    if cases and not problems and not config.option.collectonly:
        try:
            state.options.require_writable_reports()
        except AuditError as error:
            problems["reports"] = str(error)
    state.problems = problems
    if problems and is_worker(config):
        config.workeroutput["attnaudit_problems"] = problems  # type: ignore[attr-defined]
        items.clear()
    elif problems:
        raise pytest.UsageError(*dict.fromkeys(problems.values()))


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> None:
    """Write down the cases before the first one runs, so that none can get lost, and what they need, now that every
    plugin has deselected."""
    config = session.config
    stopped = session.testsfailed and not config.option.continue_on_collection_errors
    if STATE not in config.stash or config.option.collectonly or stopped:
        return
    from attnaudit.run.run_folder import PlannedCase

    state = config.stash[STATE]
    for item in session.items:
        case = item.stash.get(CASE, None)
        if case is None:
            continue
        check = "" if isinstance(case, Imperative) else case.check.id
        state.session.want(
            case.model, case.data, case.needs if isinstance(case, Imperative) else case.check.needs_under_reading()
        )
        state.planned.append(PlannedCase(test=item.nodeid, model=case.model, data=case.data, check=check))
        if not isinstance(case, Imperative):
            case.test = item.nodeid
            case.again = command_of(config, item.nodeid)
    if state.planned or has_workers(config):
        interrupt_when_terminated(config)
    if state.planned:
        state.folder.plan(state.planned, worker=state.session.worker, policy=state.policy)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    case = item.stash.get(CASE, None)
    if case is None:
        return report
    import msgspec

    from attnaudit.checks import CheckFailed

    record = None if isinstance(case, Imperative) or call.when != "call" else case.record
    error = None if call.excinfo is None else call.excinfo.value
    report.attnaudit = {  # type: ignore[attr-defined]
        "record": None if record is None else msgspec.to_builtins(record),
        "reason": str(error) if isinstance(error, AuditError) else None,
    }
    ours = isinstance(error, (AuditError, CheckFailed)) and report.outcome == "failed"
    if ours and call.excinfo is not None and not item.config.getoption("fulltrace", False):
        # The message alone; --full-trace shows where it was raised.
        shown = call.excinfo.getrepr(style="value", chain=False)
        if shown.reprcrash is not None:
            shown.reprcrash.message = str(error).partition("\n")[0]
        report.longrepr = shown
    return report


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Serial runs and the controller of xdist: keep what a case told."""
    state = current.get("state")
    if state is None:
        return
    carried = getattr(report, "attnaudit", None)
    crashed = report.when not in ("setup", "call", "teardown")
    if carried is None and not crashed:
        return
    state.ledger.add(
        report.nodeid,
        when=report.when or "",
        outcome=report.outcome,
        reason=(carried and carried["reason"]) or reason_of(report),
        record=carried and carried["record"],
    )


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> Generator[None, None, None]:
    """Everything is in: decide the exit status, then write the run and its report; also where another plugin fails, or
    a signal comes, at this late hour."""
    try:
        yield
    except BaseException as error:
        interrupted = isinstance(error, KeyboardInterrupt)
        if interrupted or session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.INTERRUPTED if interrupted else pytest.ExitCode.TESTS_FAILED
        state = session.config.stash.get(STATE, None)
        _finish(session)
        if state is not None and state.finished is not None:
            where = shown_path(state.folder.path / "report.html", session.config)
            session.config.get_terminal_writer().line(f"\nattention audit: what was judged is in {where}")
        if interrupted:
            raise pytest.exit.Exception("interrupted", pytest.ExitCode.INTERRUPTED) from None
        raise
    _finish(session)


def _finish(session: pytest.Session) -> None:
    config = session.config
    if is_worker(config) or config.option.collectonly:
        return
    state = config.stash.get(STATE, None)
    asked = bool(option_of(config, "--model", "audit_model"))
    if state is None or (state.problems and not has_workers(config)):
        return
    planned = state.planned or state.folder.planned()
    if state.problems:
        session.exitstatus = pytest.ExitCode.USAGE_ERROR
        return
    if session.exitstatus == pytest.ExitCode.OK:
        if not planned and asked:
            state.complaint = "a model was given, but no case of the audit was collected: nothing was audited."
        elif planned and not state.ledger.ran:
            state.complaint = "every case of the audit was skipped: nothing was audited."
        if state.complaint:
            session.exitstatus = pytest.ExitCode.NO_TESTS_COLLECTED
        elif unenforced := state.ledger.unenforced(planned):
            state.complaint = f"no verdict was enforced: call check.enforce() in {', '.join(unenforced)}."
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
    if not planned:
        return
    from attnaudit.run.finish_run import finish

    ignore_terminations(config)
    try:
        state.finished = finish(
            state.folder,
            state.ledger,
            state.options,
            planned,
            version=__version__,
            created=state.created,
            command=["pytest", *map(str, config.invocation_params.args)],
            exit_status=int(session.exitstatus),
        )
    except AuditError as error:
        state.complaint = str(error)
        if session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, exitstatus: int, config: pytest.Config
) -> Generator[None, None, None]:
    """Last of all summaries: the verdicts, and where the report lies."""
    yield
    state = config.stash.get(STATE, None)
    if state is None or config.option.collectonly:
        return
    if has_workers(config):
        for problem in dict.fromkeys(state.problems.values()):
            terminalreporter.write_line(f"ERROR: {problem}", red=True)
    if state.finished is not None:
        from attnaudit.report.questions import notes as policy_notes
        from attnaudit.report.questions import remedies_in_short
        from attnaudit.report.wording import measuring_notes
        from attnaudit.run.verdict_table import verdict_table

        writer = config.get_terminal_writer()
        run = state.finished
        terminalreporter.write_sep("=", "attention audit")
        terminalreporter.write_line(
            verdict_table(run.checks, run.missing, width=writer.fullwidth, color=writer.hasmarkup)
        )
        for note in (*policy_notes(run), *remedies_in_short(run), *measuring_notes(run)):
            terminalreporter.write_line(note)
        terminalreporter.write_line(f"report: {shown_path(state.folder.path / 'report.html', config)}")
    if state.complaint:
        terminalreporter.write_line(f"attnaudit: {state.complaint}", red=True)


def pytest_unconfigure(config: pytest.Config) -> None:
    if current.get("state") is config.stash.get(STATE, None):
        current.pop("state", None)
