"""A run that something ends early is not green, whatever exit status was asked for."""

from __future__ import annotations

import json
import signal

import pytest

from tests.audited_project import GREEN, LENGTH, PEAK, AuditedProject, Run

# Each test runs pytest in a process of its own: minutes together.
pytestmark = pytest.mark.slow

#: A hook that ends the session, or the process, in the case of the second gate.
IN_SECOND = "    if 'token_count' in item.nodeid:\n        {action}\n"
EXIT = "pytest.exit('done', returncode=0)"
NOT_RUN = "open: its test did not run"


def assert_unfinished(audited: AuditedProject, run: Run, *gates: str) -> None:
    """Assert that a run whose process ended at once shows that it did not end, and which gates it had to judge."""
    assert (run.audit["status"], run.audit["exit_status"]) == ("running", None)
    assert {gate["check"] for gate in run.audit["gates"]} == set(gates)
    assert {gate["state"] for gate in run.audit["gates"]} <= {"open"}
    assert not (audited.root / "junit.xml").exists()
    refused = audited.verify()
    assert refused.status == 1
    assert "status is 'running'" in refused.out


@pytest.mark.parametrize(
    ("where", "lost"),
    [
        ("pytest_runtest_setup(item)", {LENGTH: NOT_RUN}),
        ("pytest_runtest_call(item)", {LENGTH: NOT_RUN}),
        ("pytest_runtest_protocol(item)", {LENGTH: NOT_RUN}),
        ("pytest_runtest_teardown(item)", {}),
    ],
)
def test_an_exit_with_0_while_tests_run_is_red(audited: AuditedProject, where: str, lost: dict[str, str]) -> None:
    audited.extend(f"import pytest\n\ndef {where}:\n" + IN_SECOND.format(action=EXIT))
    run = audited.pytest()
    if lost:
        audited.assert_red(run, lost)
    else:  # the verdict was reported already, so every gate has passed in this run
        assert run.gates().keys() == {PEAK, LENGTH}
        assert run.status == run.audit["exit_status"]
        assert (run.audit["status"] == "passed") == (run.status == 0)
        assert audited.verify().status == int(run.status != 0)


def test_an_exit_with_0_in_a_test_is_red(audited: AuditedProject) -> None:
    audited.write("test_audit.py", GREEN.replace("check.enforce()", EXIT) + "\nimport pytest\n")
    audited.assert_red(audited.pytest(), {PEAK: NOT_RUN, LENGTH: NOT_RUN})


def test_should_stop_is_red(audited: AuditedProject) -> None:
    audited.extend("def pytest_runtest_logfinish(nodeid):\n    stopped[0].shouldstop = 'enough'")
    audited.extend("stopped = []\n\ndef pytest_collection_finish(session):\n    stopped.append(session)")
    run = audited.pytest()
    audited.assert_red(run, {LENGTH: NOT_RUN}, status=2)


@pytest.mark.parametrize(
    "where", ["pytest_collection(session)", "pytest_collection_modifyitems(items)", "pytest_generate_tests(metafunc)"]
)
def test_an_exit_with_0_while_pytest_collects_is_red(audited: AuditedProject, where: str) -> None:
    audited.extend(f"import pytest\n\ndef {where}:\n    {EXIT}\n")
    run = audited.pytest()
    assert run.status != 0
    assert run.audit["status"] == "failed"
    assert run.audit["exit_status"] == run.status
    assert run.junit_failures()
    refused = audited.assert_not_verified("'failed'")
    assert "edited" not in refused.out


def test_an_error_while_pytest_collects_another_file_is_red(audited: AuditedProject) -> None:
    audited.write("test_other.py", "import no_such_module\n")
    run = audited.pytest()
    assert run.status == 2
    assert run.audit["status"] == "failed"
    assert set(run.gates()) == {PEAK, LENGTH}
    assert any("no_such_module" in failure for failure in run.junit_failures())
    refused = audited.assert_not_verified(PEAK, LENGTH)
    assert "edited" not in refused.out


@pytest.mark.parametrize("where", ["pytest_configure(config)", "pytest_sessionstart(session)"])
def test_an_exit_with_0_before_pytest_collects_is_red(audited: AuditedProject, where: str) -> None:
    assert audited.pytest().status == 0
    audited.extend(f"import pytest\n\ndef {where}:\n    {EXIT}\n")
    run = audited.pytest()
    assert run.status != 0, run.text
    assert "nothing was audited" in run.text


@pytest.mark.parametrize(
    "decorator", ["@pytest.hookimpl(tryfirst=True)", "@pytest.hookimpl(trylast=True)", "@pytest.hookimpl(wrapper=True)"]
)
def test_an_exit_with_0_at_the_end_of_the_session_hides_no_failure(audited: AuditedProject, decorator: str) -> None:
    audited.write("test_audit.py", GREEN.replace("at_least=1)", "at_least=50)"))
    body = f"    yield\n    {EXIT}" if "wrapper" in decorator else f"    {EXIT}"
    audited.extend(f"import pytest\n\n{decorator}\ndef pytest_sessionfinish(session):\n{body}\n")
    run = audited.pytest()
    assert run.status == 1, run.text
    assert (run.audit["status"], run.audit["exit_status"]) == ("failed", 1)
    assert run.gates()[LENGTH][0] == "failed"
    audited.assert_not_verified(LENGTH)


@pytest.mark.parametrize(
    "code",
    [
        "def pytest_sessionfinish(session):\n    session.exitstatus = 0",
        "import pytest\n\n@pytest.hookimpl(trylast=True)\n"
        "def pytest_sessionfinish(session):\n    session.exitstatus = 0",
        "def pytest_terminal_summary(terminalreporter):\n    terminalreporter._session.exitstatus = 0",
        f"import pytest\n\ndef pytest_unconfigure(config):\n    {EXIT}",
        "import pytest\n\n@pytest.hookimpl(wrapper=True)\ndef pytest_cmdline_main(config):\n    yield\n    return 0",
    ],
    ids=["sessionfinish", "last", "summary", "unconfigure", "main"],
)
def test_another_exit_status_at_the_end_hides_no_open_gate(audited: AuditedProject, code: str) -> None:
    audited.write("test_audit.py", GREEN.replace("check.enforce()", "pass"))
    audited.extend(code)
    run = audited.pytest()
    reason = "open: its test ended without a verdict: call check.enforce() in the test"
    audited.assert_red(run, {PEAK: reason, LENGTH: reason})


ENDINGS = ["os._exit(0)", "os.kill(os.getpid(), signal.SIGKILL)"]


@pytest.mark.parametrize("action", ENDINGS, ids=["exit", "kill"])
def test_a_process_that_ends_in_a_test_leaves_a_run_that_did_not_end(audited: AuditedProject, action: str) -> None:
    assert audited.pytest().status == 0
    audited.write(
        "test_audit.py",
        "import os, signal\n" + GREEN.replace("check.enforce()", f"check.enforce()\n    {action}"),
    )
    run = audited.pytest()
    assert run.status == (0 if "_exit" in action else -signal.SIGKILL)
    assert_unfinished(audited, run, PEAK, LENGTH)


@pytest.mark.parametrize(
    ("where", "gates"),
    [
        ("pytest_collection(session)", ()),
        ("pytest_collection_finish(session)", ()),
        ("pytest_runtest_logreport(report)", (PEAK, LENGTH)),
        ("pytest_runtest_teardown(item)", (PEAK, LENGTH)),
    ],
)
def test_a_process_that_ends_in_a_hook_leaves_a_run_that_did_not_end(
    audited: AuditedProject, where: str, gates: tuple[str, ...]
) -> None:
    assert audited.pytest().status == 0
    audited.extend(f"import os\n\ndef {where}:\n    os._exit(0)\n")
    assert_unfinished(audited, audited.pytest(), *gates)


def test_a_process_that_ends_while_the_run_is_written_leaves_a_run_that_did_not_end(audited: AuditedProject) -> None:
    audited.extend(
        """
import os
import attnaudit.run.run_folder as module

module.RunFolder.merge_parts = lambda *arguments: os._exit(0)
"""
    )
    run = audited.pytest()
    assert run.status == 0
    assert run.audit["status"] == "running"
    assert not (audited.root / "junit.xml").exists()
    assert "status is 'running'" in audited.verify().out


def test_a_process_that_ends_after_the_run_was_written_hides_no_failure(audited: AuditedProject) -> None:
    audited.write("test_audit.py", GREEN.replace("at_least=1)", "at_least=50)"))
    audited.extend("import os\n\ndef pytest_unconfigure(config):\n    os._exit(0)\n")
    run = audited.pytest()
    assert run.status == 0
    assert (run.audit["status"], run.audit["exit_status"]) == ("failed", 1)
    assert len(run.junit_failures()) == 1
    audited.assert_not_verified(LENGTH)


@pytest.mark.parametrize("spoiled", ["skip", "partial"])
def test_a_hook_that_ends_the_process_with_the_exit_status_hides_no_open_gate(
    audited: AuditedProject, spoiled: str
) -> None:
    """Projects whose threads do not end have such a hook."""
    audited.extend("import os\n\ndef pytest_sessionfinish(session, exitstatus):\n    os._exit(exitstatus)\n")
    assert audited.pytest().status == 0
    if spoiled == "skip":
        audited.extend(
            "import pytest\n\ndef pytest_runtest_setup(item):\n" + IN_SECOND.format(action="pytest.skip('x')")
        )
        run = audited.pytest()
    else:
        run = audited.pytest("-k", PEAK, env={"CI": "1"})
    assert run.status == 1, run.text
    assert (run.audit["status"], run.audit["exit_status"]) == ("failed" if spoiled == "skip" else "partial", 1)


def test_an_internal_error_is_red(audited: AuditedProject) -> None:
    audited.extend("def pytest_runtest_logstart(nodeid):\n    raise OSError('no space')\n")
    run = audited.pytest()
    audited.assert_red(run, {PEAK: NOT_RUN, LENGTH: NOT_RUN}, status=3, in_terminal=False)


def test_a_usage_error_is_no_older_run(audited: AuditedProject) -> None:
    """An older run that passed is no longer the newest one after exit status 4."""
    assert audited.pytest().status == 0
    older = (audited.root / "reports" / "latest.txt").read_text(encoding="utf-8")
    audited.extend("DATA = None", "conftest.py")
    run = audited.pytest("--policy=absent.toml")
    assert run.status == 4
    assert (audited.root / "reports" / "latest.txt").read_text(encoding="utf-8") != older
    assert run.audit["status"] == "failed"
    assert "absent.toml" in json.dumps(run.audit["problem"])
    refused = audited.verify()
    assert refused.status == 1
    assert "absent.toml" in refused.out
