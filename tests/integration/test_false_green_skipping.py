"""A gate that is skipped, expected to fail, or whose verdict a test swallows, is not green."""

from __future__ import annotations

import pytest

from tests.audited_project import GREEN, LENGTH, PEAK, RED, AuditedProject

# Each test runs pytest in a process of its own: minutes together.
pytestmark = pytest.mark.slow

LAST_LINES = "\n@audit(PEAK, LENGTH)\ndef test_faithful(check):\n    check.enforce()\n"


def with_body(body: str, source: str = GREEN, *, decorator: str = "") -> str:
    """Return the audit with another body of its test, and with a decorator above it."""
    head = source.replace(LAST_LINES, "")
    assert head != source
    return f"import pytest\n{head}\n{decorator}\n@audit(PEAK, LENGTH)\ndef test_faithful(check):\n    {body}\n"


def test_the_project_is_green_until_something_is_spoiled(audited: AuditedProject) -> None:
    run = audited.pytest()
    assert run.status == 0, run.text
    assert (run.audit["status"], run.audit["exit_status"]) == ("passed", 0)
    assert run.junit_failures() == []
    assert "gates: 2 passed" in run.process.out
    assert "Both gates passed" in run.page("summary.md")
    assert audited.verify().status == 0


def test_a_verdict_that_blocks_is_red(audited: AuditedProject) -> None:
    audited.write("test_audit.py", RED)
    audited.assert_red(audited.pytest(), {LENGTH: "failed: fail: mean token_count"})


@pytest.mark.parametrize(
    ("decorator", "reason"),
    [
        ('@pytest.mark.skip(reason="on holiday")', "skipped: on holiday"),
        ('@pytest.mark.skipif(True, reason="on holiday")', "skipped: on holiday"),
        ('@pytest.mark.xfail(run=False, reason="some day")', "expected to fail: [NOTRUN] some day"),
    ],
)
def test_marks_that_skip_a_gate_leave_it_open(audited: AuditedProject, decorator: str, reason: str) -> None:
    audited.write("test_audit.py", with_body("check.enforce()", decorator=decorator))
    run = audited.pytest()
    audited.assert_red(run, {PEAK: f"open: {reason}", LENGTH: f"open: {reason}"})


@pytest.mark.parametrize("strict", [False, True])
def test_a_failure_that_is_expected_is_red(audited: AuditedProject, strict: bool) -> None:
    decorator = f'@pytest.mark.xfail(strict={strict}, reason="some day")'
    audited.write("test_audit.py", with_body("check.enforce()", RED, decorator=decorator))
    run = audited.pytest()
    expected = {LENGTH: "failed: fail: mean token_count"}
    assert "xfailed" in run.process.out
    if strict:  # a gate that passes against the expectation is a failed test, but its verdict stays a pass
        assert "XPASS(strict)" in run.process.out
    audited.assert_red(run, expected)


def test_a_fixture_that_skips_leaves_the_gate_open(audited: AuditedProject) -> None:
    fixture = "@pytest.fixture(autouse=True)\ndef closed(check):\n    if check.check is LENGTH:\n"
    body = "check.enforce()\n\n" + f'{fixture}        pytest.skip("closed today")'
    audited.write("test_audit.py", with_body(body))
    audited.assert_red(audited.pytest(), {LENGTH: "open: skipped: closed today"})


@pytest.mark.parametrize(
    ("body", "state"),
    [
        ("try:\n        check.enforce()\n    except AssertionError:\n        pytest.skip('not today')", "failed"),
        ("try:\n        check.enforce()\n    except AssertionError:\n        pytest.xfail('some day')", "failed"),
        ("try:\n        check.enforce()\n    except AssertionError:\n        pass", "failed"),
        ("with pytest.raises(AssertionError):\n        check.judge()\n        check.enforce()", "failed"),
        ("assert check.judge()", "failed"),
        ("check.record = None\n    check.judge()\n    check.record = None", "failed"),
        ("pass", "open"),
        ("check.enforce", "open"),
    ],
    ids=["skip", "xfail", "swallowed", "raises", "judged", "record", "nothing", "not-called"],
)
def test_a_verdict_that_no_test_enforces_is_red(audited: AuditedProject, body: str, state: str) -> None:
    enforced = f"if check.check is PEAK:\n        return check.enforce()\n    {body}"
    audited.write("test_audit.py", with_body(enforced, RED))
    run = audited.pytest()
    audited.assert_red(run, {LENGTH: f"{state}: "})


def test_a_set_up_that_fails_leaves_the_gate_open(audited: AuditedProject) -> None:
    audited.extend(
        """
import pytest

@pytest.fixture(autouse=True)
def database():
    raise OSError("no database")
"""
    )
    reason = "open: error in setup: OSError: no database"
    audited.assert_red(audited.pytest(), {PEAK: reason, LENGTH: reason}, in_junit=False)


@pytest.mark.parametrize("when", ["setup", "call", "teardown"])
def test_a_plugin_that_calls_failures_passed_is_red(audited: AuditedProject, when: str) -> None:
    audited.write("test_audit.py", RED)
    audited.extend(
        f"""
import pytest

@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if report.when == "{when}" or report.failed:
        report.outcome, report.longrepr = "passed", None
    return report
"""
    )
    audited.assert_red(audited.pytest(), {LENGTH: "failed: fail: mean token_count"})


def test_a_policy_that_excepts_every_gate_decides_nothing(audited: AuditedProject) -> None:
    audited.write(
        "test_audit.py",
        f"import pytest\n{GREEN}".replace(
            "@audit(PEAK, LENGTH)",
            "@pytest.mark.skip(reason='known')\n"
            "@audit(PEAK, LENGTH, exceptions={'attention_peak': 'known', 'token_count': 'known'})",
        ),
    )
    run = audited.pytest()
    assert run.status == 5, run.text
    assert (run.audit["status"], run.audit["exit_status"]) == ("failed", 5)
    assert {state for state, _ in run.gates().values()} == {"excepted"}
    (failure,) = run.junit_failures()
    for text in (failure, run.text, run.page("summary.md"), run.page("report.html")):
        assert "policy excepts every gate, so nothing was decided" in text
    audited.assert_not_verified("The policy excepts every gate")
