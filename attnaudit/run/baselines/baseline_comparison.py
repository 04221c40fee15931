"""Find the numbers of the baseline for a case, or the reason why the case cannot be compared with it."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

from attnaudit.checks.paired_gate import BaselineNumbers, PairedGate
from attnaudit.engine.measurements import Measurements
from attnaudit.formatting import number, plural
from attnaudit.records import Baseline, BaselineComparison, BaselineSubject


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditedPair:
    """A model and a data set, with everything else that determines the numbers measured on them.

    Attributes:
        model: The name of the model.
        model_sha256: The hash of the model.
        data: The name of the data set.
        data_sha256: The hash of the data set.
        sample_sha256: The hash of the audited sample; None if all rows are audited.
        policy_sha256: The hash of the effective policy of the run; "" if there is none.
        measures_sha256: The hash of the code that computes the numbers.
        attnaudit: The version of attnaudit.
        seed: The seed of the run.
        unit: The units into which texts are divided for all statistics: "tokens", "words" or "sources".
    """

    model: str
    model_sha256: str
    data: str
    data_sha256: str
    sample_sha256: str | None
    policy_sha256: str
    measures_sha256: str
    attnaudit: str
    seed: int
    unit: str


def compared(
    gate: PairedGate, baseline: Baseline | None, audited: AuditedPair, measurements: Measurements, *, run: Path
) -> BaselineNumbers:
    """Return the numbers of a baseline for a case, or the reason why they are not comparable.

    Args:
        gate: The paired gate.
        baseline: The content of the baseline file; None if there is none.
        audited: The model and the data set of the case.
        measurements: Their measurements.
        run: The folder of the run. Messages name it in the command that accepts this run as a baseline.
    """
    single = measurements.readings_of(gate.reading or "")[0]
    reading = single or measurements.own_reading
    accept = accept_command(run, Path(gate.folder or ""), gate.baseline_name)
    known = BaselineComparison(
        baseline_name=gate.baseline_name,
        base=gate.base_id,
        candidate=None,
        reading=reading,
        measures_sha256=audited.measures_sha256,
    )
    if baseline is None:
        what = (
            f"There is no baseline for the {gate.release} yet. If later models are to "
            f"be compared with this run, accept it: {accept}"
        )
        return BaselineNumbers(comparison=msgspec.structs.replace(known, not_comparable=what), accept=accept)
    known = msgspec.structs.replace(known, baseline_sha256=baseline.sha256, baseline_run=baseline.run)
    subject = subject_for(baseline, audited)
    found = _objection(baseline, subject, audited) or _objection_to_check(subject, gate, reading, measurements)
    if found or subject is None:
        what = (
            f"The model cannot be compared with the {gate.release} (run {baseline.run}): {found}. Audit the "
            "model of the baseline in the same way as this model, and accept that run. Or, after a review, accept "
            f"this run: {accept}"
        )
        return BaselineNumbers(comparison=msgspec.structs.replace(known, not_comparable=what), accept=accept)
    position = [check.check for check in subject.checks].index(gate.base_id)
    if never := _never_fails(gate, subject.checks[position].value):
        return BaselineNumbers(comparison=msgspec.structs.replace(known, not_comparable=never), accept=accept)
    rows = [subject.values[one][position] for one in measurements.ids]
    known = msgspec.structs.replace(
        known,
        baseline=subject.checks[position].value,
        baseline_model=subject.model,
        same_model=subject.model_sha256 == audited.model_sha256,
    )
    numbers = np.array([np.nan if one is None else one for one in rows], dtype=np.float64)
    return BaselineNumbers(comparison=known, numbers=numbers, accept=accept)


def accept_command(run: Path, folder: Path, name: str) -> str:
    """Return the command that accepts a run as a baseline, in backquotes."""
    return f"`attnaudit baseline accept {_relative(run)} --out {_relative(folder)} --name {name}`"


def subject_for(baseline: Baseline, audited: AuditedPair) -> BaselineSubject | None:
    """Return the model in a baseline with which to compare the audited model; None if no single model fits.

    The baseline's data set with the same rows is searched first. If the baseline lacks these rows, the data set with
    the same name is searched instead, so that a message can say what differs. In that data set, the model with the same
    name is chosen, or else the only model.
    """
    on_data = [one for one in baseline.subjects if _same_data(one, audited)]
    on_data = on_data or [one for one in baseline.subjects if one.data == audited.data]
    return next((one for one in on_data if one.model == audited.model), on_data[0] if len(on_data) == 1 else None)


def _objection(baseline: Baseline, subject: BaselineSubject | None, audited: AuditedPair) -> str:
    """Return why a baseline as a whole is not comparable, as a clause; "" if it is."""
    if baseline.policy_sha256 != audited.policy_sha256:
        return (
            f"the policy differs ({baseline.policy_sha256[:12]} in the baseline, {audited.policy_sha256[:12]} in "
            "this run)"
        )
    if baseline.measures_sha256 != audited.measures_sha256:
        versions = (
            f"attnaudit {baseline.attnaudit} in the baseline, {audited.attnaudit} in this run"
            if baseline.attnaudit != audited.attnaudit
            else f"code {baseline.measures_sha256[:12]} in the baseline, {audited.measures_sha256[:12]} in this run"
        )
        return f"the version of the measures differs ({versions})"
    if baseline.seed != audited.seed:
        return f"the seed differs ({baseline.seed} in the baseline, {audited.seed} in this run)"
    if baseline.unit != audited.unit:
        return f"the statistics are computed over {baseline.unit} in the baseline, and over {audited.unit} in this run"
    if subject is None:
        models = ", ".join(sorted({f"{one.model} on {one.data}" for one in baseline.subjects})) or "nothing"
        return f"the baseline has no model to compare with {audited.model} on {audited.data}, only {models}"
    if not _same_data(subject, audited):
        sample = subject.data_sha256 == audited.data_sha256
        return f"the sample of the data {audited.data} differs" if sample else f"the data {audited.data} differ"
    return ""


def _objection_to_check(
    subject: BaselineSubject | None, gate: PairedGate, reading: str, measurements: Measurements
) -> str:
    """Return why the numbers of one check are not comparable, as a clause; "" if they are."""
    if subject is None:
        return "the baseline has no such model"
    check = next((one for one in subject.checks if one.check == gate.base_id), None)
    if check is None:
        return f"the baseline lacks the check {gate.base_id}"
    if check.reading != reading:
        return (
            f"the reading differs ({check.reading or 'pooled attention'} in the baseline, "
            f"{reading or 'pooled attention'} in this run)"
        )
    missing = [one for one in measurements.ids if one not in subject.values]
    if missing:
        return f"the baseline lacks {plural(len(missing), 'instance')}, such as {missing[0]}"
    additional = len(subject.values) - len(measurements)
    return f"the baseline has {plural(additional, 'instance')} that this run lacks" if additional else ""


def _never_fails(gate: PairedGate, baseline: float) -> str:
    """Return a sentence that says why no model can fail a gate; "" if a model can fail it."""
    low, high = gate.base.bounds
    decrease = gate.at_least is not None
    margin = abs(float(gate.at_least or gate.at_most or 0.0))  # a number, because `paired_gate` set it
    if (baseline - margin > low) if decrease else (baseline + margin < high):
        return ""
    end = f"smallest possible value is {number(low)}" if decrease else f"largest possible value is {number(high)}"
    return (
        f"This gate can never fail: the value of the {gate.release} is {number(baseline)}, and the {end}, so "
        f"no model can be worse by {margin:g}. Set not_worse_than_baseline_by to less than the distance between these "
        "values."
    )


def _same_data(subject: BaselineSubject, audited: AuditedPair) -> bool:
    return (subject.data_sha256, subject.sample_sha256) == (audited.data_sha256, audited.sample_sha256)


def _relative(path: Path) -> str:
    """Return a path for the shell, relative to the current folder if it is inside."""
    absolute, here = path.resolve(), Path.cwd().resolve()
    return shlex.quote(str(absolute.relative_to(here) if absolute.is_relative_to(here) else absolute))
