"""Errors of other plugins and signals at the end of a run lose no verdict."""

from __future__ import annotations

import pytest

from tests.conftest import PROJECT_CONFTEST, newest_audit, newest_run
from tests.forking_interpreter import run_pytest
from tests.slow_cases import slow_except

CHECKS = {"attention_peak", "token_count", "uniform_fragility.tvd"}
#: The second gate stays open.
OPEN = """
from attnaudit import audit
from attnaudit.registry import checks as known

@audit(known.get("attention_peak")(at_most=0.99), known.get("token_count")(at_least=1))
def test_faithful(check):
    if "peak" in check.check.id: check.enforce()
"""
TERMINATE = "import os, signal\n\n\ndef terminate():\n    os.kill(os.getpid(), signal.SIGTERM)\n"


def judged_checks(project: pytest.Pytester) -> set[str]:
    """The checks with a verdict in the newest run, which has a report."""
    assert (newest_run(project.path) / "report.html").is_file()
    return {entry["check"] for entry in newest_audit(project.path)["checks"]}


@pytest.mark.parametrize(
    "workers", [pytest.param([], id="alone"), pytest.param(["-n2"], id="workers", marks=pytest.mark.slow)]
)
def test_an_error_of_another_plugin_at_the_end_loses_no_verdict(project: pytest.Pytester, workers: list[str]) -> None:
    project.makeconftest(
        PROJECT_CONFTEST
        + """
def pytest_sessionfinish(session):
    if not hasattr(session.config, "workerinput"):
        raise FileNotFoundError("/proc/x")
"""
    )
    result = run_pytest(project, "--model", "tiny", *workers)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert judged_checks(project) == CHECKS
    assert newest_audit(project.path)["exit_status"] == 1
    result.stdout.fnmatch_lines(["attention audit: the report shows the verdicts reached so far: reports*report.html"])
    result.stderr.fnmatch_lines(["*FileNotFoundError: /proc/x*"])


def test_an_error_of_another_plugin_makes_the_run_fail(project: pytest.Pytester) -> None:
    project.makeconftest(PROJECT_CONFTEST + "\ndef pytest_sessionfinish():\n    raise OSError('late')\n")
    result = run_pytest(project, "--model", "tiny", "-k", "attention_peak")
    assert result.ret == newest_audit(project.path)["exit_status"] == 1


def test_an_error_about_a_failure_that_the_run_adds_loses_no_verdict(project: pytest.Pytester) -> None:
    project.makeconftest(
        PROJECT_CONFTEST
        + """
def pytest_runtest_logreport(report):
    if report.nodeid.startswith("attnaudit::"):
        raise LookupError("unknown test")
"""
    )
    project.makepyfile(test_audit=OPEN)
    result = run_pytest(project, "--model", "tiny")
    audit = newest_audit(project.path)
    assert (result.ret, audit["status"], audit["exit_status"]) == (1, "failed", 1)
    assert {gate["check"]: gate["state"] for gate in audit["gates"]} == {
        "attention_peak": "passed",
        "token_count": "open",
    }
    assert judged_checks(project) == {"attention_peak"}
    result.stdout.fnmatch_lines(["gates: 1 passed, 1 without a verdict"])
    result.stderr.fnmatch_lines(["*LookupError: unknown test*"])


@pytest.mark.parametrize(
    "hook",
    slow_except(
        [
            "pytest_runtest_logreport(report):\n    report.longrepr = report.longrepr and str(report.longrepr)",
            "pytest_exception_interact(report):\n    report.longrepr = 'see the wiki'",
            "pytest_exception_interact(report):\n    report.longrepr = None",
        ],
        lambda hook: "wiki" in hook,
    ),
    ids=["text", "other text", "nothing"],
)
def test_a_failure_that_another_plugin_replaces_is_shown_as_it_is(project: pytest.Pytester, hook: str) -> None:
    project.makeconftest(f"{PROJECT_CONFTEST}\ndef {hook}\n")
    project.makepyfile(
        test_audit=OPEN.replace('if "peak" in check.check.id: ', "").replace("at_least=1", "at_least=50")
    )
    result = run_pytest(project, "--model", "tiny", "-q")
    assert (result.ret, newest_audit(project.path)["status"]) == (1, "failed")
    result.stdout.fnmatch_lines(["gates: 1 passed, 1 failed"])
    assert "AttributeError" not in result.stderr.str() + result.stdout.str()
    if "wiki" in hook:
        result.stdout.fnmatch_lines(["see the wiki"])


@pytest.mark.parametrize("workers", [[], pytest.param(["-n2"], marks=pytest.mark.slow)], ids=["alone", "workers"])
def test_a_termination_at_the_end_of_the_run_is_an_interruption(project: pytest.Pytester, workers: list[str]) -> None:
    project.makeconftest(
        PROJECT_CONFTEST
        + TERMINATE
        + """

def pytest_sessionfinish(session):
    if not hasattr(session.config, "workerinput"):
        terminate()
"""
    )
    result = run_pytest(project, "--model", "tiny", *workers)
    assert result.ret == newest_audit(project.path)["exit_status"] == pytest.ExitCode.INTERRUPTED
    assert judged_checks(project) == CHECKS


def test_a_second_termination_waits_for_the_report(project: pytest.Pytester) -> None:
    project.makeconftest(
        PROJECT_CONFTEST
        + TERMINATE
        + """

import attnaudit.run.finish_run as module

original = module.finish_run

def finish_run(*arguments, **named):
    terminate()
    run = original(*arguments, **named)
    terminate()
    return run

module.finish_run = finish_run

def pytest_runtest_call(item):
    if "token_count" in item.nodeid:
        terminate()
"""
    )
    result = run_pytest(project, "--model", "tiny")
    assert result.ret == newest_audit(project.path)["exit_status"] == pytest.ExitCode.INTERRUPTED
    assert judged_checks(project) == {"attention_peak"}
    result.stdout.fnmatch_lines(["*attention audit*", "no verdict  token_count", "pass        Peak: *"])


def test_an_interruption_while_the_report_is_written_is_one_line(project: pytest.Pytester) -> None:
    project.makeconftest(
        PROJECT_CONFTEST
        + """
import attnaudit.run.finish_run as module

def finish_run(*arguments, **named):
    raise KeyboardInterrupt

module.finish_run = finish_run
"""
    )
    result = run_pytest(project, "--model", "tiny", "--junitxml=junit.xml")
    assert (result.ret, newest_audit(project.path)["status"]) == (pytest.ExitCode.INTERRUPTED, "running")
    assert "Traceback" not in result.stderr.str()
    result.stderr.fnmatch_lines(["Exit: the audit was interrupted while its report was written. Run it again."])
    assert not (project.path / "junit.xml").exists()


def test_cases_that_another_plugin_deselects_last_are_not_measured(project: pytest.Pytester) -> None:
    project.makeconftest(
        PROJECT_CONFTEST
        + """
class Splitting:
    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items):
        items[:] = [item for item in items if "uniform" not in item.nodeid]


def pytest_collection(session):
    session.config.pluginmanager.register(Splitting())
""".replace("class Splitting", "import pytest\n\n\nclass Splitting")
    )
    run_pytest(project, "--model", "tiny")
    audit = newest_audit(project.path)
    assert {entry["check"] for entry in audit["checks"]} == {"attention_peak", "token_count"}
    assert not any("uniform" in need for entry in audit["measured"] for need in entry["needs"])


@pytest.mark.parametrize("workers", [[], pytest.param(["-n2"], marks=pytest.mark.slow)], ids=["alone", "workers"])
def test_paths_in_the_configuration_file_are_relative_to_it_wherever_the_rootdir_is(
    project: pytest.Pytester, workers: list[str]
) -> None:
    (project.path / "ci").mkdir()
    (project.path / "ci" / "pytest.ini").write_text(
        "[pytest]\naudit_reports = kept\naudit_model = tiny\naudit_data = rows\n"
    )
    arguments = ("-c", "ci/pytest.ini", "--rootdir=.", "--confcutdir=.", *workers)
    run_pytest(project, *arguments).assert_outcomes(passed=2, failed=1)
    assert (project.path / "ci" / "kept" / "latest.txt").is_file()
    assert not (project.path / "kept").exists()
