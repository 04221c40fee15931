"""What comes late in a run, from other plugins or as a signal, takes no verdict with it."""

from __future__ import annotations

import pytest

from tests.conftest import PROJECT_CONFTEST, newest_audit, newest_run

CHECKS = {"attention_peak", "token_count", "uniform_fragility.tvd"}
TERMINATE = "import os, signal\n\n\ndef terminate():\n    os.kill(os.getpid(), signal.SIGTERM)\n"


def judged(project: pytest.Pytester) -> set[str]:
    assert (newest_run(project.path) / "report.html").is_file()
    return {one["check"] for one in newest_audit(project.path)["checks"]}


@pytest.mark.parametrize("workers", [[], ["-n2"]], ids=["alone", "workers"])
def test_an_error_of_another_plugin_at_the_end_takes_no_verdict_with_it(
    project: pytest.Pytester, workers: list[str]
) -> None:
    project.makeconftest(
        PROJECT_CONFTEST
        + """
def pytest_sessionfinish(session):
    if not hasattr(session.config, "workerinput"):
        raise FileNotFoundError("/proc/x")
"""
    )
    result = project.runpytest_subprocess("--model", "tiny", *workers)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert judged(project) == CHECKS
    assert newest_audit(project.path)["exit_status"] == 1
    result.stdout.fnmatch_lines(["attention audit: what was judged is in reports*report.html"])
    result.stderr.fnmatch_lines(["*FileNotFoundError: /proc/x*"])


def test_an_error_of_another_plugin_is_no_green_run(project: pytest.Pytester) -> None:
    project.makeconftest(PROJECT_CONFTEST + "\ndef pytest_sessionfinish():\n    raise OSError('late')\n")
    result = project.runpytest_subprocess("--model", "tiny", "-k", "attention_peak")
    assert result.ret == newest_audit(project.path)["exit_status"] == 1


@pytest.mark.parametrize("workers", [[], ["-n2"]], ids=["alone", "workers"])
def test_a_termination_while_the_run_ends_is_an_interruption(project: pytest.Pytester, workers: list[str]) -> None:
    project.makeconftest(
        PROJECT_CONFTEST
        + TERMINATE
        + """

def pytest_sessionfinish(session):
    if not hasattr(session.config, "workerinput"):
        terminate()
"""
    )
    result = project.runpytest_subprocess("--model", "tiny", *workers)
    assert result.ret == newest_audit(project.path)["exit_status"] == pytest.ExitCode.INTERRUPTED
    assert judged(project) == CHECKS


def test_a_second_termination_waits_for_the_report(project: pytest.Pytester) -> None:
    project.makeconftest(
        PROJECT_CONFTEST
        + TERMINATE
        + """

import attnaudit.run.finish_run as finishing

whole = finishing.finish

def finish(*arguments, **named):
    terminate()
    found = whole(*arguments, **named)
    terminate()
    return found

finishing.finish = finish

def pytest_runtest_call(item):
    if "token_count" in item.nodeid:
        terminate()
"""
    )
    result = project.runpytest_subprocess("--model", "tiny")
    assert result.ret == newest_audit(project.path)["exit_status"] == pytest.ExitCode.INTERRUPTED
    assert judged(project) == {"attention_peak"}
    result.stdout.fnmatch_lines(["*attention audit*", "pass*attention_peak*", "missing*token_count*"])


def test_cases_that_a_plugin_takes_away_late_are_not_measured(project: pytest.Pytester) -> None:
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
    project.runpytest_subprocess("--model", "tiny")
    audit = newest_audit(project.path)
    assert {one["check"] for one in audit["checks"]} == {"attention_peak", "token_count"}
    assert not any("uniform" in need for one in audit["measured"] for need in one["needs"])


@pytest.mark.parametrize("workers", [[], ["-n2"]], ids=["alone", "workers"])
def test_paths_of_the_configuration_file_start_from_it_wherever_the_root_is(
    project: pytest.Pytester, workers: list[str]
) -> None:
    (project.path / "ci").mkdir()
    (project.path / "ci" / "pytest.ini").write_text(
        "[pytest]\naudit_reports = kept\naudit_model = tiny\naudit_data = rows\n"
    )
    asked = ("-c", "ci/pytest.ini", "--rootdir=.", "--confcutdir=.", *workers)
    project.runpytest_subprocess(*asked).assert_outcomes(passed=2, failed=1)
    assert (project.path / "ci" / "kept" / "latest.txt").is_file()
    assert not (project.path / "kept").exists()
