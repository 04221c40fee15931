"""Runs in which a case ends without a verdict: the run is red, and its files give the reason."""

from __future__ import annotations

import sys

import pytest

from tests.conftest import PROJECT_CONFTEST, PROJECT_TEST, newest_audit, newest_run
from tests.forking_interpreter import run_pytest

#: The run with workers costs many times as much, because each worker imports torch.
WITHOUT_AND_WITH_WORKERS = [
    pytest.param([], id="alone"),
    pytest.param(["-n2"], id="workers", marks=pytest.mark.slow),
]


@pytest.mark.slow
def test_the_case_that_crashed_a_worker_is_missing_and_the_others_have_verdicts(project: pytest.Pytester) -> None:
    project.makeconftest(
        PROJECT_CONFTEST
        + """
import os

def pytest_runtest_call(item):
    if "token_count" in item.nodeid:
        os._exit(1)
"""
    )
    result = run_pytest(project, "--model", "tiny", "-n2")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    audit = newest_audit(project.path)
    assert {entry["check"] for entry in audit["checks"]} == {"attention_peak", "uniform_fragility.tvd"}
    (missing,) = audit["missing"]
    assert (missing["model"], missing["data"], missing["check"]) == ("tiny", "rows", "token_count")
    assert "crashed" in missing["reason"]
    result.stdout.fnmatch_lines(["no verdict  token_count", "No verdict on 1 check: *crashed*"])


def test_x_stops_and_lists_the_cases_that_did_not_run(project: pytest.Pytester) -> None:
    result = project.runpytest("--model", "tiny", "-x")
    result.assert_outcomes(passed=1, failed=1)
    audit = newest_audit(project.path)
    assert [(entry["check"], entry["reason"]) for entry in audit["missing"]] == [("uniform_fragility.tvd", "not run")]


@pytest.mark.parametrize("mode", WITHOUT_AND_WITH_WORKERS)
def test_a_run_without_cases_is_not_changed(pytester: pytest.Pytester, mode: list[str]) -> None:
    pytester.makepyfile("def test_other(): pass")
    result = run_pytest(pytester, *mode)
    assert result.ret == pytest.ExitCode.OK
    result.stdout.no_fnmatch_line("*attnaudit 0*")
    result.stdout.no_fnmatch_line("*audit*report*")
    assert not (pytester.path / "reports").exists()


def test_a_model_without_any_case_does_not_exit_with_0(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_other(): pass")
    result = pytester.runpytest("--model", "demo")
    assert result.ret == pytest.ExitCode.NO_TESTS_COLLECTED
    result.stdout.fnmatch_lines(["attnaudit: a model was given, but no case*"])


@pytest.mark.parametrize("mode", WITHOUT_AND_WITH_WORKERS)
def test_skipping_every_case_does_not_exit_with_0(project: pytest.Pytester, mode: list[str]) -> None:
    project.makepyfile(
        test_audit="""
        import pytest
        from attnaudit import audit, checks

        @pytest.mark.skip(reason="on holiday")
        @audit(checks.UniformFragility(at_least=0.1))
        def test_faithful(check):
            check.enforce()
        """
    )
    result = run_pytest(project, "--model", "tiny", *mode)
    result.assert_outcomes(skipped=1, failed=1)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["*This gate did not pass: skipped: on holiday*"])
    assert [entry["reason"] for entry in newest_audit(project.path)["missing"]] == ["skipped: on holiday"]


@pytest.mark.parametrize("body", ["pass", "check.enforce", "check.judge()"])
def test_a_case_whose_verdict_is_not_enforced_fails_the_run(project: pytest.Pytester, body: str) -> None:
    project.makepyfile(
        test_audit=f"""
        from attnaudit import audit, checks

        @audit(checks.UniformFragility(at_least=0.99))
        def test_faithful(check):
            {body}
        """
    )
    result = project.runpytest("--model", "tiny")
    result.assert_outcomes(passed=1, failed=1)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["*This gate did not pass: *call check.enforce() in the test*"])
    audit = newest_audit(project.path)
    assert audit["exit_status"] == 1
    assert audit["gates"][0]["state"] == ("failed" if body == "check.judge()" else "open")
    assert len(audit["missing"]) == (body != "check.judge()")


def test_a_terminated_run_keeps_the_verdicts_reached_so_far(project: pytest.Pytester) -> None:
    project.makepyfile(
        test_audit=PROJECT_TEST.replace("check.enforce()", "check.enforce()\n    os.kill(os.getpid(), signal.SIGTERM)"),
    )
    source = project.path / "test_audit.py"
    source.write_text("import os, signal\n" + source.read_text(encoding="utf-8"), encoding="utf-8")
    result = run_pytest(project, "--model", "tiny")
    assert result.ret == pytest.ExitCode.INTERRUPTED
    audit = newest_audit(project.path)
    reasons = {case["check"]: case["reason"] for case in audit["missing"]}
    assert set(reasons) == {"attention_peak", "token_count", "uniform_fragility.tvd"} - {
        entry["check"] for entry in audit["checks"]
    }
    assert len(audit["measured"]) == 1


def test_the_full_reason_for_refusing_a_model_is_in_every_output(project: pytest.Pytester) -> None:
    fixed = "encoder=lambda embeddings, mask: embeddings"
    project.makeconftest(PROJECT_CONFTEST.replace(fixed, f"{fixed} * torch.rand(1)"))
    result = project.runpytest("--model", "tiny", "--tb=no", "--junitxml=junit.xml")
    (reason,) = [line for line in result.outlines if "of two passes over the same input differ by" in line]
    assert reason.startswith("No verdict on 3 checks: The model breaks the adapter contract")
    for case in newest_audit(project.path)["missing"]:
        assert "of two passes over the same input differ" in case["reason"]
    folder = newest_run(project.path)
    for name in ("report.html", "summary.md"):
        assert "of two passes over the same input differ" in (folder / name).read_text(encoding="utf-8")


@pytest.mark.parametrize("mode", WITHOUT_AND_WITH_WORKERS)
def test_a_need_that_the_model_cannot_serve_stops_only_the_cases_with_it(
    project: pytest.Pytester, mode: list[str]
) -> None:
    project.makepyfile(
        test_audit="""
        import pytest
        from attnaudit import audit, checks

        @audit(
            checks.UniformFragility(severity="report"),
            checks.UniformFragility(severity="report", reading="cls@layer=2"),
            informational=True,
        )
        def test_faithful(check):
            check.enforce()

        @pytest.mark.attnaudit(needs=["uniform", "uniform@rollout"])
        def test_needs(measurements):
            pass
        """
    )
    result = run_pytest(project, "--model", "tiny", *mode)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.assert_outcomes(passed=1, failed=1, errors=1)
    result.stdout.no_fnmatch_line("*Traceback*")
    audit = newest_audit(project.path)
    assert [entry["check"] for entry in audit["checks"]] == ["uniform_fragility.tvd"]
    (missing,) = audit["missing"]
    assert "a single row of weights per text" in missing["reason"]


def test_an_invalid_row_is_reported_once_without_a_traceback(project: pytest.Pytester) -> None:
    rows = ["text,label", *["good film,positive", "bad plot,negative"] * 20, "good film,postive"]
    (project.path / "typo.csv").write_text("\n".join(rows))
    result = project.runpytest("--model", "tiny", "--data", "typo.csv")
    result.assert_outcomes(failed=1, skipped=2)
    assert result.ret == 7
    result.stdout.fnmatch_lines(["*typo.csv:42: column 'label': 'postive' is not one of the model's classes*positive*"])
    assert result.stdout.str().count("'postive'") == 1
    result.stdout.fnmatch_lines(["No verdict on 3 checks, for the reason given above."])
    result.stdout.no_fnmatch_line("*session.py*")
    audit = newest_audit(project.path)
    assert len(audit["missing"]) == 3
    assert all(entry["reason"].startswith("typo.csv:42: column 'label'") for entry in audit["missing"])
    summary = (newest_run(project.path) / "summary.md").read_text(encoding="utf-8")
    assert summary.count("'postive'") == 1
    assert "tiny, typo: the reason given above" in summary
    assert str(project.path) not in summary
    for command in (("conformance", "tiny"), ("plan", "--model", "tiny")):
        done = project.run(sys.executable, "-m", "attnaudit", *command, "--data", "typo.csv")
        assert done.ret == 2
        assert done.errlines[-1] == f"attnaudit: {audit['missing'][0]['reason']}"
