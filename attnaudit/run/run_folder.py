"""The files of a run: each process writes parts as soon as it has measured them, and the end of the run merges them."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from attnaudit.engine.measurements import Measurements
from attnaudit.errors import ReportError
from attnaudit.processes import replace_file
from attnaudit.records import DataRecord, Environment, MeasureRecord, ModelRecord, PolicyRecord, RunRecord


def new_run_name() -> str:
    """Return a new folder name that sorts by time, such as 20250131-140502-1f3a."""
    return f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{uuid.uuid4().hex[:4]}"


class SelectedCase(msgspec.Struct, frozen=True, kw_only=True):
    """One case that pytest selected. It is written down before the first case runs, so that a crash cannot hide it.

    Attributes:
        test: The node id of the test.
        model: The id of the model.
        data: The id of the data set.
        check: The id of the check; "" for a test that uses the fixture `measurements`.
    """

    test: str
    model: str
    data: str
    check: str


class MeasuredPart(msgspec.Struct, frozen=True, kw_only=True):
    """What one process measured of one model on one data set.

    Attributes:
        model: The model.
        data: The data set.
        measured: The needs, passes and seconds of the measurement.
        environment: The machine and the software.
        numbers: The name of the Parquet file with the numbers, next to this part.
    """

    model: ModelRecord
    data: DataRecord
    measured: MeasureRecord
    environment: Environment
    numbers: str

    @property
    def pair(self) -> tuple[str, str]:
        """The ids of the model and the data set."""
        return self.model.name, self.data.name


class RunFolder:
    """The folder reports/<run>, with a folder parts/ in it until the run is finished.

    Args:
        reports: The folder that all runs are in.
        name: The name of this run.
    """

    def __init__(self, reports: Path, name: str) -> None:
        self.reports = reports
        self.name = name
        self.path = reports / name
        self._parts = self.path / "parts"

    def write_selected(self, cases: Iterable[SelectedCase], *, worker: str, policy: PolicyRecord | None = None) -> None:
        """Write down the cases that one process selected, and the policy that they come from. Creates the folder.

        Raises:
            ReportError: The folder cannot be written to.
        """
        if policy is not None:
            self._write(self._parts / f"{worker}.policy.json", msgspec.json.encode(policy))
        self._write(self._parts / f"{worker}.cases.json", msgspec.json.encode(list(cases)))

    def read_selected(self) -> list[SelectedCase]:
        """Read the selected cases of all processes, each case once, in the order of collection."""
        cases: dict[str, SelectedCase] = {}
        for file in sorted(self._parts.glob("*.cases.json")):
            for case in msgspec.json.decode(file.read_bytes(), type=list[SelectedCase]):
                cases.setdefault(case.test, case)
        return list(cases.values())

    def read_policy(self) -> PolicyRecord | None:
        """Read the description of the policy that the cases come from; None if they come from no policy file."""
        files = sorted(self._parts.glob("*.policy.json"))
        return msgspec.json.decode(files[0].read_bytes(), type=PolicyRecord) if files else None

    def write_part(
        self,
        measurements: Measurements,
        model: ModelRecord,
        data: DataRecord,
        measured: MeasureRecord,
        environment: Environment,
    ) -> None:
        """Write one part: first its numbers, then its description. A part without a description counts as incomplete.

        Raises:
            ReportError: A file cannot be written.
        """
        from attnaudit.run.measurements_file import write_measurements

        stem = f"{measured.worker}-{uuid.uuid4().hex[:8]}"
        numbers = self._parts / f"{stem}.parquet"
        self._guard(lambda: self._parts.mkdir(parents=True, exist_ok=True))
        self._guard(lambda: write_measurements(measurements, numbers))
        part = MeasuredPart(model=model, data=data, measured=measured, environment=environment, numbers=numbers.name)
        self._write(self._parts / f"{stem}.part.json", msgspec.json.encode(part))

    def read_parts(self) -> list[MeasuredPart]:
        """Read the complete parts of all processes."""
        files = sorted(self._parts.glob("*.part.json"))
        return [msgspec.json.decode(file.read_bytes(), type=MeasuredPart) for file in files]

    def finish(self, run: RunRecord, parts: Sequence[MeasuredPart]) -> None:
        """Write audit.json and measurements.parquet, remove the parts, and name the run in latest.txt.

        Args:
            run: The content of audit.json.
            parts: The parts to merge, in the order of the file. Several parts of the same model and data
                set contain the same numbers, so only the first of them is merged.

        Raises:
            ReportError: A file cannot be written.
        """
        from attnaudit.run.measurements_file import merge_measurements

        files: dict[tuple[str, str], Path] = {}
        for part in parts:
            files.setdefault(part.pair, self._parts / part.numbers)
        self._guard(lambda: self.path.mkdir(parents=True, exist_ok=True))
        # The verdicts come first: they are small, and a full disk must not lose them together with the numbers.
        self._write(self.path / "audit.json", msgspec.json.format(msgspec.json.encode(run), indent=2) + b"\n")
        self._guard(lambda: merge_measurements(list(files.values()), self.path / "measurements.parquet"))
        shutil.rmtree(self._parts, ignore_errors=True)
        self._write(self.reports / "latest.txt", f"{self.name}\n".encode())

    def _write(self, path: Path, content: bytes) -> None:
        """Replace a file atomically.

        Raises:
            ReportError: The file cannot be written.
        """
        self._guard(lambda: replace_file(path, content))

    def _guard(self, action: Callable[[], None]) -> None:
        """Run an action that writes files.

        Raises:
            ReportError: The action raised an OSError. The message names the file.
        """
        try:
            action()
        except OSError as error:
            raise ReportError(
                f"{error.filename or self.path}: cannot be written ({error.strerror or error}). Free some space, or "
                "choose another folder with --audit-reports."
            ) from error
