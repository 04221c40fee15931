"""Begin and end a run: write audit.json, measurements.parquet and the report from the parts and the verdicts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

import msgspec

from attnaudit.records import (
    SCHEMA_VERSION,
    DataRecord,
    GateRecord,
    ModelRecord,
    RunRecord,
    RunStatus,
    UnvalidatedModel,
)
from attnaudit.report.check_costs import with_check_costs
from attnaudit.run.outcomes import Outcomes
from attnaudit.run.plan import Plan
from attnaudit.run.run_folder import MeasuredPart, RunFolder


def current_time() -> str:
    """Return the time in UTC, to the second, in the format of audit.json."""
    return datetime.now(UTC).isoformat(timespec="seconds")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunContext:
    """The facts about a run that are known when it begins.

    Attributes:
        version: The version of attnaudit.
        created: The time when the run began, as `current_time` writes it.
        command: The command line, word by word.
        seed: The seed of the run.
        unit: The units into which texts are divided for all statistics: "tokens", "words" or "sources".
        added_options: Options that pytest did not read from the command line: their source, such as "addopts" -> the
            options, word by word.
        ci: Whether an environment variable shows that the run takes place in CI.
        allow_partial: Whether --audit-allow-partial was given.
    """

    version: str
    created: str
    command: Sequence[str]
    seed: int
    unit: str = "tokens"
    added_options: Mapping[str, Sequence[str]] = field(default_factory=dict)
    ci: bool = False
    allow_partial: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEnding:
    """How a run ended.

    Attributes:
        status: The status of the run.
        exit_status: The exit status of pytest.
        gates: The outcome of every gate.
        unvalidated: The models of families on which the policy was not validated.
        problem: Why the run failed, if the reason is not a verdict; "" otherwise.
    """

    status: RunStatus
    exit_status: int
    gates: Sequence[GateRecord] = ()
    unvalidated: Sequence[UnvalidatedModel] = ()
    problem: str = ""


def begin_run(folder: RunFolder, context: RunContext, *, resume: bool = False) -> None:
    """Create the folder of a run, with an audit.json whose status is "running".

    Args:
        folder: The folder.
        context: What is known of the run.
        resume: Whether to continue the run in this folder instead.

    Raises:
        ReportError: The folder cannot be written to.
    """
    if resume:
        folder.resume()
    else:
        folder.create()
    folder.begin(_record(folder, context))


def write_running(folder: RunFolder, context: RunContext, plan: Plan) -> None:
    """Write the gates of a run into its audit.json before the first case runs, so that a killed run lists them.

    Raises:
        ReportError: The file cannot be written.
    """
    gates = [
        GateRecord(
            model=gate.model,
            data=gate.data,
            check=gate.check,
            state="open",
            reason="the run has not ended",
            test=gate.test,
        )
        for gate in plan.gates
    ]
    running = msgspec.structs.replace(_record(folder, context), gates=gates, effective_policy=plan.effective_policy)
    folder.write_record(running)


def finish_run(folder: RunFolder, context: RunContext, plan: Plan, outcomes: Outcomes, ending: RunEnding) -> RunRecord:
    """Write the files of a run and its report. The final status is written last.

    Args:
        folder: The folder of the run, with the parts of all processes.
        context: What was known when the run began.
        plan: What had to be judged.
        outcomes: The outcomes of the cases.
        ending: How the run ended.

    Returns:
        The content of audit.json.

    Raises:
        ReportError: A file cannot be written. audit.json then does not say that the run passed.
    """
    parts, checks = _in_order_of_cases(folder.read_parts(), plan), outcomes.sorted_records(plan.selected)
    run = msgspec.structs.replace(
        _record(folder, context),
        finished=current_time(),
        environment=parts[0].environment if parts else None,
        models=measured_models(parts),
        data=measured_data(parts),
        measured=[with_check_costs(part.measured, checks) for part in parts],
        checks=checks,
        missing=outcomes.missing(plan.selected),
        unvalidated=list(ending.unvalidated),
        policy=f"{plan.policy.file} (sha256 {plan.policy.sha256})" if plan.policy else "declared in Python",
        declared_policy=plan.policy,
        effective_policy=plan.effective_policy,
        gates=list(ending.gates),
        files_left_out=plan.files_left_out,
        problem=ending.problem,
        earlier_failures=outcomes.earlier_failures,
    )
    # The verdicts come first: they are small, and a full disk must not lose them together with the numbers. Until
    # everything else is written, the status remains "running".
    folder.write_record(run)
    run = msgspec.structs.replace(run, measurements_sha256=folder.merge_parts(parts))
    run = end_run(folder, run, ending)
    folder.remove_parts()
    return run


def measured_models(parts: Sequence[MeasuredPart]) -> list[ModelRecord]:
    """Return the record of each model in the parts of a run, without duplicates."""
    return list({part.model.name: part.model for part in parts}.values())


def measured_data(parts: Sequence[MeasuredPart]) -> list[DataRecord]:
    """Return the record of each data set in the parts of a run, without duplicates.

    Sequential gates can need more rows for one model than for another. If a data set was measured with samples of
    several sizes, the record of the largest sample is returned. With the same seed, a smaller sample is contained in a
    larger one.
    """
    found: dict[str, DataRecord] = {}
    for part in parts:
        known = found.get(part.data.name)
        if known is None or known.audited < part.data.audited:
            found[part.data.name] = part.data
    return list(found.values())


def end_run(folder: RunFolder, run: RunRecord, ending: RunEnding) -> RunRecord:
    """Write the report and the final audit.json of a run whose numbers are written.

    Args:
        folder: The folder of the run.
        run: The content of audit.json.
        ending: How the run ended. It replaces the status, the exit status, the gates and the problem in `run`.

    Returns:
        The new content of audit.json.

    Raises:
        ReportError: A file cannot be written.
    """
    from attnaudit.report import write_pages
    from attnaudit.run.baselines.baseline_runs import compare_with_baselines
    from attnaudit.run.verification.integrity import seal

    run = msgspec.structs.replace(
        run,
        status=ending.status,
        exit_status=ending.exit_status,
        gates=list(ending.gates),
        problem=ending.problem,
    )
    run = seal(run)
    write_pages(folder.path, run, compare_with_baselines(run, folder.path))
    folder.write_record(run)
    return run


def _record(folder: RunFolder, context: RunContext) -> RunRecord:
    """Return the record of a run that has only just begun."""
    return RunRecord(
        schema_version=SCHEMA_VERSION,
        run=folder.name,
        created=context.created,
        finished="",
        command=list(context.command),
        seed=context.seed,
        exit_status=None,
        attnaudit=context.version,
        policy="",
        environment=None,
        models=[],
        data=[],
        measured=[],
        checks=[],
        missing=[],
        added_options={source: list(words) for source, words in context.added_options.items()},
        unit=context.unit,
        ci=context.ci,
        allow_partial=context.allow_partial,
    )


def _in_order_of_cases(parts: Sequence[MeasuredPart], plan: Plan) -> list[MeasuredPart]:
    """Sort the parts by the order of the selected cases, and then by worker."""
    order: dict[tuple[str, str], int] = {}
    for case in plan.selected:
        order.setdefault((case.model, case.data), len(order))
    return sorted(parts, key=lambda part: (order.get(part.pair, len(order)), part.measured.worker))
