"""The steps of a run without pytest: real checks on made-up numbers, written by the functions that an audit calls."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec
import pyarrow.parquet as pq

from attnaudit.checks.base import Check
from attnaudit.checks.policies.effective_policy import effective_policy
from attnaudit.records import CheckRecord, MeasureRecord, RunRecord
from attnaudit.run.finish_run import RunContext, RunEnding, finish_run
from attnaudit.run.gates import run_status, settle
from attnaudit.run.outcomes import Outcomes
from attnaudit.run.plan import DeclaredGate, Plan, SelectedCase
from attnaudit.run.run_folder import RunFolder
from tests.consistent_runs import CLASSES, FAILING, PASSING, ROWS, made_up_measurements
from tests.units.report.example_runs import run_record

Pair = tuple[str, str]
CONTEXT = RunContext(version="0.1.0", created="2026-01-05T10:30:00+00:00", command=["pytest"], seed=0)
TEMPLATE = run_record([])


def plan_of(pairs: Sequence[Pair], checks: Sequence[Check] = (PASSING, FAILING)) -> Plan:
    """Return a plan with one case per model, data set and check. All checks are gates."""
    cases = [
        SelectedCase(test=f"t[{model}-{data}-{check.id}]", model=model, data=data, check=check.id)
        for model, data in pairs
        for check in checks
    ]
    gates = [DeclaredGate(model=case.model, data=case.data, check=case.check, test=case.test) for case in cases]
    return Plan(gates=gates, selected=cases, effective_policy=effective_policy(checks))


@cache
def judged(pair: Pair, check: str, *, gated: int = 2) -> CheckRecord:
    """Return the verdict of PASSING or FAILING on a model and a data set."""
    declared = {PASSING.id: PASSING, FAILING.id: FAILING}[check]
    return declared.judge(made_up_measurements(*pair), gated=gated)


def report_verdict(outcomes: Outcomes, case: SelectedCase, *, gated: int = 2) -> None:
    """Report a case that was judged and enforced."""
    record = judged((case.model, case.data), case.check, gated=gated)
    outcome = "failed" if record.blocks else "passed"
    outcomes.add(case.test, when="call", outcome=outcome, reason="", record=msgspec.to_builtins(record))


def write_part(folder: RunFolder, worker: str, pair: Pair) -> None:
    """Write what a worker measured of a model on a data set."""
    model, data = pair
    folder.write_part(
        made_up_measurements(model, data),
        msgspec.structs.replace(TEMPLATE.models[0], name=model, classes=list(CLASSES)),
        msgspec.structs.replace(TEMPLATE.data[0], name=data, rows=ROWS, audited=ROWS, labelled=ROWS),
        MeasureRecord(
            model=model,
            data=data,
            needs=["conicity"],
            seconds=1.5,
            instances=ROWS,
            tokens=3,
            passes={"forward": 1},
            batch_size=2,
            device="cpu",
            worker=worker,
        ),
        TEMPLATE.environment,
    )


def end(folder: RunFolder, outcomes: Outcomes, *, context: RunContext = CONTEXT) -> RunRecord:
    """End a run as the plugin does after the last test, with the exit status that follows from the gates."""
    plan = folder.read_plan()
    gates = settle(plan, outcomes)
    status = run_status(gates, exit_status=0)
    ending = RunEnding(status=status, exit_status=int(status != "passed"), gates=gates)
    return finish_run(folder, context, plan, outcomes, ending)


class FullDisk:
    """Makes one write fail, after half of the content is written.

    Args:
        at: Which write fails, counted from 1; 0 for none.

    Attributes:
        writes: How many writes there were.
    """

    def __init__(self, at: int) -> None:
        self.at = at
        self.writes = 0

    def is_full(self) -> bool:
        """Count a write, and return whether it fails."""
        self.writes += 1
        return self.writes == self.at

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Count the writes of bytes and of tables."""
        write_bytes, write_table = Path.write_bytes, pq.ParquetWriter.write_table

        def half_of_bytes(path: Path, content: bytes) -> int:
            full = self.is_full()
            written = write_bytes(path, content[: len(content) // 2] if full else content)
            if full:
                raise OSError(28, "No space left on device", str(path))
            return written

        def half_of_table(writer: pq.ParquetWriter, table: Any, *arguments: Any) -> None:
            full = self.is_full()
            write_table(writer, table.slice(0, len(table) // 2) if full else table, *arguments)
            if full:
                raise OSError(28, "No space left on device")

        with (
            mock.patch.object(Path, "write_bytes", half_of_bytes),
            mock.patch.object(pq.ParquetWriter, "write_table", half_of_table),
        ):
            yield
