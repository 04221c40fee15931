"""A run is green exactly if every obligation passed, whatever happens to the tests, in any order, on any worker.

The model of what must hold knows nothing of plans, results or states. It remembers which verdicts were reported for
each gate, how the last attempt of each test ended, and why the session ended.
"""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest import mock

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from attnaudit.plugin.closing import close_run
from attnaudit.plugin.state import RunState
from attnaudit.records import EffectivePolicy, GateRecord, PolicyException
from attnaudit.report.markdown import summary
from attnaudit.report.run_files import read_run
from attnaudit.run.finish_run import RunContext, begin_run
from attnaudit.run.gates import run_status, settle
from attnaudit.run.outcomes import Outcomes
from attnaudit.run.plan import DeclaredGate, Plan, SelectedCase
from attnaudit.run.run_folder import RunFolder
from tests.units.report.example_checks import check_record

GATES = [("small", "rows", "use"), ("small", "rows", "order"), ("large", "rows", "use"), ("large", "rows", "order")]
#: The tests of each gate: those of check "use" are judged by two functions.
TESTS = {gate: [f"{f}[{'-'.join(gate)}]" for f in ("a", "b")[: 2 if gate[2] == "use" else 1]] for gate in GATES}
GATE_OF = {test: gate for gate, tests in TESTS.items() for test in tests}
WORKERS = ("gw0", "gw1", "gw2")

tests = st.sampled_from(sorted(GATE_OF))


@dataclass
class Truth:
    """What really happened, in the words of the contract.

    Attributes:
        excepted: The gates that the policy excepts.
        present: The tests that are in the run after the collection.
        file_left_out: Whether a test file was left out, so that gates may be unknown.
        user_left_out: Whether the user chose tests with an option.
        verdicts: Gate -> the verdicts that were reached, in order.
        ends: Test -> how its last attempt ended: "passed", "failed" or "skipped".
        failures: How many tests failed, and were not run again by pytest-rerunfailures.
        status: The exit status with which the session was ended early; None if it was not.
        maxfail: The value of --maxfail; 0 without it.
        lost: The tests that were lost with a worker, and that another worker may run again.
    """

    excepted: set[tuple[str, str, str]]
    present: set[str] = field(default_factory=lambda: set(GATE_OF))
    file_left_out: bool = False
    user_left_out: bool = False
    verdicts: dict[tuple[str, str, str], list[str]] = field(default_factory=lambda: {gate: [] for gate in GATES})
    ends: dict[str, str] = field(default_factory=dict)
    failures: int = 0
    status: int | None = None
    maxfail: int = 0
    lost: set[str] = field(default_factory=set)

    def kept(self, gate: tuple[str, str, str]) -> bool:
        """Whether an obligation is met: the gate passed in this run, or the policy permits that it was skipped."""
        verdicts = self.verdicts[gate]
        if "fail" not in verdicts and "pass" in verdicts:
            return True
        ends = {self.ends[test] for test in TESTS[gate] if test in self.present and test in self.ends}
        return gate in self.excepted and ends == {"skipped"}

    def left_out(self, gate: tuple[str, str, str]) -> bool:
        """Whether the user did not want the gate to be judged: no test is left of it, or -x stopped before them."""
        if self.verdicts[gate]:
            return False
        present = [test for test in TESTS[gate] if test in self.present]
        if not present:
            return self.user_left_out
        stopped = 0 < self.maxfail <= self.failures
        return stopped and not any(test in self.ends for test in present)

    def base(self) -> int:
        """The exit status that pytest has without the audit."""
        if self.status is not None:
            return self.status
        return 5 if not self.present else int(self.failures > 0)

    def green(self) -> bool:
        return self.base() == 0 and not self.file_left_out and all(self.kept(gate) for gate in GATES)

    def partial(self) -> bool:
        open_or_failed = [gate for gate in GATES if not self.kept(gate) and not self.left_out(gate)]
        return self.base() == 0 and not open_or_failed and not self.green()


class GatesMachine(RuleBasedStateMachine):
    """Tests pass, fail, are skipped, expected to fail, removed, deselected, run again, swallowed and lost."""

    @initialize(
        excepted=st.sets(st.sampled_from(GATES), max_size=2),
        removed=st.just(set()) | st.sets(tests, max_size=3),
        by_user=st.booleans(),
        file_left_out=st.booleans(),
        workers=st.sets(st.sampled_from(WORKERS), min_size=1),
        maxfail=st.sampled_from([0, 0, 1, 2]),
    )
    def begin(
        self,
        excepted: set[tuple[str, str, str]],
        removed: set[str],
        by_user: bool,
        file_left_out: bool,
        workers: set[str],
        maxfail: int,
    ) -> None:
        self.truth = Truth(excepted=excepted, maxfail=maxfail)
        self.truth.present -= removed
        self.truth.user_left_out = by_user
        self.truth.file_left_out = file_left_out
        self.outcomes = Outcomes()
        self.reports: list[tuple[str, str]] = []
        self.root = Path(tempfile.mkdtemp())
        self.folder = RunFolder(self.root, "run")
        begin_run(self.folder, context())
        for worker in sorted(workers):
            self.folder.write_plan(self.plan(), worker=worker)

    def teardown(self) -> None:
        if hasattr(self, "root"):
            try:
                for ci, allow_partial in ((False, False), (True, False), (True, True)):
                    self.close(context(ci=ci, allow_partial=allow_partial))
            finally:
                shutil.rmtree(self.root)

    def plan(self) -> Plan:
        """What a process writes down after the collection."""
        exceptions = [PolicyException(check=g[2], model=g[0], data=g[1], reason="known") for g in self.truth.excepted]
        return Plan(
            gates=[DeclaredGate(model=g[0], data=g[1], check=g[2], test=TESTS[g][0]) for g in GATES],
            selected=[
                SelectedCase(test=test, model=gate[0], data=gate[1], check=gate[2])
                for test, gate in GATE_OF.items()
                if test in self.truth.present
            ],
            left_out=GATES if self.truth.user_left_out else [],
            effective_policy=EffectivePolicy(sha256="", checks=[], exceptions=exceptions),
            files_left_out={"test_other.py": "not collected"} if self.truth.file_left_out else {},
        )

    def may_run(self, test: str) -> bool:
        stopped = self.truth.status is not None or 0 < self.truth.maxfail <= self.truth.failures
        ended = test in self.truth.ends and test not in self.truth.lost
        return test in self.truth.present and not ended and not stopped

    def report(self, test: str, *, when: str, outcome: str, reason: str = "", verdict: str = "") -> None:
        """Report a phase of a test, as pytest or the controller of xdist does."""
        record = None
        if verdict:
            model, data, check = GATE_OF[test]
            fields = {"model": model, "data": data, "check": check, "verdict": verdict, "blocks": verdict == "fail"}
            record = msgspec.to_builtins(check_record(**fields, test=test))
            self.truth.verdicts[GATE_OF[test]].append(verdict)
        self.outcomes.add(test, when=when, outcome=outcome, reason=reason, record=record)
        self.reports.append((f"{test}: {reason}", outcome))
        if outcome == "failed":
            self.truth.failures += 1

    def attempt(self, test: str, *, outcome: str, reason: str = "", verdict: str = "", when: str = "call") -> None:
        """Run a test once, to its end."""
        if not self.may_run(test):
            return
        if when != "setup":
            self.report(test, when="setup", outcome="passed")
        self.report(test, when=when, outcome=outcome, reason=reason, verdict=verdict)
        self.truth.ends[test] = outcome
        self.truth.lost.discard(test)

    @rule(test=tests)
    def pass_(self, test: str) -> None:
        self.attempt(test, outcome="passed", verdict="pass")

    @rule()
    def pass_the_rest(self) -> None:
        for test in GATE_OF:
            self.attempt(test, outcome="passed", verdict="pass")

    @rule(test=tests)
    def fail(self, test: str) -> None:
        self.attempt(test, outcome="failed", reason="too low", verdict="fail")

    @rule(test=tests, when=st.sampled_from(["setup", "call"]))
    def skip(self, test: str, when: str) -> None:
        self.attempt(test, outcome="skipped", reason="skipped: no data", when=when)

    @rule(test=tests, verdict=st.sampled_from(["fail", ""]))
    def expect_to_fail(self, test: str, verdict: str) -> None:
        self.attempt(test, outcome="skipped", reason="expected to fail: known", verdict=verdict)

    @rule(test=tests)
    def pass_although_expected_to_fail(self, test: str) -> None:
        self.attempt(test, outcome="failed", reason="[XPASS(strict)]", verdict="pass")

    @rule(test=tests, verdict=st.sampled_from(["fail", ""]))
    def swallow(self, test: str, verdict: str) -> None:
        """The test catches the failure, or never judges."""
        self.attempt(test, outcome="passed", verdict=verdict)

    @rule(test=tests, when=st.sampled_from(["setup", "call"]))
    def raise_an_error(self, test: str, when: str) -> None:
        self.attempt(test, outcome="failed", reason="out of memory", when=when)

    @rule(test=tests)
    def break_after_the_verdict(self, test: str) -> None:
        """The fixture of a test that passed fails in its teardown."""
        self.attempt(test, outcome="passed", verdict="pass")
        if self.truth.ends.get(test) == "passed" and self.truth.status is None:
            self.report(test, when="teardown", outcome="failed", reason="boom")
            self.truth.ends[test] = "failed"

    @rule(test=tests, verdict=st.sampled_from(["pass", "fail", ""]), when=st.sampled_from(["setup", "call"]))
    def run_again(self, test: str, verdict: str, when: str) -> None:
        """pytest-rerunfailures reports a try that failed as "rerun", and runs the test again later."""
        if self.may_run(test):
            self.report(test, when=when, outcome="rerun", reason="first try", verdict=verdict)
            self.truth.ends.pop(test, None)
            self.truth.lost.discard(test)

    @rule(test=tests, again=st.booleans())
    def lose_worker(self, test: str, again: bool) -> None:
        """A worker dies in a test, which another worker may run again."""
        if self.may_run(test):
            self.report(test, when="???", outcome="failed", reason=f"worker crashed while running {test}")
            self.truth.ends[test] = "failed"
            self.truth.lost -= {test}
            self.truth.lost |= {test} if again else set()

    @rule()
    def fail_another_test(self) -> None:
        """A test that is no case of the audit fails."""
        if self.truth.status is None:
            self.outcomes.other_failures["test_plain"] = "assert False"
            self.truth.failures += 1
            self.reports.append(("test_plain: assert False", "failed"))

    @precondition(lambda self: self.truth.status is None)
    @rule(status=st.sampled_from([0, 1, 2, 3]))
    def end_session(self, status: int) -> None:
        """Ctrl-C or pytest.exit(), with any exit status, ends the session before all tests have run, or after."""
        self.truth.status = status

    @invariant()
    def a_run_that_ends_now_is_green_exactly_if_every_obligation_passed(self) -> None:
        truth = self.truth
        gates = self.settled()
        base = truth.base()
        left_out = self.plan().files_left_out
        status = run_status(gates, exit_status=base, files_left_out=left_out)
        assert (status == "passed") == truth.green()
        assert (status == "partial") == truth.partial()
        assert status in ("passed", "partial", "failed")
        assert [gate.state in ("passed", "excepted") for gate in gates] == [truth.kept(gate) for gate in GATES]
        for gate, key in zip(gates, GATES, strict=True):
            assert (gate.state == "failed") == (not truth.kept(key) and bool(truth.verdicts[key]))
            assert (gate.state == "not selected") == (not truth.kept(key) and truth.left_out(key))
            assert bool(gate.reason) == (gate.state != "passed")

    def settled(self) -> list[GateRecord]:
        """The gates as a process sees them that reads the plans of all workers."""
        stopped = f"--maxfail={self.truth.maxfail}" if 0 < self.truth.maxfail <= self.truth.failures else ""
        left_out_by = ["-k use"] if self.truth.user_left_out else []
        return settle(self.folder.read_plan(), self.outcomes, left_out_by=left_out_by, stopped_by=stopped)

    def close(self, ended: RunContext) -> None:
        """End the run, and compare its exit status, audit.json, its summary, and the reports that JUnit gets."""
        truth = self.truth
        folder = RunFolder(self.root, f"run-{ended.ci}-{ended.allow_partial}")
        begin_run(folder, ended)
        folder.write_plan(self.plan(), worker="gw0")
        state = state_of(folder, ended, self.outcomes)
        session = session_of(truth, self.reports)
        with mock.patch("attnaudit.report.write_pages"):
            close_run(state, cast("pytest.Session", session))
        run = read_run(folder.path)
        assert run == state.run_record
        assert run.exit_status == session.exitstatus
        assert (run.status == "passed") == truth.green() == (run.exit_status == 0 and run.status != "partial")
        assert (run.status == "partial") == truth.partial()
        if truth.partial():
            assert (run.exit_status == 0) == (ended.allow_partial or not ended.ci)
        failed = [text for text, outcome in session.reports if outcome == "failed"]
        assert bool(failed) == (run.exit_status != 0 or truth.failures > 0)
        self.require_names([gate for gate in run.gates if gate.state in ("failed", "open")], "\n".join(failed))
        text = summary(run, report="report.html")
        assert ("blocked" in text) == (run.status == "failed")
        assert ("artial run" in text) == (run.status == "partial")

    @staticmethod
    def require_names(gates: list[GateRecord], text: str) -> None:
        """JUnit names every gate that did not pass, by its test or by its check, model and data set."""
        for gate in gates:
            key = (gate.model, gate.data, gate.check)
            names = [f"{gate.check} ({gate.model} on {gate.data})", *TESTS[key]]
            assert any(name in text for name in names), (gate, text)


def context(*, ci: bool = False, allow_partial: bool = False) -> RunContext:
    return RunContext(version="0.1.0", created="", command=["pytest"], seed=0, ci=ci, allow_partial=allow_partial)


def state_of(folder: RunFolder, ended: RunContext, outcomes: Outcomes) -> RunState:
    """Return the state of the controller, which collected nothing itself."""
    unused: Any = None
    return RunState(options=unused, folder=folder, session=unused, outcomes=outcomes, context=ended)


def session_of(truth: Truth, reports: list[tuple[str, str]]) -> SimpleNamespace:
    """Return what `close_run` uses of a session of pytest."""
    session = SimpleNamespace(exitstatus=truth.base(), testsfailed=truth.failures, reports=list(reports))

    def pytest_runtest_logreport(report: pytest.TestReport) -> None:
        session.reports.append((str(report.longrepr), report.outcome))
        session.testsfailed += report.outcome == "failed"

    session.config = SimpleNamespace(
        option=SimpleNamespace(keyword="use" if truth.user_left_out else ""),
        args=["audits"],
        getoption=lambda name, default=None: truth.maxfail if name == "maxfail" else default,
        hook=SimpleNamespace(pytest_runtest_logreport=pytest_runtest_logreport),
    )
    return session


TestGates = GatesMachine.TestCase
TestGates.settings = settings(max_examples=40, stateful_step_count=20)
