"""What becomes of a gate, for every state and reason, and what the gates make of the run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from attnaudit.records import EffectivePolicy, GateRecord, GateState, PolicyException, RunStatus
from attnaudit.run.gates import run_status, settle
from attnaudit.run.outcomes import WITHOUT_VERDICT, Outcomes
from attnaudit.run.plan import DeclaredGate, Plan, SelectedCase
from tests.units.report.example_checks import check_record

MODEL, DATA, CHECK = "release", "reviews", "agreement"
KNOWN = PolicyException(check=CHECK, reason="known, see the model card")


def plan(
    tests: Sequence[str] = ("t",),
    *,
    declared_by: str = "t",
    exceptions: Sequence[PolicyException] = (),
    left_out: bool = False,
) -> Plan:
    """Return a plan with one gate and these tests for it."""
    return Plan(
        gates=[DeclaredGate(model=MODEL, data=DATA, check=CHECK, test=declared_by)],
        selected=[SelectedCase(test=test, model=MODEL, data=DATA, check=CHECK) for test in tests],
        left_out=[(MODEL, DATA, CHECK)] if left_out else [],
        effective_policy=EffectivePolicy(sha256="", checks=[], exceptions=list(exceptions)),
    )


def outcomes(*reports: tuple[str, str, str, str | None]) -> Outcomes:
    """Return the outcomes after reports of calls: (test, outcome, reason, verdict)."""
    collected = Outcomes()
    for test, outcome, reason, verdict in reports:
        record = None if verdict is None else judged(verdict)
        collected.add(test, when="call", outcome=outcome, reason=reason, record=record)
    return collected


def judged(verdict: str, **changes: Any) -> dict[str, Any]:
    fields = {"model": MODEL, "data": DATA, "check": CHECK, "verdict": verdict, "blocks": verdict != "pass"}
    content: dict[str, Any] = msgspec.to_builtins(check_record(**{**fields, **changes}))
    return content


def settled(planned: Plan, collected: Outcomes, **options: Any) -> tuple[str, str]:
    (gate,) = settle(planned, collected, **options)
    assert (gate.model, gate.data, gate.check) == (MODEL, DATA, CHECK)
    return gate.state, gate.reason


def test_a_gate_passes_with_a_verdict_that_passes() -> None:
    assert settled(plan(), outcomes(("t", "passed", "", "pass"))) == ("passed", "")


def test_a_gate_passes_if_its_verdict_may_be_inconclusive() -> None:
    collected = Outcomes()
    record = judged("inconclusive", blocks=False, inconclusive="warn")
    collected.add("t", when="call", outcome="passed", reason="", record=record)
    assert settled(plan(), collected) == ("passed", "")


@pytest.mark.parametrize("verdict", ["fail", "inconclusive", "undefined"])
def test_a_gate_fails_with_a_verdict_that_blocks(verdict: str) -> None:
    state, reason = settled(plan(), outcomes(("t", "failed", "too low", verdict)))
    assert state == "failed"
    assert reason.startswith(f"{verdict}: mean Kendall's τ-b 0.213")
    assert "its test" not in reason


@pytest.mark.parametrize(
    ("outcome", "clause"),
    [
        ("passed", "; its test passed: call check.enforce() in the test"),
        ("skipped", "; its test was skipped or expected to fail"),
    ],
)
def test_a_verdict_that_was_not_enforced_fails_its_gate(outcome: str, clause: str) -> None:
    state, reason = settled(plan(), outcomes(("t", outcome, "why", "fail")))
    assert state == "failed"
    assert reason.endswith(clause)


def test_the_worse_verdict_of_two_tests_decides() -> None:
    collected = outcomes(("t", "passed", "", "pass"), ("u", "failed", "too low", "fail"))
    state, reason = settled(plan(("t", "u")), collected)
    assert state == "failed"
    assert "its test" not in reason


def test_the_verdict_of_one_of_two_tests_is_enough() -> None:
    collected = outcomes(("t", "skipped", "skipped: slow", None), ("u", "passed", "", "pass"))
    assert settled(plan(("t", "u")), collected) == ("passed", "")


@pytest.mark.parametrize(
    ("report", "reason"),
    [
        (("t", "skipped", "skipped: no data", None), "skipped: no data"),
        (("t", "skipped", "expected to fail: known", None), "expected to fail: known"),
        (("t", "failed", "RuntimeError: boom", None), "RuntimeError: boom"),
        (("t", "passed", "", None), WITHOUT_VERDICT),
    ],
)
def test_a_gate_without_a_verdict_is_open_for_the_reason_of_its_test(
    report: tuple[str, str, str, str | None], reason: str
) -> None:
    assert settled(plan(), outcomes(report)) == ("open", reason)


def test_a_gate_whose_test_did_not_run_is_open() -> None:
    assert settled(plan(), Outcomes()) == ("open", "its test did not run")


def test_a_gate_whose_test_was_removed_is_open() -> None:
    reason = "a plugin or a conftest.py removed its test from the run"
    assert settled(plan(()), Outcomes()) == ("open", reason)


def test_a_gate_that_no_test_judges_is_open() -> None:
    assert settled(plan((), declared_by=""), Outcomes()) == ("open", "no collected test judges this gate")


def test_a_gate_that_the_user_left_out_is_not_selected() -> None:
    options = ("-k agreement", "the test ids on the command line")
    reason = "left out by -k agreement and the test ids on the command line"
    assert settled(plan((), left_out=True), Outcomes(), left_out_by=options) == ("not selected", reason)


def test_a_gate_that_the_option_of_the_user_did_not_leave_out_is_open() -> None:
    assert settled(plan(()), Outcomes(), left_out_by=["-m 'not slow'"])[0] == "open"
    assert settled(plan((), declared_by=""), Outcomes(), left_out_by=["-m 'not slow'"])[0] == "open"


def test_a_selected_gate_that_did_not_run_is_open_although_others_were_left_out() -> None:
    assert settled(plan(), Outcomes(), left_out_by=["-k agreement"])[0] == "open"


def test_a_gate_that_x_kept_from_running_is_not_selected() -> None:
    reason = "not run, because -x ended the run after a failure"
    assert settled(plan(), Outcomes(), stopped_by="-x") == ("not selected", reason)
    assert settled(plan(), outcomes(("t", "skipped", "skipped: slow", None)), stopped_by="-x")[0] == "open"
    assert settled(plan(()), Outcomes(), stopped_by="-x")[0] == "open"


@pytest.mark.parametrize("verdict", [None, "fail"])
def test_an_exception_of_the_policy_permits_a_skip_and_an_expected_failure(verdict: str | None) -> None:
    planned = plan(exceptions=[KNOWN])
    assert settled(planned, outcomes(("t", "skipped", "known", verdict))) == ("excepted", KNOWN.reason)


@pytest.mark.parametrize(
    ("exception", "excepted"),
    [
        (KNOWN, True),
        (msgspec.structs.replace(KNOWN, model=MODEL, data=DATA), True),
        (msgspec.structs.replace(KNOWN, model="another"), False),
        (msgspec.structs.replace(KNOWN, data="another"), False),
        (msgspec.structs.replace(KNOWN, check="another"), False),
    ],
)
def test_an_exception_holds_for_its_check_model_and_data_set(exception: PolicyException, excepted: bool) -> None:
    planned = plan(exceptions=[exception])
    state, _ = settled(planned, outcomes(("t", "skipped", "known", None)))
    assert state == ("excepted" if excepted else "open")


@pytest.mark.parametrize(
    ("reports", "state"),
    [
        ([("t", "failed", "too low", "fail")], "failed"),
        ([("t", "passed", "", "fail")], "failed"),
        ([("t", "failed", "boom", None)], "open"),
        ([("t", "passed", "", None)], "open"),
        ([], "open"),
        ([("t", "passed", "", "pass")], "passed"),
    ],
)
def test_an_exception_permits_nothing_but_a_skip(reports: list[tuple[str, str, str, str | None]], state: str) -> None:
    assert settled(plan(exceptions=[KNOWN]), outcomes(*reports))[0] == state


def test_an_exception_needs_every_test_of_the_gate_to_be_skipped() -> None:
    planned = plan(("t", "u"), exceptions=[KNOWN])
    collected = outcomes(("t", "skipped", "known", None), ("u", "failed", "too low", "fail"))
    assert settled(planned, collected)[0] == "failed"


def test_a_gate_names_its_first_test_or_the_one_that_declares_it() -> None:
    assert settle(plan(("t", "u")), Outcomes())[0].test == "t"
    assert settle(plan((), declared_by="declared"), Outcomes())[0].test == "declared"


def test_a_test_that_only_uses_the_measurements_judges_no_gate() -> None:
    planned = msgspec.structs.replace(plan(()), selected=[SelectedCase(test="t", model=MODEL, data=DATA, check="")])
    assert settled(planned, outcomes(("t", "passed", "", None)))[0] == "open"


def gates(*states: GateState) -> list[GateRecord]:
    return [GateRecord(model=MODEL, data=DATA, check=str(i), state=state) for i, state in enumerate(states)]


@pytest.mark.parametrize(
    ("states", "exit_status", "status"),
    [
        (["passed"], 0, "passed"),
        (["passed", "excepted"], 0, "passed"),
        (["excepted"], 0, "passed"),
        (["passed", "failed"], 0, "failed"),
        (["passed", "open"], 0, "failed"),
        (["not selected", "open"], 0, "failed"),
        (["not selected", "failed"], 1, "failed"),
        (["passed"], 1, "failed"),
        (["passed"], 2, "failed"),
        (["not selected"], 1, "failed"),
        (["passed", "not selected"], 0, "partial"),
        (["excepted", "not selected"], 0, "partial"),
        ([], 0, "informational"),
        ([], 1, "failed"),
        (["informational"], 0, "informational"),
        (["informational", "passed"], 0, "passed"),
        (["informational", "open"], 0, "failed"),
        (["informational", "not selected"], 0, "partial"),
    ],
)
def test_the_status_of_a_run_follows_from_its_gates(
    states: list[GateState], exit_status: int, status: RunStatus
) -> None:
    assert run_status(gates(*states), exit_status=exit_status) == status


@pytest.mark.parametrize(
    ("states", "exit_status", "status"),
    [
        (["passed"], 0, "partial"),
        ([], 0, "partial"),
        (["not selected"], 0, "partial"),
        (["passed"], 1, "failed"),
        (["open"], 0, "failed"),
    ],
)
def test_a_test_file_that_was_left_out_makes_a_run_partial(
    states: Sequence[GateState], exit_status: int, status: RunStatus
) -> None:
    left_out = {"test_other.py": "not collected"}
    assert run_status(gates(*states), exit_status=exit_status, files_left_out=left_out) == status


def test_plans_of_several_processes_are_joined_once() -> None:
    anonymous = plan((), declared_by="")
    joined = Plan.joined([anonymous, plan(("t", "u")), plan(("u", "v"), declared_by="x")])
    assert [gate.test for gate in joined.gates] == ["t"]
    assert [case.test for case in joined.selected] == ["t", "u", "v"]
    assert joined.effective_policy == anonymous.effective_policy
    files = [Plan(files_left_out={file: "skipped: no GPU"}) for file in ("test_a.py", "test_b.py", "test_a.py")]
    assert list(Plan.joined(files).files_left_out) == ["test_a.py", "test_b.py"]
    assert Plan.joined([]) == Plan()
