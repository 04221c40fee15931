"""Check that a run permits a release: that it passed, and that it audited what was expected."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from attnaudit.checks.sequential import is_settled
from attnaudit.formatting import plural
from attnaudit.model_families import audited_family, blocked_models
from attnaudit.records import CheckRecord, DataRecord, GateRecord, GateState, ModelRecord, RunRecord
from attnaudit.report.audited_rows import audited_rows, drawn
from attnaudit.report.unvalidated import unvalidated_sentence
from attnaudit.run.verification.consistency import place
from attnaudit.run.verification.declared_checks import is_gate, tables_by_id
from attnaudit.verdict_text import headline

RUN_AGAIN = "Run the audit again."
#: How far the clocks of two machines may differ.
CLOCKS = timedelta(minutes=5)


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """A model or data set that a run must have audited.

    Attributes:
        given: The value of the option as it was given.
        name: The name in the run; None to accept any name, because the hash identifies the model or data set.
        sha256: The SHA-256 hash; None to accept any.
        family: The family of the model; None to accept any. The effect of a policy can depend on the family.
    """

    given: str
    name: str | None
    sha256: str | None
    family: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectations:
    """The models and data sets that a run must have audited, and the settings that it must have used.

    Attributes:
        models: The models. The run must have audited all of them and no others.
        data: The data sets. The run must have audited all of them and no others; empty to accept any.
        policy_sha256: The hash of the effective policy; None to accept any.
        after: The earliest time at which the run may have begun; None to accept any.
        version: The version of attnaudit; None to accept any.
        seed: The seed. It must be given: if any seed were accepted, a user could try seeds until a gate passes.
        unit: The units into which texts are divided for all statistics: "tokens", "words" or "sources".
        allow_sample: Whether a sample of the rows may have been audited.
        baselines: The name of each baseline -> its hash; None to accept any.
    """

    models: Sequence[Expected]
    data: Sequence[Expected] = ()
    policy_sha256: str | None = None
    after: datetime | None = None
    version: str | None = None
    seed: int = 0
    unit: str = "tokens"
    allow_sample: bool = False
    baselines: Mapping[str, str] | None = None


def run_objections(run: RunRecord) -> list[str]:
    """List the reasons why a run cannot verify any release, whatever it was expected to audit."""
    return [*_gate_objections(run), *_status_objections(run)]


def objections(run: RunRecord, expected: Expectations) -> list[str]:
    """List the reasons why a release is not verified by a run. Each reason says what to do.

    Args:
        run: The record of a run that has ended and was not edited.
        expected: What the run must have audited.
    """
    found = run_objections(run)
    found += _setting_objections(run, expected)
    models = [
        replace(one, family=None if one.family is None else audited_family(one.family, run.unit))
        for one in expected.models
    ]
    found += _compare(run.models, models, option="--model", noun="model")
    if expected.data:
        found += _compare(run.data, expected.data, option="--data", noun="data set")
    policy = run.effective_policy
    if expected.policy_sha256 is not None and (policy is None or policy.sha256 != expected.policy_sha256):
        file = f", {run.declared_policy.file}" if run.declared_policy else ""
        actual = "none" if policy is None else f"{policy.sha256}{file}"
        found.append(
            f"The run applied a policy with another hash ({actual}) than --policy ({expected.policy_sha256}). If the "
            "run should have applied the policy that --policy names, run the audit again with it. Otherwise, give "
            "--policy the file that the run applied."
        )
    if expected.version is not None and run.attnaudit != expected.version:
        found.append(
            f"The run used attnaudit {run.attnaudit}, expected {expected.version} (--attnaudit). Install the expected "
            "version and run the audit again."
        )
    if expected.baselines is not None:
        found += _baseline_objections(run, expected.baselines)
    if expected.after is not None:
        found += _time_objections(run, expected.after)
    return found


def _gate_objections(run: RunRecord) -> list[str]:
    records = {one.key[:3]: one for one in run.checks}
    found = [
        f"{gate.check} for {gate.model} on {gate.data}: "
        f"{'no verdict' if gate.state == 'open' else gate.state}: {gate.reason.removeprefix('fail: ').rstrip('.')}. "
        f"{_remedy(gate, records.get((gate.model, gate.data, gate.check)))}".rstrip()
        for gate in run.gates
        if gate.state not in ("passed", "excepted", "informational")
    ]
    found += [unvalidated_sentence(one, run.declared_policy) for one in blocked_models(run.unvalidated)]
    states: dict[str, set[GateState]] = {}
    for gate in run.gates:
        states.setdefault(gate.model, set()).add(gate.state)
    all_excepted = all(gate.state == "excepted" for gate in run.gates)
    for model, of_model in sorted(states.items()):
        if of_model == {"informational"}:
            found.append(
                f"{model}: all gates are informational for this family of models, so nothing was decided about the "
                "model. Use a policy that was validated on the family."
            )
        elif of_model <= {"excepted", "informational"} and not all_excepted:
            found.append(
                f"{model}: its gates are all excepted or informational, so nothing was decided about the model. Remove "
                "an exception."
            )
    found += [
        f"{file}: this test file was left out ({reason}), so its gates are unknown. Run the audit again with this "
        "file, or write all gates to a policy file and give it with --policy."
        for file, reason in run.files_left_out.items()
    ]
    if not run.gates:
        remedy = "" if run.problem else " Give at least one check of the policy a threshold."
        found.append(f"The run has no gate, so nothing was decided.{remedy}")
    elif all_excepted:
        found.append("The policy excepts every gate, so nothing was decided. Remove an exception from the policy.")
    return found


_REMEDIES = {
    "failed": "Improve the model, or do not present its attention as a reason.",
    "open": f"Fix the reason. {RUN_AGAIN}",
    "not selected": "Run the audit again without the option that left the gate out.",
}


#: Verdict on a failed gate -> remedy.
_REMEDIES_OF_VERDICTS = {
    "inconclusive": "Audit more rows, or improve the model.",
    "undefined": "The report says what is missing.",
}


def _remedy(gate: GateRecord, record: CheckRecord | None) -> str:
    """Return what to do about a gate that did not pass; "" if its reason already says so."""
    if record is not None and record.comparison is not None and record.comparison.not_comparable:
        return ""
    if gate.state == "failed" and record is not None and record.verdict in _REMEDIES_OF_VERDICTS:
        return _REMEDIES_OF_VERDICTS[record.verdict]
    return _REMEDIES[gate.state]


def _status_objections(run: RunRecord) -> list[str]:
    found = []
    # The same audit would fail again, because it always gives the same numbers.
    explained = not run.problem and any(gate.state == "failed" for gate in run.gates)
    if run.status != "passed":
        problem = f": {run.problem.rstrip('.')}" if run.problem else ""
        again = "" if explained else f" {RUN_AGAIN}"
        found.append(f"The status of the run is '{run.status}', expected 'passed'{problem}.{again}")
    if run.exit_status != 0:
        again = "" if explained and run.exit_status == 1 else ", and run the audit again"
        found.append(f"pytest ended with exit status {run.exit_status}, expected 0. See the output of pytest{again}.")
    return found


def _setting_objections(run: RunRecord, expected: Expectations) -> list[str]:
    """List the unexpected settings (seed, unit or sample) that can let a gate pass that would otherwise fail."""
    found = []
    if run.seed != expected.seed:
        found.append(
            f"The run used the seed {run.seed}, expected {expected.seed}. Run the audit again with --audit-seed "
            f"{expected.seed}, or give --seed {run.seed} if this seed was agreed on."
        )
    if run.unit != expected.unit:
        found.append(
            f"The run computed statistics over {run.unit}, expected {expected.unit}. Run the audit again with "
            f"--audit-unit {expected.unit}, or give --unit {run.unit}."
        )
    if not expected.allow_sample:
        found += [
            f"Only {audited_rows(one)} of {one.name} were audited ({drawn(one)}). Audit all rows, without "
            "--audit-max-instances, or give --allow-sample."
            for one in run.data
            if one.is_sample and not _is_sequential(run, one.name)
        ]
    return found


def _is_sequential(run: RunRecord, data: str) -> bool:
    """Return whether all gates on a data set were decided by confidence sequences, as their policy requires.

    Confidence sequences are valid after every row, so a gate that has passed needs no other rows. A gate that is
    inconclusive does, even if its policy lets it pass with a warning.
    """
    tables = [table for several in tables_by_id(run.effective_policy, []).values() for table in several]
    gates = [table for table in tables if is_gate(table)]
    judged = [one for one in run.checks if one.data == data and one.severity == "gate"]
    wanted = bool(gates) and all(table.get("sampling") == "sequential" for table in gates)
    return wanted and bool(judged) and all(map(is_settled, judged))


def _baseline_objections(run: RunRecord, expected: Mapping[str, str]) -> list[str]:
    """List the gates that were compared with other baselines, and the expected baselines that were not used."""
    compared = [(record, record.comparison) for record in run.checks if record.comparison is not None]
    if not compared:
        return ["The run was not compared with a baseline (--baseline). Add not_worse_than_baseline_by to its policy."]
    names = {comparison.baseline_name for _, comparison in compared}
    return [
        *(
            f"The baseline of {record.check} for {record.model} on {record.data} was "
            f"{comparison.baseline_sha256}, expected {expected.get(comparison.baseline_name, 'none')} (--baseline). "
            f"{RUN_AGAIN}"
            for record, comparison in compared
            if comparison.baseline_sha256 != expected.get(comparison.baseline_name)
        ),
        *(
            f"The run was not compared with the baseline '{name}', although the folder of --baseline contains this "
            f"baseline. Add '{name}' to compare_with in the policy of the run, or remove the file of the baseline."
            for name in sorted(expected.keys() - names)
        ),
    ]


def _compare(
    actual: Sequence[ModelRecord] | Sequence[DataRecord], expected: Sequence[Expected], *, option: str, noun: str
) -> list[str]:
    """List the models or data sets that are missing, unexpected, or have another hash."""
    found = []
    unmatched = {one.name: one for one in actual}
    for wanted in expected:
        match = next((one for one in unmatched.values() if _is(one, wanted)), None)
        if match is not None:
            del unmatched[match.name]
            if isinstance(match, ModelRecord) and wanted.family not in (None, match.family):
                found.append(
                    f"{option} {wanted.given}: the run recorded the family '{match.family}', but the model is of the "
                    f"family '{wanted.family}'. {RUN_AGAIN}"
                )
            continue
        if name := _named_without_hash(wanted, [*unmatched]):
            found.append(
                f"{option} {wanted.given}: expected a SHA-256 hash of 64 hexadecimal digits after '='. audit.json "
                "contains the whole hash."
            )
            del unmatched[name]
            continue
        same_name = next((one for one in actual if one.name == wanted.name), None)
        if same_name is not None:
            reason = f"its hash is {same_name.sha256}, expected {wanted.sha256}"
        elif wanted.name is None:
            audited = ", ".join(f"{one.name} ({one.sha256})" for one in actual) or "none"
            reason = f"the run audited no {noun} with this hash ({wanted.sha256}), only {audited}"
        else:
            audited = f"only {', '.join(one.name for one in actual)}" if actual else "and audited none"
            reason = f"the run has no such {noun}, {audited}"
        found.append(f"{option} {wanted.given}: {reason}. Audit the expected {noun}, or correct {option}.")
        unmatched.pop(str(wanted.name), None)
    for other in unmatched.values():
        found.append(
            f"The run also audited the {noun} {other.name}, which was not expected. Add {option} {other.name}, or "
            f"audit only the expected {noun}."
        )
    return found


def _named_without_hash(wanted: Expected, names: Sequence[str]) -> str:
    """Return the name before a text after "=" that is not a whole hash; "" if the option has another form.

    Args:
        wanted: The model or data set.
        names: The names in the run.
    """
    name, equals, _ = wanted.given.rpartition("=")
    return name if equals and wanted.name == wanted.given and name in names else ""


def _is(record: ModelRecord | DataRecord, wanted: Expected) -> bool:
    return wanted.name in (None, record.name) and wanted.sha256 in (None, record.sha256)


def _time_objections(run: RunRecord, after: datetime) -> list[str]:
    try:
        created = datetime.fromisoformat(run.created)
    except ValueError:
        return [f"The time at which the run began is not valid: '{run.created}'. {RUN_AGAIN}"]
    if created.tzinfo is None:
        return [f"The time at which the run began has no time zone: {run.created}. {RUN_AGAIN}"]
    if created < after:
        return [
            f"The run began at {run.created}, before {after.isoformat(timespec='seconds')} (--after): the audit of "
            "this release did not write this run. Look for the reason in the output of pytest, and run the audit again."
        ]
    now = datetime.now(UTC)
    if created > now + CLOCKS:
        return [
            f"The run began at {run.created}, in the future (it is now {now.isoformat(timespec='seconds')}), so "
            "--after cannot show that it is new. Set the clocks of both machines, and run the audit again."
        ]
    return []


def exception_lines(run: RunRecord) -> list[str]:
    """Return a line for each gate that the policy excepts, with the reason."""
    return [
        f"excepted: {gate.check} for {gate.model} on {gate.data}: {gate.reason}"
        for gate in run.gates
        if gate.state == "excepted"
    ]


def allowed_lines(run: RunRecord) -> list[str]:
    """Return a line for each gate that is inconclusive, but passes because the policy allows it."""
    return [f"inconclusive, but allowed by the policy: {place(one)}: {headline(one)}" for one in _allowed(run)]


def _allowed(run: RunRecord) -> list[CheckRecord]:
    gates = {(gate.model, gate.data, gate.check) for gate in run.gates if gate.state == "passed"}
    return [one for one in run.checks if one.key[:3] in gates and one.verdict == "inconclusive"]


def unvalidated_lines(run: RunRecord) -> list[str]:
    """Return a line for each model whose gates have thresholds that were not validated on its family."""
    return [unvalidated_sentence(one, run.declared_policy) for one in run.unvalidated if one.unvalidated == "gate"]


def sample_lines(run: RunRecord) -> list[str]:
    """Return a line for each data set of which only a sample was audited."""
    return [
        f"only a sample of {one.name} was audited: {audited_rows(one)}, {drawn(one)}"
        for one in run.data
        if one.is_sample
    ]


def summary_line(run: RunRecord) -> str:
    """Return what a verified run decided, as a clause."""
    excepted, allowed = sum(gate.state == "excepted" for gate in run.gates), len(_allowed(run))
    passed = plural(len(run.gates) - excepted - allowed, "gate")
    undecided = f", {allowed} inconclusive but allowed by the policy" if allowed else ""
    exceptions = f", {excepted} excepted by the policy" if excepted else ""
    models, data = (", ".join(one.name for one in many) for many in (run.models, run.data))
    return f"{passed} passed{undecided}{exceptions}, for {models} on {data}"
