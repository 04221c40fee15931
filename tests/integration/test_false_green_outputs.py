"""Options that change what pytest prints hide no gate that did not pass."""

from __future__ import annotations

import pytest

from tests.audited_project import LENGTH, RED, AuditedProject

# Each test runs pytest in a process of its own: minutes together.
pytestmark = pytest.mark.slow

QUIET = [["-q"], ["-qq"], ["--no-header"], ["--no-summary"], ["--tb=no"], ["-p", "no:terminal"]]


@pytest.mark.parametrize("options", QUIET, ids=" ".join)
def test_a_quiet_run_without_cases_is_red(audited: AuditedProject, options: list[str]) -> None:
    audited.write("test_audit.py", "def test_other():\n    pass\n")
    run = audited.pytest(*options)
    assert run.status == 5, run.text
    assert (run.audit["status"], run.audit["exit_status"]) == ("failed", 5)
    assert "no case of the audit was collected" in run.text
    assert "no case of the audit was collected" in run.page("summary.md")
    assert "no case of the audit was collected" in run.page("report.html")
    (failure,) = run.junit_failures()
    assert "no case of the audit was collected" in failure
    audited.assert_not_verified("no case of the audit was collected")


@pytest.mark.parametrize("options", [["-q"], ["--no-header", "--no-summary"]], ids=" ".join)
def test_a_quiet_run_with_a_gate_that_fails_is_red(audited: AuditedProject, options: list[str]) -> None:
    audited.write("test_audit.py", RED)
    audited.assert_red(audited.pytest(*options), {LENGTH: "failed: fail: mean token_count"})


def test_a_run_without_a_terminal_is_red(audited: AuditedProject) -> None:
    audited.write("test_audit.py", RED)
    run = audited.pytest("-p", "no:terminal")
    assert (run.status, run.audit["status"], run.audit["exit_status"]) == (1, "failed", 1)
    assert "attnaudit: the audit failed" in run.process.err
    (failure,) = run.junit_failures()
    assert LENGTH in failure
    audited.assert_not_verified(LENGTH)
