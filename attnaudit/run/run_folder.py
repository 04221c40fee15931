"""The files of a run: parts written as soon as something is measured, merged into one run at the end."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from attnaudit.engine.measurements import Measurements
from attnaudit.errors import ReportError
from attnaudit.processes import replace_file
from attnaudit.records import DataRecord, Environment, MeasureRecord, ModelRecord, PolicyRecord, RunRecord


def new_run_name() -> str:
    """A folder name that sorts by time and is not taken: 20250131-140502-1f3a."""
    return f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{uuid.uuid4().hex[:4]}"


class PlannedCase(msgspec.Struct, frozen=True, kw_only=True):
    """One selected case, written before the first is run, so that a crash cannot hide it."""

    test: str
    model: str
    data: str
    check: str


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """What one process measured of one model on one data set. numbers: the name of its Parquet file."""

    model: ModelRecord
    data: DataRecord
    measured: MeasureRecord
    environment: Environment
    numbers: str


class RunFolder:
    """reports/<run>, and parts/ in it while the run lasts."""

    def __init__(self, reports: Path, name: str) -> None:
        self.reports = reports
        self.name = name
        self.path = reports / name
        self._parts = self.path / "parts"

    def plan(self, cases: Iterable[PlannedCase], *, worker: str, policy: PolicyRecord | None = None) -> None:
        """Write down what is going to run, and the policy that it comes from. Creates the folder."""
        if policy is not None:
            self._write(self._parts / f"{worker}.policy.json", msgspec.json.encode(policy))
        self._write(self._parts / f"{worker}.cases.json", msgspec.json.encode(list(cases)))

    def planned(self) -> list[PlannedCase]:
        """Every planned case once, in the order of collection."""
        found: dict[str, PlannedCase] = {}
        for file in sorted(self._parts.glob("*.cases.json")):
            for case in msgspec.json.decode(file.read_bytes(), type=list[PlannedCase]):
                found.setdefault(case.test, case)
        return list(found.values())

    def declared_policy(self) -> PolicyRecord | None:
        """What the policy of the planned cases says of itself, if they come from a policy."""
        files = sorted(self._parts.glob("*.policy.json"))
        return msgspec.json.decode(files[0].read_bytes(), type=PolicyRecord) if files else None

    def keep(
        self,
        measurements: Measurements,
        model: ModelRecord,
        data: DataRecord,
        measured: MeasureRecord,
        env: Environment,
    ) -> None:
        """Write one part. Its description comes last: a part with a description is whole."""
        from attnaudit.run.measurements_file import write_measurements

        stem = f"{measured.worker}-{uuid.uuid4().hex[:8]}"
        numbers = self._parts / f"{stem}.parquet"
        self._guard(lambda: self._parts.mkdir(parents=True, exist_ok=True))
        self._guard(lambda: write_measurements(measurements, numbers))
        part = Part(model=model, data=data, measured=measured, environment=env, numbers=numbers.name)
        self._write(self._parts / f"{stem}.part.json", msgspec.json.encode(part))

    def parts(self) -> list[Part]:
        files = sorted(self._parts.glob("*.part.json"))
        return [msgspec.json.decode(file.read_bytes(), type=Part) for file in files]

    def finish(self, run: RunRecord, parts: Iterable[Part]) -> None:
        """Write audit.json and measurements.parquet, remove the parts, name the run in latest.txt."""
        from attnaudit.run.measurements_file import merge_measurements

        chosen: dict[tuple[str, str], Path] = {}
        for part in parts:
            chosen.setdefault((part.model.name, part.data.name), self._parts / part.numbers)
        self._guard(lambda: self.path.mkdir(parents=True, exist_ok=True))
        # The verdicts first: they are small, and must not go where there is no room for the numbers.
        self._write(self.path / "audit.json", msgspec.json.format(msgspec.json.encode(run), indent=2) + b"\n")
        self._guard(lambda: merge_measurements(list(chosen.values()), self.path / "measurements.parquet"))
        shutil.rmtree(self._parts, ignore_errors=True)
        self._write(self.reports / "latest.txt", f"{self.name}\n".encode())

    def _write(self, path: Path, content: bytes) -> None:
        self._guard(lambda: replace_file(path, content))

    def _guard(self, action: Callable[[], None]) -> None:
        try:
            action()
        except OSError as error:
            raise ReportError(
                f"{error.filename or self.path}: cannot be written ({error.strerror or error}). Make room or choose "
                "another folder with --audit-reports."
            ) from error
