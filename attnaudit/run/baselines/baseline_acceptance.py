"""Decide whether a finished run may be accepted as a baseline, and compute the content of the baseline file."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from attnaudit.checks.check_arguments import MARGIN
from attnaudit.checks.evidence import mean_of
from attnaudit.checks.paired_gate import PairedGate, rounded_numbers
from attnaudit.errors import ReportError
from attnaudit.formatting import number
from attnaudit.model_families import blocked_models
from attnaudit.records import (
    BASELINE_FORMAT,
    BASELINE_NAMES,
    Baseline,
    BaselineCheck,
    BaselineName,
    BaselineSubject,
    CheckRecord,
    GateRecord,
    RunRecord,
)
from attnaudit.report.unvalidated import unvalidated_sentence
from attnaudit.run.baselines.baseline_file import sealed
from attnaudit.run.judge_models import code_fingerprint
from attnaudit.run.verification.integrity import MEASUREMENTS
from attnaudit.run.verification.stored_numbers import read_measurements, recomputable


def not_passed(run: RunRecord) -> list[str]:
    """List the gates that did not pass, one clause each, except paired gates that were not comparable."""
    return [
        f"{gate.check} for {gate.model} on {gate.data}: {gate.state}: {gate.reason.rstrip('.')}"
        for gate in run.gates
        if gate.state not in ("passed", "excepted", "informational") and not _not_comparable(gate, run)
    ]


def refusals(run: RunRecord, *, version: str) -> list[str]:
    """List the reasons why a run cannot be accepted, even if all of its gates passed. Each is one or two sentences.

    Args:
        run: The record of a run that has ended and was not edited.
        version: The installed version of attnaudit, which computes the numbers of the baseline.
    """
    found = []
    selected = [gate for gate in run.gates if gate.state == "not selected"]
    if run.status == "partial" or selected or run.files_left_out:
        found.append("The run is partial. Audit every gate and every test file.")
    if run.problem:
        found.append(f"The run had a problem: {run.problem.rstrip('.')}. Fix it, and run the audit again.")
    found += [unvalidated_sentence(one, run.declared_policy) for one in blocked_models(run.unvalidated)]
    if not _pairs(run):
        found.append(
            f"The policy of the run compares nothing with a baseline. Add a [baseline] table and {MARGIN} to the "
            "policy, and run the audit again."
        )
    elif run.status == "failed" and all(gate.state in ("passed", "excepted", "informational") for gate in run.gates):
        found.append("All gates passed, but the run failed. Look for the reason in the output of pytest.")
    code = code_fingerprint()
    if any(record.comparison and record.comparison.measures_sha256 != code for record in run.checks):
        found.append(
            f"The measuring code has changed since the run, which used attnaudit {run.attnaudit}; version {version} is "
            "installed. Install the version of the run, or run the audit again with the installed version."
        )
    return found


def baseline_of(run: RunRecord, folder: Path, baseline_name: BaselineName) -> Baseline:
    """Return the baseline of a run.

    Args:
        run: The record of a run that may be accepted.
        folder: The folder of the run.
        baseline_name: The baseline to make: "last" for the last release, "pinned" for a release that is seldom
            replaced.

    Raises:
        ReportError: A value is undefined or has no interval, or measurements.parquet cannot be read.
    """
    models = {one.name: one.sha256 for one in run.models}
    data = {one.name: one for one in run.data}
    subjects = []
    for (model, name), gates in sorted(_pairs(run).items()):
        checks, values = _numbers(run, folder, gates)
        subjects.append(
            BaselineSubject(
                model=model,
                model_sha256=models[model],
                data=name,
                data_sha256=data[name].sha256,
                sample_sha256=data[name].sample_sha256,
                checks=checks,
                values=values,
            )
        )
    return sealed(
        Baseline(
            format=BASELINE_FORMAT,
            baseline_name=baseline_name,
            run=run.run,
            created=run.created,
            attnaudit=run.attnaudit,
            measures_sha256=code_fingerprint(),
            policy_sha256=run.effective_policy.sha256 if run.effective_policy else "",
            seed=run.seed,
            unit=run.unit,
            not_passed=not_passed(run),
            subjects=subjects,
            sha256="",
        )
    )


def description(baseline: Baseline, present: Baseline | None) -> Iterator[str]:
    """Yield lines that show what is accepted, and how it differs from the baseline that it replaces.

    Args:
        baseline: The new baseline.
        present: The baseline that it replaces; None if there is none.
    """
    baseline_name = baseline.baseline_name
    yield f"baseline '{baseline_name}' ({BASELINE_NAMES[baseline_name]}): run {baseline.run} of {baseline.created}"
    old = {(one.model, one.data): one for one in present.subjects} if present else {}
    for subject in baseline.subjects:
        known = old.pop((subject.model, subject.data), None)
        model, data = subject.model_sha256[:12], subject.data_sha256[:12]
        yield f"{subject.model} (sha256 {model}) on {subject.data} (sha256 {data})"
        before = {one.check: one.value for one in known.checks} if known else {}
        for check in subject.checks:
            was = f", was {number(before[check.check])}" if check.check in before else ", new"
            interval = f"[{number(check.low)}, {number(check.high)}]"
            yield f"  {check.check}: {number(check.value)} {interval}{was if present else ''}"
        for gone in sorted(before.keys() - {one.check for one in subject.checks}):
            yield f"  {gone}: removed"
        if known is not None:
            yield from _changes(subject, known)
    for model, name in old:
        yield f"{model} on {name}: removed"
    if present is not None:
        names = ("policy_sha256", "measures_sha256", "attnaudit", "seed", "unit")
        for field in (one for one in names if getattr(baseline, one) != getattr(present, one)):
            yield f"{field} changes: {getattr(present, field)} → {getattr(baseline, field)}"
    for gate in baseline.not_passed:
        yield f"accepted although it did not pass: {gate}"


def _changes(subject: BaselineSubject, known: BaselineSubject) -> Iterator[str]:
    """Yield a line if the model differs from that of the `known` baseline, and a line if the data differ."""
    if subject.model_sha256 != known.model_sha256:
        yield f"  the model changes: sha256 {known.model_sha256[:12]} → {subject.model_sha256[:12]}"
    if (subject.data_sha256, subject.sample_sha256) != (known.data_sha256, known.sample_sha256):
        added, removed = (len(a.values.keys() - b.values.keys()) for a, b in ((subject, known), (known, subject)))
        yield f"  the data change: {added:,} instances are added, {removed:,} are removed"


def _not_comparable(gate: GateRecord, run: RunRecord) -> bool:
    """Return whether a gate did not pass only because the baseline is not comparable."""
    records = (one for one in run.checks if one.key[:3] == (gate.model, gate.data, gate.check))
    record = next(records, None)
    return record is not None and record.comparison is not None and bool(record.comparison.not_comparable)


def _pairs(run: RunRecord) -> dict[tuple[str, str], list[CheckRecord]]:
    """Return each model and data set -> the records of its paired gates, one per base check."""
    found: dict[tuple[str, str], dict[str, CheckRecord]] = {}
    for record in run.checks:
        if record.comparison is not None:
            found.setdefault((record.model, record.data), {})[record.comparison.base] = record
    return {pair: list(records.values()) for pair, records in found.items()}


def _numbers(
    run: RunRecord, folder: Path, gates: Sequence[CheckRecord]
) -> tuple[list[BaselineCheck], dict[str, list[float | None]]]:
    """Return the checks of a model on a data set, and their numbers per instance."""
    models = {model.name: model for model in run.models}
    checks, columns = [], []
    ids: list[str] = []
    known = {record.key: check for record, check in recomputable(run)}
    for record in sorted(gates, key=lambda one: one.comparison.base if one.comparison else ""):
        gate, comparison = known.get(record.key), record.comparison
        if not isinstance(gate, PairedGate) or comparison is None:
            raise ReportError(f"{folder}: {record.check} cannot be computed again with this version of attnaudit.")
        case = (record.model, record.data, record.seed)
        model = models[record.model]
        stored = read_measurements(
            folder / MEASUREMENTS, case, model.classes, [(record, gate)], no_decision=model.no_decision
        )
        measurements = stored.under(record.reading)
        numbers = rounded_numbers(gate.base.linearised_values(measurements))
        value, own = mean_of(numbers), _base_record(run, record)
        if value is None or comparison.candidate is None or not math.isclose(value, comparison.candidate):
            raise ReportError(
                f"{folder}: the value of {comparison.base} for {record.model} on {record.data} is undefined or cannot "
                "be computed again. Run the audit again."
            )
        if own is None or own.interval is None or own.verdict == "undefined":
            what = "no interval" if own is None or own.interval is None else "too few instances with a value"
            raise ReportError(
                f"{folder}: {comparison.base} for {record.model} on {record.data} has {what}, so later models cannot "
                "be compared with this run. Audit more rows that have a value."
            )
        checks.append(
            BaselineCheck(
                check=comparison.base,
                reading=comparison.reading,
                value=value,
                low=own.interval.low,
                high=own.interval.high,
            )
        )
        columns.append(numbers)
        ids = list(measurements.ids)
    table = np.column_stack(columns)
    values = {one: [None if np.isnan(x) else x for x in row] for one, row in zip(ids, table.tolist(), strict=True)}
    return checks, {one: values[one] for one in sorted(values)}


def _base_record(run: RunRecord, gate: CheckRecord) -> CheckRecord | None:
    """Return the record of the check whose values a paired gate compares."""
    base = gate.comparison.base if gate.comparison else ""
    return next((one for one in run.checks if one.key[:3] == (gate.model, gate.data, base)), None)
