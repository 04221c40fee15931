"""The outcome of every gate that a run had to judge, and the status of the run that follows from them.

The gates are written down before the first case runs. A run passes only if each of them has a verdict that passes, is
excepted by the policy, or is informational because the policy was not validated on the family of the model. A gate that
the user left out on purpose has the state "not selected", and the run is then partial. The run is also partial if a
test file was left out, because the gates in this file are unknown. Any other gate without a verdict is open, and the
run then fails.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from attnaudit.model_families import blocked_models, informational_gates
from attnaudit.records import (
    CheckRecord,
    GateRecord,
    GateState,
    ModelRecord,
    PolicyException,
    RunStatus,
    UnvalidatedModel,
)
from attnaudit.run.outcomes import Outcomes
from attnaudit.run.plan import DeclaredGate, GateKey, Plan
from attnaudit.verdict_text import headline


def settle(
    plan: Plan,
    outcomes: Outcomes,
    *,
    models: Sequence[ModelRecord] = (),
    left_out_by: Sequence[str] = (),
    stopped_by: str = "",
) -> list[GateRecord]:
    """Return the outcome of every gate of a plan.

    Args:
        plan: What had to be judged.
        outcomes: The outcomes of the cases.
        models: The models that were measured.
        left_out_by: The options with which the user selects cases, such as "-k"; empty if every case was to run.
        stopped_by: The option that ended the run after a failure, such as "-x"; "" if all tests ran.
    """
    tests: dict[GateKey, list[str]] = {}
    for case in plan.selected:
        if case.check:
            tests.setdefault(case.key, []).append(case.test)
    records = {key[:3]: record for key, record in outcomes.records.items()}
    exceptions = plan.effective_policy.exceptions if plan.effective_policy else []
    informational, left_out = informational_gates(plan.effective_policy, models), set(plan.left_out)
    families = {model.name: model.family for model in models}
    return [
        _informational(gate, families[gate.model], tests.get(gate.key, []))
        if (gate.model, gate.check) in informational
        else _settle_gate(
            gate,
            records.get(gate.key),
            tests.get(gate.key, []),
            outcomes,
            exception=_exception_for(gate, exceptions),
            left_out_by=left_out_by if gate.key in left_out else (),
            stopped_by=stopped_by,
        )
        for gate in plan.gates
    ]


def run_status(
    gates: Sequence[GateRecord],
    *,
    exit_status: int = 0,
    files_left_out: Collection[str] = (),
    unvalidated: Sequence[UnvalidatedModel] = (),
) -> RunStatus:
    """Return the status of a run that has ended.

    Args:
        gates: The outcomes of the gates.
        exit_status: The exit status of pytest itself, for example 1 after a failed test.
        files_left_out: The test files that were left out, so that their gates are unknown.
        unvalidated: The models of families on which the policy was not validated.
    """
    states = {gate.state for gate in gates}
    if exit_status or states & {"failed", "open"} or blocked_models(unvalidated):
        return "failed"
    if "not selected" in states or files_left_out:
        return "partial"
    return "passed" if states - {"informational"} else "informational"


def _settle_gate(
    gate: DeclaredGate,
    record: CheckRecord | None,
    tests: Sequence[str],
    outcomes: Outcomes,
    *,
    exception: PolicyException | None,
    left_out_by: Sequence[str],
    stopped_by: str,
) -> GateRecord:
    """Return the outcome of one gate, given its record, if there is one, and the tests that had to judge it."""

    def settled(state: GateState, reason: str = "") -> GateRecord:
        return _with_state(gate, state, reason, tests)

    if record is not None and not record.blocks:
        return settled("passed")
    results = [outcomes.results[test].outcome for test in tests if test in outcomes.results]
    if exception is not None and results and set(results) == {"skipped"}:
        return settled("excepted", exception.reason)
    if record is not None and record.comparison is not None and record.comparison.not_comparable:
        return settled("failed", f"{record.comparison.not_comparable}{_swallowed(results)}")
    if record is not None:
        explained = record.verdict == "undefined" and (record.unseen_mixers or record.rounding)
        why = record.reason if explained else headline(record)
        return settled("failed", f"{record.verdict}: {why}{_swallowed(results)}")
    if not tests:
        if left_out_by:
            return settled("not selected", f"left out by {' and '.join(left_out_by)}")
        if gate.test:
            return settled("open", "a plugin or a conftest.py removed its test from the run")
        return settled("open", "no collected test judges this gate")
    reasons = [outcomes.results[test].reason for test in tests if test in outcomes.results]
    if not reasons and stopped_by:
        return settled("not selected", f"not run, because {stopped_by} ended the run after a failure")
    return settled("open", reasons[0] if reasons else "its test did not run")


def _informational(gate: DeclaredGate, family: str, tests: Sequence[str]) -> GateRecord:
    """Return the outcome of a gate that the policy makes informational for a family of models."""
    reason = f"the policy was not validated on this family of models ({family or 'not stated'})"
    return _with_state(gate, "informational", reason, tests)


def _with_state(gate: DeclaredGate, state: GateState, reason: str, tests: Sequence[str]) -> GateRecord:
    return GateRecord(
        model=gate.model,
        data=gate.data,
        check=gate.check,
        state=state,
        reason=reason,
        test=tests[0] if tests else gate.test,
    )


def _swallowed(results: Sequence[str]) -> str:
    """Return a clause that says why no test failed although the verdict of the gate blocks; "" if a test failed."""
    if "failed" in results or not results:
        return ""
    what = "passed: call check.enforce() in the test" if "passed" in results else "was skipped or expected to fail"
    return f"; its test {what}"


def _exception_for(gate: DeclaredGate, exceptions: Sequence[PolicyException]) -> PolicyException | None:
    for exception in exceptions:
        if exception.check == gate.check and exception.model in ("", gate.model) and exception.data in ("", gate.data):
            return exception
    return None
