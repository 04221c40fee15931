"""The description of a measurement for other processes, and the object that measures shards in such a process."""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import importlib.util
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

from attnaudit import errors
from attnaudit.code_identity.code_hash import is_of_the_user
from attnaudit.errors import AuditError, ChangedModelError, ModelError, raised_at
from attnaudit.formatting import plural
from attnaudit.processes import limit_caches, return_free_memory
from attnaudit.registry import checkpoint_formats, measures, models

if TYPE_CHECKING:
    from attnaudit.engine.batches.clean_pass import Unit
    from attnaudit.engine.shard_measuring import Shard
    from attnaudit.engine.shard_numbers import ShardNumbers


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardJob:
    """The description of a measurement for the processes that measure its shards.

    Attributes:
        source: Where the model is loaded from: a folder, a registered name or package.module:factory.
        sha256: The hash that the loaded model must have (see `LoadedModel.sha256`).
        needs: The needs of the checks.
        seed: Seed of all random numbers.
        device: The device to measure on.
        batch_tokens: Largest number of tokens in one forward pass; None for the default of the device.
        unit: "tokens", "words" or "sources".
        threads: Number of threads that torch uses in each process.
        lengths: Number of real units of every instance of the whole data set; empty if no measure uses them.
        modules: Name -> file, for the modules that register models, checkpoint formats and measures.
        sources: Name -> SHA-256 hash of the file, for the modules of attnaudit and of the user (see `module_sources`).
        search_path: The folders in which modules are searched for.
        working_folder: The folder that relative paths start from.
    """

    source: str
    sha256: str
    needs: Sequence[str]
    seed: int
    device: str
    batch_tokens: int | None
    unit: str
    threads: int
    lengths: Sequence[int] = ()
    modules: dict[str, str] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)
    search_path: tuple[str, ...] = ()
    working_folder: str = ""


@dataclass(frozen=True, slots=True)
class MeasuredShard:
    """The result of measuring a shard, in a form that one process can send to another.

    Attributes:
        index: The number of the shard.
        content: The content of its Parquet file.
        sha256: The SHA-256 hash of `content`, in hexadecimal.
        cost: The fields of `ShardNumbers` that `COST` names.
    """

    index: int
    content: bytes
    sha256: str
    cost: dict[str, Any]


#: A run fails if this number of processes took longer than the time limit for the same shard.
MOST_TIMEOUTS = 2

#: Called with every measured shard, in the process that started the executor.
Finished = Callable[[MeasuredShard], None]


class Executor(Protocol):
    """Measures shards in other processes."""

    def run(self, job: ShardJob, shards: Iterable[Shard], finished: Finished) -> None:
        """Measure shards, in any order.

        Args:
            job: The description of the measurement.
            shards: The shards.
            finished: Called with every measured shard.

        Raises:
            AuditError: A shard cannot be measured, or processes die repeatedly.
        """


def named(shard: Shard) -> str:
    """Return the name that error messages use for a shard."""
    return f"Shard {shard.index} ({plural(len(shard.instances), 'row')}, from id {shard.instances[0].id!r})"


def refuse_timeouts(shard: Shard, timeouts: int, seconds: int | None) -> None:
    """Raise an error if too many processes took longer than the time limit for the same shard.

    Raises:
        AuditError: `MOST_TIMEOUTS` or more processes took longer.
    """
    if timeouts >= MOST_TIMEOUTS:
        raise AuditError(
            f"{named(shard)} could not be measured: {timeouts} processes in a row took longer than "
            f"--audit-worker-timeout {seconds} s and were ended. If the model only needs more time, give a longer "
            "limit. Otherwise it hangs. Resume the run with --audit-resume."
        )


def measured_shard(index: int, numbers: ShardNumbers) -> MeasuredShard:
    """Convert the numbers of a shard to a `MeasuredShard`, which can be sent to another process."""
    content = numbers.to_parquet()
    cost = {name: getattr(numbers, name) for name in COST}
    return MeasuredShard(index, content, hashlib.sha256(content).hexdigest(), cost)


#: The fields of `ShardNumbers` that describe the cost of a shard.
COST = (
    "passes",
    "batch_size",
    "repeated_rows",
    "repeated_difference",
    "seconds",
    "measure_seconds",
    "measure_passes",
    "measure_uses",
)


class ShardWorker:
    """Measures shards in a worker process, with its own copy of the model.

    Args:
        job: The description of the measurement.

    Raises:
        AuditError: The model cannot be loaded, or the model or the code differs from that of the run.
    """

    def __init__(self, job: ShardJob) -> None:
        import torch

        limit_caches()
        torch.set_num_threads(job.threads)
        if job.search_path:
            sys.path[:] = job.search_path
        if job.working_folder:
            os.chdir(job.working_folder)
        for name, file in job.modules.items():
            _import(name, file)
        from attnaudit.adapters.loading import load_model
        from attnaudit.engine.shard_measuring import ShardMeasurer

        loaded = load_model(job.source)
        refuse_other_sources(job.sources)
        if loaded.sha256 != job.sha256:
            raise ChangedModelError(
                f"A process that measures shards loaded another model from {loaded.source}: its SHA-256 hash is "
                f"{loaded.sha256[:12]}..., but the run audits {job.sha256[:12]}.... Load the weights from a file, or "
                "set the seed before they are drawn, and do not replace the model while it is audited."
            )
        self._measurer = ShardMeasurer(
            loaded.adapter,
            job.needs,
            seed=job.seed,
            device=job.device,
            batch_tokens=job.batch_tokens,
            unit=cast("Unit", job.unit),
            sha256=loaded.parameters_sha256,
        )
        self._measurer.start(job.lengths)

    def measure(self, shard: Shard) -> MeasuredShard:
        """Measure a shard.

        Raises:
            AuditError: The shard cannot be measured.
        """
        measured = measured_shard(shard.index, self._measurer.measure(shard))
        return_free_memory()
        return measured


def registering_modules() -> dict[str, str]:
    """Return the modules that registered models, checkpoint formats or measures in this process: name -> file.

    Modules of attnaudit are left out, because every process can import them without help.
    """
    names = [name for registry in (models, checkpoint_formats, measures) for name in registry.origins()]
    found = {}
    for name in dict.fromkeys(names):
        file = getattr(sys.modules.get(name), "__file__", None)
        if file is not None and not name.startswith("attnaudit."):
            found[name] = str(Path(file).resolve())
    return found


def module_sources() -> dict[str, str]:
    """Return the modules of attnaudit and of the user that this process has imported: name -> SHA-256 hash of the file.

    A module whose file cannot be read is left out.
    """
    found = {}
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if file and not name.startswith("__") and (name.partition(".")[0] == "attnaudit" or is_of_the_user(name)):
            with contextlib.suppress(OSError):
                found[name] = hashlib.sha256(Path(file).read_bytes()).hexdigest()
    return found


def refuse_other_sources(expected: Mapping[str, str]) -> None:
    """Refuse to measure if a module that this process has imported differs from the module of the run.

    Args:
        expected: The result of `module_sources` in the process that started this one.

    Raises:
        ChangedModelError: The file of a module has another hash.
    """
    for name, sha256 in module_sources().items():
        if expected.get(name, sha256) != sha256:
            raise ChangedModelError(
                f"{sys.modules[name].__file__}: the file of the module {name} has changed since the run began, or is "
                "another file on this machine. Restore the file and resume the run with --audit-resume, or start a new "
                "run. Do not edit code while an audit runs."
            )


def _import(name: str, file: str) -> None:
    """Import a module under the name that it has in the process that started this one.

    Raises:
        ModelError: The module cannot be imported.
    """
    if name in sys.modules:
        return
    try:
        found = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        found = None
    if found is None or found.origin is None or str(Path(found.origin).resolve()) != file:
        found = importlib.util.spec_from_file_location(name, file)
    try:
        if found is None or found.loader is None:
            raise ImportError(f"{file} is not a Python module")
        module = importlib.util.module_from_spec(found)
        sys.modules[name] = module
        found.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise ModelError(
            f"{file}: cannot be imported in a process that measures shards: {type(error).__name__}: {error}. The model "
            "or a measure is registered there. Register it in a file that can be imported by itself, or audit without "
            "--audit-workers."
        ) from error


def described(error: BaseException, shard: Shard) -> tuple[str, str]:
    """Convert an error to the name of its class and a message, which can be sent to another process.

    The traceback of the error is lost. If it is not an `AuditError`, the message therefore names the line of the user's
    code that raised it.

    Args:
        error: The error that a worker process raised.
        shard: The shard that it was measuring.
    """
    if isinstance(error, AuditError):
        return type(error).__name__, str(error)
    place, code = raised_at(error), "the code of the model or of a measure"
    if isinstance(error, SystemExit):
        status = "" if error.code is None else repr(error.code)
        reason = f"{code} called sys.exit({status}){place}. Remove this call"
    elif isinstance(error, KeyboardInterrupt):
        reason = (
            f"{code} raised KeyboardInterrupt{place}. Only Ctrl+C may interrupt a run, so raise another error there"
        )
    else:
        reason = f"measuring raised {type(error).__name__}{place}: {str(error).rstrip('.')}"
    return "AuditError", f"{named(shard)} could not be measured: {reason}."


def rebuilt(name: str, message: str) -> AuditError:
    """Convert the result of `described` back to an error."""
    kind = getattr(errors, name, AuditError)
    if isinstance(kind, type) and issubclass(kind, AuditError):
        return kind(message)
    return AuditError(message)
