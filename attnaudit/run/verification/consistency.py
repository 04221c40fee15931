"""Find contradictions in the record of a run, between its values, verdicts, gates, policy and status."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from attnaudit.checks.paired_gate import BASELINE_NAME
from attnaudit.model_families import informational_gates, unvalidated_models
from attnaudit.precision import FLOAT32
from attnaudit.records import CheckRecord, GateRecord, Interval, RunRecord
from attnaudit.run.gates import run_status
from attnaudit.run.verification.declared_checks import (
    LIMITS,
    Table,
    is_gate,
    same_arguments,
    same_limit,
    tables_by_id,
    tables_of,
)
from attnaudit.statistics.verdict import blocks, decide_again, fail_confidence

#: How far rounding may move a value outside its interval, relative to the size of the value.
ROUNDING = 1e-9


def contradictions(run: RunRecord) -> list[str]:
    """List the contradictions in the record of a run that has ended, one clause each.

    Every verdict must follow from its value, intervals and threshold. The state of every gate must follow from the
    verdicts, and the status of the run must follow from the states of the gates. The thresholds must be those of the
    effective policy. Each gate of this policy must be listed once for every model and data set.
    """
    tables = tables_by_id(run.effective_policy, run.checks)
    found = [f"{place(record)}: {what}" for record in run.checks for what in _of_check(record, run, tables)]
    found += _of_gates(run, tables)
    found += _of_families(run)
    found += _of_status(run)
    return found


def place(record: CheckRecord | GateRecord) -> str:
    """Return the name that messages use for a case."""
    return f"{record.check} for {record.model} on {record.data}"


def _of_check(record: CheckRecord, run: RunRecord, tables: dict[str, list[Table]]) -> Iterator[str]:
    audited = {data.name: data.audited for data in run.data}
    if record.model not in {model.name for model in run.models} or record.data not in audited:
        yield "its model or data set is not among those of the run"
    if record.seed != run.seed:
        yield f"its seed is {record.seed}, but the seed of the run is {run.seed}"
    counted = record.n_defined + sum(record.undefined.values())
    if counted != record.n or record.n_defined < 0 or min(record.undefined.values(), default=1) < 1:
        undefined = sum(record.undefined.values())
        yield f"{record.n_defined} defined and {undefined} undefined values do not add up to {record.n}"
    if record.n > audited.get(record.data, record.n):
        yield f"it has {record.n} instances, but only {audited[record.data]} were audited"
    yield from _of_unseen_mixers(record, run)
    yield from _of_rounding(record, run)
    yield from _of_intervals(record)
    yield from _of_comparison(record, tables_of(record, tables, run))
    if tables and record.check not in tables:
        yield "the effective policy has no such check"
    yield from _of_arguments(record, tables_of(record, tables, run))
    if run.effective_policy is not None and record.severity == "gate":
        gates = len(_declared_gates(tables))
        if record.gated != gates:
            yield f"its confidence is corrected for {record.gated} gates, but the policy has {gates}"
    verdict, _ = decide_again(record)
    if verdict != record.verdict:
        yield f"its verdict is '{record.verdict}', but value, interval and threshold give '{verdict}'"
    expected = blocks(record.verdict, severity=record.severity, inconclusive=record.inconclusive)
    if expected != record.blocks:
        yield f"it is recorded as {'' if record.blocks else 'not '}blocking, but its verdict is '{record.verdict}'"


def _of_unseen_mixers(record: CheckRecord, run: RunRecord) -> Iterator[str]:
    model = next((model for model in run.models if model.name == record.model), None)
    accepts = record.parameters.get("unseen_mixers") == "accept"
    if model is not None and record.unseen_mixers != ([] if accepts else model.unseen_mixers):
        yield "the modules that it leaves out (unseen_mixers) are not those that are recorded for the model"


def _of_rounding(record: CheckRecord, run: RunRecord) -> Iterator[str]:
    model = next((model for model in run.models if model.name == record.model), None)
    if model is None or record.severity != "gate":
        return
    recorded = FLOAT32 if record.rounding is None else record.rounding.precision
    if recorded != model.precision:
        found = "not recorded" if record.rounding is None else f"recorded for {recorded}"
        yield f"the model was audited in {model.precision}, but the effect of rounding is {found}"


def _of_intervals(record: CheckRecord) -> Iterator[str]:
    interval, wider = record.interval, record.fail_interval
    if record.value is None and interval is not None:
        yield "it has an interval but no value"
    if (wider is not None) != (interval is not None and record.requirement is not None):
        yield "it has only one of the two intervals that decide its verdict"
    if record.detectable_change is not None and wider is None:
        yield "it has a detectable change, but lacks the threshold or the interval from which this change is computed"
    if interval is None:
        return
    if record.value is not None and not _contains(interval, record.value, record.value):
        yield f"its value {record.value:g} is not in its interval"
    if wider is None:
        return
    if not _contains(wider, interval.low, interval.high):
        yield "the interval that decides a failure does not contain the other interval"
    gated = record.gated if record.severity == "gate" else 1
    if not _equal(wider.confidence, fail_confidence(interval.confidence, gated)):
        yield (
            f"the confidence of the interval that decides a failure is {wider.confidence:g}, which is wrong for "
            f"{gated} gates"
        )


def _of_comparison(record: CheckRecord, declared: list[Table]) -> Iterator[str]:
    """Check a paired gate: its value against the two values that it compared, and its baseline against the policy."""
    comparison = record.comparison
    names = {table.get(BASELINE_NAME) for table in declared}
    if declared and names != {None if comparison is None else comparison.baseline_name}:
        yield "the baseline that it was compared with is not the one that the effective policy declares"
    if comparison is None:
        return
    candidate, baseline = comparison.candidate, comparison.baseline
    if (baseline is None) != bool(comparison.not_comparable) or (
        baseline is not None and not comparison.baseline_sha256
    ):
        yield "the value of the baseline, its hash and the reason why there is no value contradict each other"
    expected = None if candidate is None or baseline is None else candidate - baseline
    if (expected is None) != (record.value is None) or not _equal(record.value or 0.0, expected or 0.0):
        yield "its value is not the difference between the two values that it compared"


def _of_arguments(record: CheckRecord, declared: list[Table]) -> Iterator[str]:
    """Check that a record matches the arguments of its check, and that they match the effective policy."""
    given = record.parameters
    if declared and not any(same_arguments(table, given) for table in declared):
        yield "its arguments differ from those in the effective policy"
    for name, actual in (("severity", record.severity), ("inconclusive", record.inconclusive)):
        if given.get(name, actual) != actual:
            yield f"its {name} is '{actual}', but its arguments say '{given[name]}'"
    if (
        record.interval is not None
        and given.get("confidence", record.interval.confidence) != record.interval.confidence
    ):
        yield f"the confidence of its interval is {record.interval.confidence:g}, not {given['confidence']}"
    limits = {name: given[name] for name in LIMITS if given.get(name) is not None}
    required = record.requirement
    if required is None:
        if any(not isinstance(limit, str) for limit in limits.values()):
            yield "its threshold is missing"
    elif any(name in given for name in LIMITS):
        limit = required.value if required.expression is None else required.expression
        if list(limits) != [required.direction] or not same_limit(limit, limits[required.direction]):
            yield f"its threshold is {required.direction} {limit}, but its arguments are {limits}"


def _of_gates(run: RunRecord, tables: dict[str, list[Table]]) -> Iterator[str]:
    listed = Counter((gate.model, gate.data, gate.check) for gate in run.gates)
    models = sorted({*(model.name for model in run.models), *(gate.model for gate in run.gates)})
    data = sorted({*(one.name for one in run.data), *(gate.data for gate in run.gates)})
    declared = _declared_gates(tables)
    for key in ((model, name, check) for check in declared for model in models for name in data):
        if listed[key] != 1:
            model, name, check = key
            yield f"{check} for {model} on {name}: the gate is listed {listed[key]} times, expected once"
    records = {record.key[:3]: record for record in run.checks}
    informational = informational_gates(run.effective_policy, run.models)
    for gate in run.gates:
        if gate.check not in declared:
            yield f"{place(gate)}: the effective policy has no such gate"
        if (gate.state == "informational") != ((gate.model, gate.check) in informational):
            yield f"{place(gate)}: it is recorded as {gate.state}, which is wrong for the family of the model"
        for what in _of_gate(gate, records.get((gate.model, gate.data, gate.check)), run):
            yield f"{place(gate)}: {what}"
    for record in run.checks:
        if record.severity == "gate" and not listed[record.key[:3]]:
            yield f"{place(record)}: it is a gate, but not in the list of gates"


def _declared_gates(tables: dict[str, list[Table]]) -> list[str]:
    """Return the ids of the gates of a policy."""
    return [check for check, several in tables.items() if any(map(is_gate, several))]


def _of_gate(gate: GateRecord, record: CheckRecord | None, run: RunRecord) -> Iterator[str]:
    if gate.state == "passed":
        if record is None:
            yield "it is recorded as passed, but has no verdict"
        elif record.blocks or record.severity != "gate":
            yield f"it is recorded as passed, but its verdict is '{record.verdict}'"
        if gate.reason:
            yield "it passed, but has a reason for not passing"
        return
    if record is not None and not record.blocks and gate.state != "informational":
        yield f"it is recorded as {gate.state}, but its verdict '{record.verdict}' does not block"
    if gate.state == "failed" and record is None:
        yield "it is recorded as failed, but has no verdict"
    if gate.state in ("open", "not selected") and record is not None:
        yield f"it is recorded as {gate.state}, but has the verdict '{record.verdict}'"
    if gate.state == "excepted" and not _is_excepted(gate, run):
        yield "it is recorded as excepted, but the policy has no exception for it"
    if not gate.reason:
        yield f"it is {gate.state} without a reason"


def _is_excepted(gate: GateRecord, run: RunRecord) -> bool:
    return run.effective_policy is not None and any(
        one.check == gate.check and one.model in ("", gate.model) and one.data in ("", gate.data)
        for one in run.effective_policy.exceptions
    )


def _of_families(run: RunRecord) -> Iterator[str]:
    """Check the list of the models of families on which the policy was not validated."""
    if run.unvalidated != unvalidated_models(run.effective_policy, run.models):
        yield "the list of unvalidated models contradicts the policy or the families of the models"


def _of_status(run: RunRecord) -> Iterator[str]:
    expected = run_status(run.gates, files_left_out=run.files_left_out, unvalidated=run.unvalidated)
    if run.status not in (expected, "failed"):
        yield f"the status is '{run.status}', but the gates give '{expected}'"
    succeeded = run.exit_status == 0
    if run.status == "failed" and succeeded:
        yield "the status is 'failed', but the exit status is 0"
    if run.status == "passed" and not succeeded:
        yield f"the status is 'passed', but the exit status is {run.exit_status}"
    if run.status == "passed" and run.problem:
        yield "the status is 'passed', but the run had a problem"
    if run.status == "passed" and not run.measurements_sha256:
        yield "the status is 'passed', but there are no measurements"
    if run.status == "partial" and succeeded != (run.allow_partial or not run.ci):
        yield f"the status is 'partial', but the exit status is {run.exit_status}"


def _contains(interval: Interval, low: float, high: float) -> bool:
    """Return whether an interval contains another one, apart from rounding."""
    slack = ROUNDING * max(1.0, abs(low), abs(high))
    return interval.low - slack <= low and high <= interval.high + slack


def _equal(first: float, second: float) -> bool:
    return abs(first - second) <= ROUNDING
