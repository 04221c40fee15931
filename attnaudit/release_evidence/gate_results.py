"""The result of a run as the predicate test-result of in-toto expresses it: passed, warned or failed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from attnaudit.errors import ReportError
from attnaudit.formatting import plural, sentence
from attnaudit.model_families import blocked_models
from attnaudit.records import GateRecord, RunRecord
from attnaudit.report.unvalidated import unvalidated_sentence
from attnaudit.run.verification.consistency import place
from attnaudit.run.verification.expectations import run_objections, sample_lines

Result: TypeAlias = Literal["PASSED", "WARNED", "FAILED"]

#: The exit statuses of pytest after which every selected test ran.
RAN_TO_ITS_END = (0, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class GateResults:
    """The result of a run. Every gate of the run is in exactly one of the lists.

    Attributes:
        result: "FAILED" if `attnaudit verify` would refuse the run no matter which model and data it expects. Otherwise
            "WARNED" if there are warnings, and "PASSED" if there are none.
        passed: The gates with the verdict "pass".
        warned: The gates that did not have to pass: they are excepted by the policy, informational for the family of
            the model, or inconclusive where the policy allows it. The list also contains the gates whose thresholds
            were applied to a family on which they were not validated.
        failed: The gates that failed or have no verdict. If the policy was not validated on the family of the model,
            and blocks such models, the list contains all gates.
        reasons: Why the result is "FAILED", one or two sentences each; empty otherwise. Failed gates come first.
        warnings: The reservations about the result, one or two sentences each. A failed run can have warnings too.
    """

    result: Result
    passed: tuple[str, ...]
    warned: tuple[str, ...]
    failed: tuple[str, ...]
    reasons: tuple[str, ...]
    warnings: tuple[str, ...]


def gate_results(run: RunRecord, *, further_warnings: Sequence[str] = ()) -> GateResults:
    """Return the result of a complete run (see `require_complete`).

    Args:
        run: The record of the run.
        further_warnings: Reservations that do not follow from the record, such as labels that were not audited.
    """
    lists: dict[str, list[str]] = {"passed": [], "warned": [], "failed": []}
    for gate in run.gates:
        lists[_list_of(gate, run)].append(place(gate))
    objections, warnings = run_objections(run), (*_warnings(run), *further_warnings)
    return GateResults(
        result="FAILED" if objections or lists["failed"] else "WARNED" if warnings else "PASSED",
        passed=tuple(lists["passed"]),
        warned=tuple(lists["warned"]),
        failed=tuple(lists["failed"]),
        reasons=tuple(_reasons(run) or objections),
        warnings=warnings,
    )


def require_complete(run: RunRecord, folder: Path) -> None:
    """Require that a finished run audited exactly one model, and judged everything that it had to judge.

    Args:
        run: The content of audit.json.
        folder: The folder of the run.

    Raises:
        ReportError: The run is partial, decided nothing, was interrupted, or audited no model or several. The message
            says what to do.
    """
    where = folder / "audit.json"
    left_out = sum(gate.state == "not selected" for gate in run.gates)
    if left_out or run.files_left_out:
        what = [plural(left_out, "gate")] if left_out else []
        what += [plural(len(run.files_left_out), "test file")] if run.files_left_out else []
        raise ReportError(
            f"{where}: the run is partial, because it left out {' and '.join(what)}. Expected a run of all gates. Run "
            "the audit again without the options that leave gates or files out."
        )
    if run.exit_status not in RAN_TO_ITS_END:
        raise ReportError(
            f"{where}: pytest ended with exit status {run.exit_status}, so the run is not complete; expected 0 or 1. "
            "Look for the reason in the output of pytest, and run the audit again."
        )
    if all(gate.state == "informational" for gate in run.gates):
        raise ReportError(
            f"{where}: the run has no gate that decides anything, so there is no result to state. Give at least one "
            "check of the policy a threshold, and run the audit again."
        )
    if run.effective_policy is None:
        raise ReportError(f"{where}: the run does not contain its policy. Run the audit again.")
    if len(run.models) != 1:
        audited = ", ".join(model.name for model in run.models) or "no model"
        several = len({model.source.rpartition("[")[0] or model.source for model in run.models}) == 1
        labels = bool(run.models) and all(one.target is not None and one.target.kind == "label" for one in run.models)
        fix = "Audit only the model that is to be released."
        if several and labels:
            example = f"--model '{run.models[0].source}'"
            fix = f"Each audited label counts as one model. Audit one label per run, as in {example}."
        raise ReportError(
            f"{where}: the run audited {audited}; expected one model, because the evidence is about the files of one "
            f"model. {fix}"
        )


def _list_of(gate: GateRecord, run: RunRecord) -> str:
    rules = {one.unvalidated for one in run.unvalidated if one.model == gate.model and gate.check in one.checks}
    if gate.state in ("failed", "open") or "block" in rules:
        return "failed"
    if gate.state == "passed" and not rules and _verdict(gate, run) == "pass":
        return "passed"
    return "warned"


def _verdict(gate: GateRecord, run: RunRecord) -> str:
    key = (gate.model, gate.data, gate.check)
    return next((record.verdict for record in run.checks if record.key[:3] == key), "missing")


def _reasons(run: RunRecord) -> list[str]:
    """Return the reasons that the record of a run gives for not passing."""
    words = {"failed": "failed", "open": "no verdict"}
    found = [
        f"{place(gate)}: {words[gate.state]}: {gate.reason.rstrip('.')}." for gate in run.gates if gate.state in words
    ]
    found += [unvalidated_sentence(one, run.declared_policy) for one in blocked_models(run.unvalidated)]
    return [*found, sentence(run.problem.rstrip("."))] if run.problem else found


def _warnings(run: RunRecord) -> list[str]:
    found = []
    for gate in run.gates:
        if gate.state == "excepted":
            found.append(f"{place(gate)}: the policy excepts this gate: {gate.reason.rstrip('.')}.")
        elif gate.state == "informational":
            found.append(f"{place(gate)}: this gate is informational: {gate.reason.rstrip('.')}.")
        elif gate.state == "passed" and _verdict(gate, run) != "pass":
            found.append(f"{place(gate)}: the verdict is {_verdict(gate, run)}, which the settings of the gate allow.")
    found += [unvalidated_sentence(one, run.declared_policy) for one in run.unvalidated if one.unvalidated == "gate"]
    found += [sentence(line) for line in sample_lines(run)]
    if run.seed:
        found.append(f"The run used the seed {run.seed}. The default is 0.")
    found += [
        f"{failure.test} was run again after a failure: {failure.reason.rstrip('.')}."
        for failure in run.earlier_failures
    ]
    return found
