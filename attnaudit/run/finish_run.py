"""Finish a run: write audit.json, measurements.parquet and the report from the parts and the verdicts."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from attnaudit.records import SCHEMA_VERSION, RunRecord
from attnaudit.run.audit_options import AuditOptions
from attnaudit.run.outcomes import Outcomes
from attnaudit.run.run_folder import MeasuredPart, RunFolder, SelectedCase


def current_time() -> str:
    """Return the time in UTC, to the second, in the format of audit.json."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def finish_run(
    folder: RunFolder,
    outcomes: Outcomes,
    options: AuditOptions,
    selected: Sequence[SelectedCase],
    *,
    version: str,
    created: str,
    command: Sequence[str],
    exit_status: int,
) -> RunRecord:
    """Write the files of a run and its report.

    Args:
        folder: The folder of the run, with the parts of all processes.
        outcomes: The outcomes of the cases.
        options: The options of the run.
        selected: The cases that were selected, in the order of collection.
        version: The version of attnaudit.
        created: The time when the run began, as `current_time` writes it.
        command: The command line, word by word.
        exit_status: The exit status of pytest.

    Returns:
        The content of audit.json.

    Raises:
        ReportError: A file cannot be written.
    """
    from attnaudit.report import build

    parts = _in_collection_order(folder.read_parts(), selected)
    policy = folder.read_policy()
    run = RunRecord(
        schema_version=SCHEMA_VERSION,
        run=folder.name,
        created=created,
        finished=current_time(),
        command=list(command),
        seed=options.seed,
        exit_status=exit_status,
        attnaudit=version,
        policy=f"{policy.file} (sha256 {policy.sha256})" if policy else options.policy_description(),
        environment=parts[0].environment if parts else None,
        models=list({part.model.name: part.model for part in parts}.values()),
        data=list({part.data.name: part.data for part in parts}.values()),
        measured=[part.measured for part in parts],
        checks=outcomes.sorted_records(selected),
        missing=outcomes.missing(selected),
        declared_policy=policy,
    )
    folder.finish(run, parts)
    build(folder.path)
    return run


def _in_collection_order(parts: Sequence[MeasuredPart], selected: Sequence[SelectedCase]) -> list[MeasuredPart]:
    """Sort the parts by the collection order of their cases, and then by worker, whichever worker finished first."""
    order: dict[tuple[str, str], int] = {}
    for case in selected:
        order.setdefault((case.model, case.data), len(order))
    return sorted(parts, key=lambda part: (order.get(part.pair, len(order)), part.measured.worker))
