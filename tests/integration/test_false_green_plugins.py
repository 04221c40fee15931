"""Plugins that run tests again, in other processes, or not at all make no run green."""

from __future__ import annotations

import pytest

from tests.audited_project import GREEN, LENGTH, PEAK, RED, AuditedProject

# Each test runs pytest in a process of its own: minutes together.
pytestmark = pytest.mark.slow

MODES = ["load", "loadscope", "loadgroup", "worksteal", "each"]
#: A check whose value is small at first and large at every later call.
SECOND_TIME = """
calls = []

@attnaudit.checks.check(title="Lucky", question="Is it the second time?")
def lucky(measurements):
    calls.append(1)
    return measurements.lengths * 0.01 + len(calls) * 5.0
"""
WITH_LUCKY = GREEN.replace("@audit(PEAK, LENGTH)", "@audit(PEAK, known.get('lucky')(at_least=7))")
#: The process of the second gate ends.
CRASH = """
import os
from pathlib import Path

def pytest_runtest_call(item):
    if "token_count" in item.nodeid:
        {action}
"""


def test_reruns_do_not_judge_a_gate_again(audited: AuditedProject) -> None:
    pytest.importorskip("pytest_rerunfailures", reason="pytest-rerunfailures is not installed")
    audited.extend(SECOND_TIME)
    audited.write("test_audit.py", WITH_LUCKY)
    run = audited.pytest("--reruns=2")
    audited.assert_red(run, {"lucky": "failed: fail"})
    assert len(run.audit["earlier_failures"]) == 2
    assert "2 rerun" in run.process.out


@pytest.mark.parametrize("swallow", ["check.judge()", "pass"])
def test_reruns_do_not_hide_a_verdict_that_a_later_attempt_does_not_enforce(
    audited: AuditedProject, swallow: str
) -> None:
    pytest.importorskip("pytest_rerunfailures", reason="pytest-rerunfailures is not installed")
    body = f"attempts.append(1)\n    if len(attempts) < 3:\n        check.enforce()\n    {swallow}"
    audited.write("test_audit.py", "attempts = []\n" + RED.replace("check.enforce()", body))
    run = audited.pytest("--reruns=2")
    audited.assert_red(run, {LENGTH: "failed: fail: mean token_count"})


def test_a_failure_before_the_verdict_may_be_run_again_and_stays_in_the_record(audited: AuditedProject) -> None:
    pytest.importorskip("pytest_rerunfailures", reason="pytest-rerunfailures is not installed")
    body = "attempts.append(1)\n    if len(attempts) == 1:\n        raise OSError('busy')\n    check.enforce()"
    audited.write("test_audit.py", "attempts = []\n" + GREEN.replace("check.enforce()", body))
    run = audited.pytest("--reruns=2")
    assert (run.status, run.audit["status"]) == (0, "passed")
    (failure,) = run.audit["earlier_failures"]
    assert "busy" in failure["reason"]
    assert "busy" in run.process.out.partition("run again after a failure")[2]
    assert "busy" in run.page("summary.md")


@pytest.mark.parametrize("mode", MODES)
def test_gates_that_are_skipped_or_not_enforced_in_workers_are_open(audited: AuditedProject, mode: str) -> None:
    body = "if check.check is LENGTH:\n        import pytest\n        pytest.skip('later')"
    audited.write("test_audit.py", GREEN.replace("check.enforce()", body))
    workers = ["--tx=2*popen", "--dist=each"] if mode == "each" else ["-n2", f"--dist={mode}"]
    run = audited.pytest(*workers)
    unenforced = "open: its test ended without a verdict: call check.enforce() in the test"
    audited.assert_red(run, {PEAK: unenforced, LENGTH: "open: skipped: later"})


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_a_gate_that_fails_in_a_worker_is_red(audited: AuditedProject, mode: str) -> None:
    audited.write("test_audit.py", RED)
    workers = ["--tx=2*popen", "--dist=each"] if mode == "each" else ["-n2", f"--dist={mode}"]
    audited.assert_red(audited.pytest(*workers), {LENGTH: "failed: fail: mean token_count"})


@pytest.mark.parametrize("mode", ["load", "loadgroup", "worksteal"])
@pytest.mark.parametrize("action", ["os._exit(0)", "os.kill(os.getpid(), 9)"], ids=["exit", "kill"])
def test_a_worker_that_ends_leaves_its_gate_open(audited: AuditedProject, mode: str, action: str) -> None:
    audited.write("test_audit.py", GREEN.replace("check.enforce()", "pass"))
    audited.extend(CRASH.format(action=action))
    run = audited.pytest("-n2", f"--dist={mode}")
    unenforced = "open: its test ended without a verdict"
    assert run.gates()[PEAK][0] == "open"
    audited.assert_red(run, {PEAK: unenforced, LENGTH: "open: worker"})


def test_a_worker_that_ends_although_its_test_has_passed_is_red(audited: AuditedProject) -> None:
    audited.extend("import os\n\ndef pytest_runtest_teardown(item):\n    os._exit(0)\n")
    run = audited.pytest("-n1", "--max-worker-restart=0")
    assert run.status != 0
    assert run.audit["status"] == "failed"
    assert run.audit["exit_status"] == run.status
    assert run.junit_failures()
    audited.assert_not_verified()


def test_a_crash_that_is_run_again_stays_in_the_record(audited: AuditedProject) -> None:
    pytest.importorskip("pytest_rerunfailures", reason="pytest-rerunfailures is not installed")
    mark = "if not Path('crashed').exists():\n            Path('crashed').touch()\n            os._exit(1)"
    audited.extend(CRASH.format(action=mark))
    run = audited.pytest("-n1", "--reruns=1")
    assert any(LENGTH in failure["test"] for failure in run.audit["earlier_failures"]) or run.status != 0
    assert audited.verify().status == int(run.audit["status"] != "passed")


@pytest.mark.parametrize("method", ["thread", "signal"])
def test_a_timeout_while_measuring_is_red(audited: AuditedProject, method: str) -> None:
    pytest.importorskip("pytest_timeout", reason="pytest-timeout is not installed")
    audited.extend(
        """
@attnaudit.register_model("slow")
def slow():
    import time

    adapter = tiny()
    adapter.modules[0].register_forward_hook(lambda *arguments: time.sleep(60))
    return adapter
"""
    )
    assert audited.pytest().status == 0
    run = audited.pytest("--timeout=3", f"--timeout-method={method}", models=("slow",))
    assert run.status == 1, run.text
    assert "Timeout" in run.text
    assert {gate["check"]: gate["state"] for gate in run.audit["gates"]} == {PEAK: "open", LENGTH: "open"}
    if method == "thread":  # pytest-timeout ends the process at once
        assert run.audit["status"] == "running"
        assert not (audited.root / "junit.xml").exists()
    else:
        assert (run.audit["status"], run.audit["exit_status"]) == ("failed", 1)
        assert run.junit_failures()
    audited.assert_not_verified(models=("slow",))


def test_a_plugin_that_fails_the_session_last_is_red_in_junit(audited: AuditedProject) -> None:
    audited.extend(
        "import pytest\n\n@pytest.hookimpl(trylast=True)\n"
        "def pytest_sessionfinish(session):\n    session.exitstatus = 1\n"
    )
    run = audited.pytest()
    assert (run.status, run.audit["status"], run.audit["exit_status"]) == (1, "failed", 1)
    (failure,) = run.junit_failures()
    assert "another plugin made the run fail after the last test" in failure
    audited.assert_not_verified()


def test_a_plugin_that_fails_when_pytest_ends_is_red(audited: AuditedProject) -> None:
    audited.extend("def pytest_unconfigure():\n    raise RuntimeError('too late')\n")
    run = audited.pytest()
    assert run.status == 1
    assert "too late" in run.text
    assert run.audit["status"] == "failed"
    assert run.audit["exit_status"] != 0
    assert run.junit_failures()
    audited.assert_not_verified()


def test_workers_that_read_different_policies_are_red(audited: AuditedProject) -> None:
    """The second worker reads a policy file that was changed after the first one had read it."""
    pytest.importorskip("pytest_rerunfailures", reason="pytest-rerunfailures is not installed")
    policy = '[[check]]\nname = "attention_peak"\nat_most = 0.99\n[[check]]\nname = "token_count"\nat_least = {}\n'
    audited.write("policy.toml", policy.format(50))
    audited.write("laxer.toml", policy.format(1))
    audited.extend(
        "import os, pathlib, shutil, pytest\n\n@pytest.fixture(autouse=True)\ndef crash_once(check):\n"
        "    if os.environ.get('PYTEST_XDIST_WORKER') == 'gw0' and 'token' in check.check.id:\n"
        "        shutil.copy('laxer.toml', 'policy.toml')\n        os._exit(1)\n"
    )
    run = audited.pytest("-n1", "--reruns=1", "--policy=policy.toml")
    assert run.status == 1, run.text
    assert run.audit["status"] == "failed"
    assert "The policy was not the same in all processes (sha256" in run.audit["problem"]
    assert any("The policy was not the same" in failure for failure in run.junit_failures())
    audited.assert_not_verified()


def test_workers_that_measure_different_numbers_are_red(audited: AuditedProject) -> None:
    """The hash of a model does not cover a tensor that is neither a parameter nor a buffer."""
    conftest = (audited.root / "conftest.py").read_text(encoding="utf-8")
    drawn = "import numpy\n    scale = torch.tensor(numpy.random.default_rng().uniform(1, 20), dtype=torch.float32)\n"
    changed = conftest.replace("torch.manual_seed(0)\n", f"torch.manual_seed(0)\n    {drawn}")
    audited.write("conftest.py", changed.replace("score(states)[..., 0]", "(score(states)[..., 0] * scale)"))
    run = audited.pytest("-n2", "--dist=load")
    assert run.status == 1, run.text
    assert "The model tiny gave different numbers on rows in gw" in run.audit["problem"]
    audited.assert_not_verified()
