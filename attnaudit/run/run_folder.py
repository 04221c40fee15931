"""The files of a run.

audit.json exists from the start, with the status "running". Each process writes parts as soon as it has measured them.
At the end of the run, the parts are merged, and the final audit.json is written last.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import shutil
import uuid
import weakref
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import msgspec

from attnaudit.engine.measurements import Measurements
from attnaudit.errors import ReportError, require_reachable
from attnaudit.processes import is_unfinished, lock_file, replace_file
from attnaudit.records import DataRecord, Environment, MeasureRecord, ModelRecord, RunRecord
from attnaudit.report.run_files import read_run
from attnaudit.run.plan import Plan
from attnaudit.run.run_choice import LATEST, is_run_folder, newest_run
from attnaudit.run.shards.stored_shards import COMPLETE, PLAN

#: The name of the folder of the shards, in the folder of the parts.
SHARDS = "shards"
#: The file that a process locks while it writes the run. Its name has no suffix, unlike the names of parts.
LOCK = "lock"


def new_run_name() -> str:
    """Return a new folder name that begins with the time, such as 20250131-140502-1f3a.

    The last part of the name is the fraction of the second, in units of 1/65,536 s. Sorting names therefore sorts runs
    by time, even if they begin in the same second.
    """
    now = datetime.now(UTC)
    return f"{now:%Y%m%d-%H%M%S}-{now.microsecond * 65_536 // 1_000_000:04x}"


class MeasuredPart(msgspec.Struct, frozen=True, kw_only=True):
    """The description of what one process measured for one model and data set.

    Attributes:
        model: The model.
        data: The data set.
        measured: The measures, and the time and the passes that they took.
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


def _names_a_run(folder: Path) -> bool:
    """Return whether latest.txt in a folder names a run in this folder."""
    try:
        return (folder / LATEST).is_file() and is_run_folder(newest_run(folder))
    except ReportError:
        return False


class RunFolder:
    """The folder reports/<run>. It contains a folder parts/ until the run has ended.

    Args:
        reports: The folder that all runs are in.
        name: The name of this run. `create` adds a number to it if another run has the same name.
    """

    def __init__(self, reports: Path, name: str) -> None:
        self.reports = reports
        self._unlock: Callable[[], object] = lambda: None
        self._take_name(name)

    def _take_name(self, name: str) -> None:
        self.name = name
        self.path = self.reports / name
        self._parts = self.path / "parts"

    def create(self) -> None:
        """Create the folder. No other run gets the same folder, even if both begin at the same time.

        Raises:
            ReportError: The folder cannot be created.
        """
        self._guard(lambda: self.reports.mkdir(parents=True, exist_ok=True))
        self._guard(self._create_unused)
        self._guard(self._lock)

    def _create_unused(self) -> None:
        first = self.name
        for number in itertools.count(2):
            try:
                self.path.mkdir()
            except FileExistsError:
                self._take_name(f"{first}-{number}")
            else:
                return

    def resume(self) -> None:
        """Continue a run that was interrupted: keep its shards, and remove everything else that its processes wrote.

        If the run is refused, latest.txt names it, so that `attnaudit verify` does not accept an earlier run instead.
        A file of this name that does not name a run next to it is not changed.

        Raises:
            ReportError: There is no such run, it has no shards, it has passed, or another process writes it.
        """
        require_reachable("--audit-resume", self.path)
        try:
            self._resume()
        except ReportError as refusal:
            # The folder of all runs may have been given instead of a run in it.
            named = [folder for folder in (self.reports, self.path) if _names_a_run(folder)]
            for folder in named:
                self._name_refused(folder / LATEST, refusal)
            if not named:
                raise
            raise ReportError(
                f"{refusal} It now counts as the newest run, so `attnaudit verify` fails until another run has passed."
            ) from None

    def _name_refused(self, latest: Path, refusal: ReportError) -> None:
        """Name this run in latest.txt, because it was refused.

        Raises:
            ReportError: The file cannot be written. The message contains that of the refusal.
        """
        try:
            self._write(latest, f"{self.name}\n".encode())
        except ReportError as error:
            raise ReportError(f"{refusal} {error}") from error

    def _resume(self) -> None:
        if not self.path.is_dir():
            raise ReportError(
                f"--audit-resume {self.path}: there is no such folder. Give the folder of an interrupted run, such as "
                "reports/RUN."
            )
        self._require_shards()
        self._guard(self._lock)
        record = self.path / "audit.json"
        if record.exists() and read_run(self.path).status == "passed":
            raise ReportError(f"--audit-resume {self.path}: this run has passed. Start a new run.")
        self._require_shards()  # another process may have ended the run before this one locked it
        unfinished = [file for file in self.path.rglob(".*") if is_unfinished(file)]
        # Only shards whose numbers this run uses may be removed at its end. If it refuses shards, they must be kept.
        complete = self._parts.glob(f"{SHARDS}/*/*/{COMPLETE}")
        for file in {*self._parts.glob("*.*"), *complete, *unfinished}:
            self._guard_removal(file.unlink)

    def _require_shards(self) -> None:
        """Require that the run has shards.

        Raises:
            ReportError: It has none.
        """
        if not (self._parts / SHARDS).is_dir():
            if any(self.path.glob(f"*/{PLAN}")):
                raise ReportError(
                    f"--audit-resume {self.path}: `attnaudit measure` wrote this folder. First merge it and the "
                    f"folders of the other parts: attnaudit merge {self.path} … --into reports/merged"
                )
            raise ReportError(
                f"--audit-resume {self.path}: the folder contains no shards, so there is nothing to resume. The run "
                "ended, or it was interrupted before the first shard was measured. Start a new run."
            )

    def _lock(self) -> None:
        """Lock the run until its parts are removed or this object is gone.

        Raises:
            ReportError: Another process has locked it.
            OSError: The lock cannot be created.
        """
        descriptor = lock_file(self._parts / LOCK)
        if descriptor is None:
            raise ReportError(
                f"--audit-resume {self.path}: another process is measuring or writing this run. Wait until it has "
                "ended, and resume the run if it was interrupted."
            )
        self._unlock = weakref.finalize(self, os.close, descriptor)

    def shards(self, worker: str) -> Path:
        """Return the folder for the shards that one process measures."""
        return self._parts / SHARDS / worker

    def begin(self, run: RunRecord) -> None:
        """Write an audit.json whose status is "running", and name the run in latest.txt.

        From now on, latest.txt names this run. If the process is killed, the status remains "running".

        Raises:
            ReportError: The folder cannot be written to.
        """
        self.write_record(run)
        self._write(self.reports / LATEST, f"{self.name}\n".encode())

    def write_record(self, run: RunRecord) -> None:
        """Write audit.json.

        Raises:
            ReportError: The file cannot be written.
        """
        self._write(self.path / "audit.json", msgspec.json.format(msgspec.json.encode(run), indent=2) + b"\n")

    def remove_record(self) -> None:
        """Remove audit.json. This is possible even if the disk is full, and a run without the file has not passed.

        Raises:
            ReportError: The file cannot be removed.
        """
        self._guard_removal(lambda: (self.path / "audit.json").unlink(missing_ok=True))

    def remove_pages(self) -> None:
        """Remove the report and the summary, which may say that the run passed. If one cannot be removed, the other is.

        Raises:
            ReportError: A file cannot be removed.
        """
        problems = []
        for name in ("report.html", "summary.md"):
            try:
                self._guard_removal(partial((self.path / name).unlink, missing_ok=True))
            except ReportError as error:
                problems.append(str(error))
        if problems:
            raise ReportError(" ".join(problems))

    def write_plan(self, plan: Plan, *, worker: str) -> None:
        """Write down what one process has to judge. This comes before its first case, so that a crash hides nothing.

        Raises:
            ReportError: The folder cannot be written to.
        """
        self._write(self._parts / f"{worker}.plan.json", msgspec.json.encode(plan))

    def read_plans(self) -> dict[str, Plan]:
        """Read the plans of all processes. Keys are the names of the processes."""
        files = sorted(self._parts.glob("*.plan.json"))
        return {
            file.name.removesuffix(".plan.json"): msgspec.json.decode(file.read_bytes(), type=Plan) for file in files
        }

    def read_plan(self) -> Plan:
        """Read the plans of all processes, joined."""
        return Plan.joined(list(self.read_plans().values()))

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

    def numbers_of(self, part: MeasuredPart) -> Path:
        """Return the path of the file with the numbers of a part."""
        return self._parts / part.numbers

    def read_parts(self) -> list[MeasuredPart]:
        """Read the complete parts of all processes."""
        files = sorted(self._parts.glob("*.part.json"))
        return [msgspec.json.decode(file.read_bytes(), type=MeasuredPart) for file in files]

    def merge_parts(self, parts: Sequence[MeasuredPart]) -> str:
        """Write measurements.parquet.

        Args:
            parts: The parts to merge, in the order of the file. Several parts of the same model and data
                set contain the same numbers, so only the first of them is merged.

        Returns:
            The SHA-256 hash of the file.

        Raises:
            ReportError: A file cannot be written.
        """
        from attnaudit.run.measurements_file import merge_measurements

        files: dict[tuple[str, str], Path] = {}
        for part in parts:
            files.setdefault(part.pair, self.numbers_of(part))
        merged = self.path / "measurements.parquet"
        self._guard(lambda: merge_measurements(list(files.values()), merged))
        with merged.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    def remove_parts(self) -> None:
        """Remove the parts that the processes wrote, after their content was merged into the files of the run.

        Shards that are in no part are kept, so that the run can be resumed.
        """
        for plan in self._parts.glob(f"{SHARDS}/*/*"):
            if (plan / COMPLETE).exists():
                shutil.rmtree(plan, ignore_errors=True)
        if any(self._parts.glob(f"{SHARDS}/*/*/*.parquet")):
            for file in self._parts.glob("*.*"):
                file.unlink(missing_ok=True)
            self._unlock()
            return
        # The shards go before the lock: a process that gets the lock now finds no shards, and refuses to resume.
        shutil.rmtree(self._parts / SHARDS, ignore_errors=True)
        self._unlock()  # Windows cannot remove a file that is open
        shutil.rmtree(self._parts, ignore_errors=True)

    def _write(self, path: Path, content: bytes) -> None:
        """Replace a file atomically.

        Raises:
            ReportError: The file cannot be written.
        """
        self._guard(lambda: replace_file(path, content))

    def _guard(
        self,
        action: Callable[[], None],
        *,
        what: str = "written",
        remedy: str = "Free some space, or choose another folder with --audit-reports.",
    ) -> None:
        """Run an action on the files of the run.

        Args:
            action: The action.
            what: What the action does to a file, for the message.
            remedy: What the user can do, for the message.

        Raises:
            ReportError: The action raised an OSError. The message names the file.
        """
        try:
            action()
        except OSError as error:
            raise ReportError(
                f"{error.filename or self.path}: cannot be {what} ({error.strerror or error}). {remedy}"
            ) from error

    def _guard_removal(self, action: Callable[[], None]) -> None:
        """Run an action that removes a file, as `_guard` does."""
        self._guard(action, what="removed", remedy="Remove it, because its content is not valid.")
