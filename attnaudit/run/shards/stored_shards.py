"""The shards of a run on disk. With them, a run can be resumed, or measured on several machines.

Each shard has a Parquet file and a record in JSON with the hash of the file. Both are written atomically, the record
last. A shard without a record counts as not measured.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from attnaudit.errors import AuditError, ReportError
from attnaudit.executors.shard_job import COST, Executor, MeasuredShard, ShardJob, measured_shard
from attnaudit.formatting import listed
from attnaudit.instances import ids_of
from attnaudit.processes import replace_file, return_free_memory
from attnaudit.progress import ProgressCallback, counted_from

if TYPE_CHECKING:
    from attnaudit.engine.shard_measuring import Shard, ShardMeasurer
    from attnaudit.engine.shard_numbers import ShardNumbers

PLAN = "plan.json"
#: The number of shards after which the process that stores them returns memory to the operating system.
RELEASE_EVERY = 64
#: The file that marks shards whose numbers are in a part of the run.
COMPLETE = "complete"


#: How messages name fields of a plan that users do not know under their own names.
FIELDS = {
    "model_sha256": "the model",
    "donors_sha256": "the donors (the rows, draws or seed of InDistribution), which the hash of the model includes",
    "data_sha256": "the data",
    "rows": "the number of rows",
    "needs": "the measures that the checks need",
    "policy_sha256": "the policy, or the code of its checks",
    "code_sha256": "the code of attnaudit",
    "custom_code_sha256": "your own code of the model or a measure",
    "attnaudit": "the version of attnaudit",
    "torch": "the version of torch",
    "transformers": "the version of transformers",
    "tokenizers": "the version of tokenizers",
}


class ShardPlan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The plan of the shards: everything that affects their numbers.

    The processes that measure the shards are not part of it, because they do not affect the numbers.

    Attributes:
        model: The id of the model.
        model_sha256: The hash of the model.
        donors_sha256: The hash of the rows whose units replace erased units, and of how they are drawn; "" if there are
            no such rows.
        data: The id of the data set.
        data_sha256: The hash of the data.
        rows: The number of rows of all shards together.
        rows_before: The number of rows that were measured before, if rows are measured block by block.
        shards: The number of shards.
        needs: The names of the measures.
        seed: The seed.
        unit: "tokens", "words" or "sources".
        batch_tokens: The largest number of tokens in one forward pass; None for the default of the device.
        device: The kind of device, such as "cpu".
        threads: The number of threads that torch uses in each process. It affects rounding errors.
        policy_sha256: The hash of the effective policy; "" if there is no policy.
        code_sha256: The hash of the files of attnaudit whose code decides the numbers, including their comments.
        custom_code_sha256: The hash of the code that the user wrote for the model and the measures; "" if there is no
            such code.
        attnaudit: The version of attnaudit.
        torch: The version of torch.
        transformers: The version of transformers; "" if it is not installed.
        tokenizers: The version of tokenizers; "" if it is not installed.
        training_sha256: Name or file -> hash, for the data that checks name to train copies of the model on; "" if the
            data cannot be read.
    """

    model: str
    model_sha256: str
    donors_sha256: str = ""
    data: str
    data_sha256: str
    rows: int
    rows_before: int | None
    shards: int
    needs: list[str]
    seed: int
    unit: str
    batch_tokens: int | None
    device: str
    threads: int
    policy_sha256: str
    code_sha256: str
    custom_code_sha256: str
    attnaudit: str
    torch: str
    transformers: str = ""
    tokenizers: str = ""
    training_sha256: dict[str, str] = {}

    def sha256(self) -> str:
        """Return the SHA-256 hash of all fields, in hexadecimal."""
        return hashlib.sha256(msgspec.json.encode(self)).hexdigest()

    def folder_name(self) -> str:
        """Return the name of the folder of the shards. It is the same for runs that should have the same plan."""
        of = f"{self.model}\x1f{self.data}\x1f{self.rows_before}\x1f{'' if self.rows_before is None else self.rows}"
        return hashlib.sha256(of.encode()).hexdigest()[:16]

    def differences(self, other: ShardPlan) -> list[str]:
        """Return what differs in another plan, such as "seed (0, not 1)"."""
        found = []
        for field, one in msgspec.structs.asdict(self).items():
            theirs = getattr(other, field)
            if field == "training_sha256":
                names = [name for name in sorted({**one, **theirs}) if one.get(name, "") != theirs.get(name, "")]
                shown = {name: _shown_hashes(one.get(name, ""), theirs.get(name, "")) for name in names}
                found += [f"the training data {name} ({shown[name]})" for name in names]
            elif one != theirs:
                name = FIELDS.get(field, field)
                is_hash = field.endswith("sha256")
                both = _shown_hashes(one, theirs) if is_hash else f"{_or_none(one)}, not {_or_none(theirs)}"
                found.append(name if field == "needs" else f"{name} ({both})")
        return found


def _shown_hashes(one: str, other: str) -> str:
    """Return the beginnings of two hashes for a message."""
    first, second = (f"SHA-256 {value[:12]}..." if value else "none" for value in (one, other))
    return f"{first}, not {second}"


def _or_none(value: object) -> str:
    return "none" if value == "" else str(value)


class ShardCost(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The fields of `ShardNumbers` that describe the cost of a shard."""

    passes: dict[str, int]
    batch_size: int
    repeated_rows: int
    repeated_difference: float
    seconds: float
    measure_seconds: dict[str, float]
    measure_passes: dict[str, dict[str, int]]
    measure_uses: dict[str, list[str]]


class ShardRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The record of a measured shard.

    Attributes:
        index: The number of the shard, counted from 0.
        plan_sha256: The hash of the plan.
        sha256: The hash of the Parquet file.
        cost: The fields of `ShardNumbers` that describe the cost.
    """

    index: int
    plan_sha256: str
    sha256: str
    cost: ShardCost


class ShardFolder:
    """A folder with the shards of one plan.

    Args:
        folder: The folder that contains the folders of all plans.
        plan: The plan.

    Raises:
        ReportError: The folder contains shards of another plan, or cannot be written to.
    """

    def __init__(self, folder: Path, plan: ShardPlan) -> None:
        self.path = folder / plan.folder_name()
        self.plan = plan
        self.plan_sha256 = plan.sha256()
        file = self.path / PLAN
        if file.exists():
            known = read_plan(file)
            if known != plan:
                raise ReportError(
                    f"{self.path}: these shards belong to another audit. They differ in: "
                    f"{listed(plan.differences(known))}. Measure with the model, the data, the policy, the options and "
                    "the version of attnaudit that the shards were measured with, or start a new run."
                )
        else:
            self._write(file, msgspec.json.format(msgspec.json.encode(plan), indent=2))

    def _files(self, index: int) -> tuple[Path, Path]:
        """Return the paths of the Parquet file and the record of a shard."""
        return self.path / f"{index:06d}.parquet", self.path / f"{index:06d}.json"

    def __contains__(self, index: int) -> bool:
        return all(file.exists() for file in self._files(index))

    def write(self, shard: MeasuredShard) -> None:
        """Write a shard.

        Raises:
            ReportError: Its content does not have its hash, or a file cannot be written.
        """
        numbers, record = self._files(shard.index)
        if hashlib.sha256(shard.content).hexdigest() != shard.sha256:
            raise ReportError(
                f"Shard {shard.index} arrived damaged: its SHA-256 hash is not {shard.sha256[:12]}.... Resume the run "
                "with --audit-resume to measure it again. If this happens again, test the memory of the machine."
            )
        self._write(numbers, shard.content)
        described = ShardRecord(
            index=shard.index, plan_sha256=self.plan_sha256, sha256=shard.sha256, cost=ShardCost(**shard.cost)
        )
        self._write(record, msgspec.json.encode(described))

    def read(self, index: int) -> ShardNumbers:
        """Read a shard.

        Raises:
            ReportError: The shard is missing, is damaged, or belongs to another plan.
        """
        from attnaudit.engine.shard_numbers import ShardNumbers

        path, record_path = self._files(index)
        record = read_record(record_path)
        if record.plan_sha256 != self.plan_sha256 or record.index != index:
            raise ReportError(
                f"{record_path}: this shard belongs to another audit or has another number. Delete it, and measure "
                "the shard again: resume the run, or repeat `attnaudit measure`."
            )
        try:
            content = path.read_bytes()
        except OSError as error:
            raise _unreadable(path, error) from error
        if hashlib.sha256(content).hexdigest() != record.sha256:
            raise ReportError(
                f"{path}: its SHA-256 hash is not the one in {record_path.name}, so the file was changed or damaged. "
                "Delete both files, and resume the run to measure the shard again."
            )
        numbers = ShardNumbers.from_parquet(content, str(path))
        for name in COST:
            setattr(numbers, name, getattr(record.cost, name))
        return numbers

    def mark_complete(self) -> None:
        """Record in the folder that a part of the run now contains the numbers of all shards."""
        self._write(self.path / COMPLETE, b"")

    def _write(self, path: Path, content: bytes) -> None:
        try:
            replace_file(path, content)
        except OSError as error:
            raise ReportError(
                f"{path}: cannot be written ({error.strerror or error}). Free some space, and resume the run."
            ) from error


def read_plan(path: Path) -> ShardPlan:
    """Read the plan of some shards.

    Raises:
        ReportError: The file cannot be read, or is not a plan.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=ShardPlan)
    except OSError as error:
        raise _unreadable(path, error) from error
    except msgspec.MsgspecError as error:
        raise ReportError(
            f"{path} is damaged ({error}), so the shards next to it cannot be used. Remove them, and measure "
            "them again."
        ) from error


def read_record(path: Path) -> ShardRecord:
    """Read the record of a shard.

    Raises:
        ReportError: The file cannot be read, or is not such a record.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=ShardRecord)
    except OSError as error:
        raise _unreadable(path, error) from error
    except msgspec.MsgspecError as error:
        raise ReportError(
            f"{path} does not contain the record of a shard: {error}. Delete it, and measure the shard again: resume "
            "the run, or repeat `attnaudit measure`."
        ) from error


def _unreadable(path: Path, error: OSError) -> ReportError:
    return ReportError(
        f"{path}: this file of a shard cannot be read ({error.strerror or error}). Resume the run to measure the shard "
        "again."
    )


class StoredShardRunner:
    """Measures the shards that are not stored yet, stores them, and yields all shards in their order.

    Args:
        open_folder: Takes the number of shards, and returns the folder for them.
        executor: Measures shards in other processes; None to measure them in this one.
        job: Takes the lengths of all instances, and returns the job for other processes.
        progress: Called during batches that take long; None to report no progress.
        chosen: Takes the number of a shard, and returns whether to measure it; None to measure all shards.

    Attributes:
        folder: The folder of the shards; None if they are not stored.
    """

    def __init__(
        self,
        open_folder: Callable[[int], ShardFolder],
        *,
        executor: Executor | None,
        job: Callable[[Sequence[int]], ShardJob],
        progress: ProgressCallback | None,
        chosen: Callable[[int], bool] | None = None,
    ) -> None:
        self.folder: ShardFolder | None = None
        self.open_folder = open_folder
        self._executor = executor
        self._job = job
        self._progress = progress
        self._chosen = chosen

    def __call__(
        self,
        measurer: ShardMeasurer,
        shards: Sequence[Shard],
        lengths: Sequence[int],
        report: Callable[[int], None],
    ) -> Iterator[ShardNumbers]:
        """Measure and yield the shards (see `ShardRunner`)."""
        if measurer.keeps_rows:
            yield from self._in_memory(measurer, shards, report)
            return
        folder = self.folder = self.open_folder(len(shards))
        self.measure_missing(folder, measurer, shards, lengths, report)
        for shard in shards:
            numbers = folder.read(shard.index)
            if numbers.ids != list(ids_of(shard.instances)):
                raise ReportError(
                    f"{folder.path}: the rows of shard {shard.index} are not those of the data set. Start a new run."
                )
            yield numbers

    def measure_missing(
        self,
        folder: ShardFolder,
        measurer: ShardMeasurer,
        shards: Sequence[Shard],
        lengths: Sequence[int],
        report: Callable[[int], None],
    ) -> None:
        """Measure and store the shards that are not stored yet."""
        from attnaudit.engine.encoding_ahead import with_following

        chosen = [i for i in range(len(shards)) if self._chosen is None or self._chosen(i)]
        missing = [i for i in chosen if i not in folder]
        done = sum(len(shards[i].instances) for i in chosen if i in folder)
        stored = 0
        report(done)

        def store(measured: MeasuredShard) -> None:
            nonlocal done, stored
            folder.write(measured)
            done += len(shards[measured.index].instances)
            stored += 1
            if stored % RELEASE_EVERY == 0:
                return_free_memory()
            report(done)

        if self._executor is not None and missing:
            with contextlib.closing(shards[i] for i in missing) as remaining:
                self._executor.run(self._job(lengths), remaining, store)
            return
        for shard, following in with_following(shards[i] for i in missing):
            report_rows = counted_from(done, report)
            numbers = measurer.measure(shard, following=following, progress=self._progress, report=report_rows)
            store(measured_shard(shard.index, numbers))
            return_free_memory(libraries=False)

    def _in_memory(
        self, measurer: ShardMeasurer, shards: Sequence[Shard], report: Callable[[int], None]
    ) -> Iterator[ShardNumbers]:
        """Measure all shards in this process, because a measure keeps numbers of the rows."""
        from attnaudit.engine.encoding_ahead import with_following

        names = ", ".join(measurer.keeps_rows)
        if self._executor is not None:
            raise AuditError(
                f"The measure {names} stores numbers of earlier rows in its attributes, so one process must measure "
                "all rows. Let `compute` return these numbers as `Columns(states=...)` and set `keeps_rows = False` in "
                "its class, or audit without --audit-workers."
            )
        done = 0
        for shard, following in with_following(shards):
            report_rows = counted_from(done, report)
            yield measurer.measure(shard, following=following, progress=self._progress, report=report_rows)
            done += len(shard.instances)
