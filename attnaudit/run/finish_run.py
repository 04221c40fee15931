"""The end of a run: parts and verdicts become one audit.json, one measurements.parquet and a report."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from attnaudit.records import SCHEMA_VERSION, RunRecord
from attnaudit.run.audit_options import AuditOptions
from attnaudit.run.outcomes import Ledger
from attnaudit.run.run_folder import Part, PlannedCase, RunFolder


def now() -> str:
    """The time in UTC, to the second, as audit.json has it."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def finish(
    folder: RunFolder,
    ledger: Ledger,
    options: AuditOptions,
    planned: Sequence[PlannedCase],
    *,
    version: str,
    created: str,
    command: Sequence[str],
    exit_status: int,
) -> RunRecord:
    """Write the run and its report. Raises ReportError when a file cannot be written."""
    from attnaudit.report import build

    parts = folder.parts()
    policy = folder.declared_policy()
    run = RunRecord(
        schema_version=SCHEMA_VERSION,
        run=folder.name,
        created=created,
        finished=now(),
        command=list(command),
        seed=options.seed,
        exit_status=exit_status,
        attnaudit=version,
        policy=f"{policy.file} (sha256 {policy.sha256})" if policy else options.policy_words(),
        environment=parts[0].environment if parts else None,
        models=list({p.model.name: p.model for p in _ordered(parts, planned)}.values()),
        data=list({p.data.name: p.data for p in _ordered(parts, planned)}.values()),
        measured=[p.measured for p in _ordered(parts, planned)],
        checks=ledger.sorted_records(planned),
        missing=ledger.missing(planned),
        declared_policy=policy,
    )
    folder.finish(run, parts)
    build(folder.path)
    return run


def _ordered(parts: Sequence[Part], planned: Sequence[PlannedCase]) -> list[Part]:
    """Parts in the order of the cases, whatever worker was first."""
    order: dict[tuple[str, str], int] = {}
    for case in planned:
        order.setdefault((case.model, case.data), len(order))
    return sorted(parts, key=lambda p: (order.get((p.model.name, p.data.name), len(order)), p.measured.worker))
