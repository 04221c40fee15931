"""Decide where and by which processes the shards of one measurement are measured."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any

from attnaudit.errors import AuditError
from attnaudit.executors.process_pool import ProcessPool
from attnaudit.executors.shard_job import Executor, ShardJob, module_sources, registering_modules
from attnaudit.instances import ids_of
from attnaudit.progress import ProgressCallback
from attnaudit.registry import measures, models
from attnaudit.retraining import Retraining
from attnaudit.run.audit_options import AuditOptions
from attnaudit.run.shards.stored_shards import PLAN, ShardFolder, ShardPlan, StoredShardRunner, read_plan

if TYPE_CHECKING:
    from attnaudit.adapters.loading import LoadedModel
    from attnaudit.adapters.protocol import ModelAdapter


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardedMeasurement:
    """One measurement of a model on rows of a data set.

    Attributes:
        options: The options of the run.
        loaded: The model.
        source: Where other processes load the model from.
        model: The id of the model.
        data: The id of the data set.
        data_sha256: The hash of the data.
        rows: The number of rows.
        rows_before: The number of rows that were measured before, if rows are measured block by block; else None.
        needs: The names of the measures.
        policy_sha256: The hash of the effective policy; "" if there is no policy.
        threads: The number of threads that torch uses in each process.
        code_hashes: The hashes of custom code that were computed before in this run (see `custom_code`).
    """

    options: AuditOptions
    loaded: LoadedModel
    source: str
    model: str
    data: str
    data_sha256: str
    rows: int
    rows_before: int | None
    needs: Sequence[str]
    policy_sha256: str
    threads: int
    code_hashes: dict[str, str] = field(default_factory=dict)

    def runner(
        self, folder: Path, progress: ProgressCallback | None, *, chosen: Callable[[int], bool] | None = None
    ) -> StoredShardRunner:
        """Return the object that measures and stores the shards.

        Args:
            folder: The folder that contains the folders of all plans.
            progress: Called during batches that take long; None to report no progress.
            chosen: Takes the number of a shard, and returns whether to measure it; None to measure all shards.

        Raises:
            AuditError: The executor is not available.
        """
        return StoredShardRunner(
            lambda shards: ShardFolder(folder, self.plan(shards)),
            executor=executor_of(self.options),
            job=self.job,
            progress=progress,
            chosen=chosen,
        )

    def plan(self, shards: int) -> ShardPlan:
        """Return the plan of the measurement for a number of shards."""
        import torch

        from attnaudit import __version__
        from attnaudit.adapters.donors import donors_of
        from attnaudit.run.judge_models import source_fingerprint

        donors = donors_of(self.loaded.adapter)
        return ShardPlan(
            model=self.model,
            model_sha256=self.loaded.sha256,
            donors_sha256="" if donors is None else donors.settings_hash,
            data=self.data,
            data_sha256=self.data_sha256,
            rows=self.rows,
            rows_before=self.rows_before,
            shards=shards,
            needs=sorted(self.needs),
            seed=self.options.seed,
            unit=self.options.unit,
            batch_tokens=self.options.batch_tokens,
            device=torch.device(self.options.device).type,
            threads=self.threads,
            policy_sha256=self.policy_sha256,
            code_sha256=source_fingerprint(),
            custom_code_sha256=custom_code(self.source, self.loaded, self.needs, self.code_hashes),
            attnaudit=__version__,
            torch=str(torch.__version__),
            transformers=_version("transformers"),
            tokenizers=_version("tokenizers"),
            training_sha256=hashes_of_training_data(self.needs, self.loaded.adapter),
        )

    def job(self, lengths: Sequence[int]) -> ShardJob:
        """Describe the measurement for other processes. `lengths` gives the number of real units of every instance."""
        return ShardJob(
            source=self.source,
            sha256=self.loaded.sha256,
            needs=sorted(self.needs),
            seed=self.options.seed,
            device=self.options.device,
            batch_tokens=self.options.batch_tokens,
            unit=self.options.engine_unit,
            threads=self.threads,
            lengths=lengths,
            modules=registering_modules(),
            sources=module_sources(),
            search_path=tuple(sys.path),
            working_folder=str(Path.cwd()),
        )


def _version(package: str) -> str:
    """Return the version of a package; "" if it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def hashes_of_training_data(needs: Sequence[str], adapter: ModelAdapter) -> dict[str, str]:
    """Return the SHA-256 hashes of the data that checks name to train copies of a model on.

    They also cover the order of the rows, which affects training. Data that no check names are not covered: the adapter
    chooses them.

    Args:
        needs: The names of the measures.
        adapter: The model.

    Returns:
        Name or file -> hash, in hexadecimal; "" if the data cannot be read, so that no copy can be trained.
    """
    from attnaudit.data import load
    from attnaudit.engine.planning import resolve

    if not adapter.capabilities.retrains:
        return {}
    arguments = [planned.measure.argument for planned in resolve(needs, adapter).measures]
    trained = [argument for argument in arguments if isinstance(argument, Retraining)]
    found = {}
    for name in sorted({name for one in trained for name in (one.train, one.dev)} - {""}):
        try:
            data = load(name)
        except AuditError:
            found[name] = ""
        else:
            rows = "\n".join([data.sha256(), *ids_of(data.instances)])
            found[name] = hashlib.sha256(rows.encode("utf-8", "surrogatepass")).hexdigest()
    return found


def custom_code(source: str, loaded: LoadedModel, needs: Sequence[str], known: dict[str, str] | None = None) -> str:
    """Return the hash of the custom code of a model and of measures. The code of attnaudit and of installed packages is
    not custom.

    Args:
        source: Where the model was loaded from.
        loaded: The model.
        needs: The names of the measures.
        known: The hashes of models and measures that were computed before in this run, to which new ones are added. A
            cache that code fills while it runs is part of its hash. The hash is therefore computed once, before the
            code itself runs. A cache that another model has filled before is part of it.

    Returns:
        The hash, in hexadecimal; "" if there is no such code.
    """
    from attnaudit.engine.planning import resolve

    known = {} if known is None else known
    names = sorted({planned.measure.name.partition(".")[0] for planned in resolve(needs, loaded.adapter).measures})
    definitions = {f"measure {name}": partial(_code_of_measure, measures.get(name)) for name in names}
    definitions[f"model {source}"] = partial(_code_of_model, source, loaded.adapter)
    for name, definition in definitions.items():
        if name not in known:
            known[name] = definition()
    found = [f"{name}: {known[name]}" for name in definitions if known[name]]
    return hashlib.sha256("\n".join(found).encode()).hexdigest() if found else ""


def _code_of_measure(declared: Any) -> str:
    """Return the hash of a declared measure; "" if its code is not the user's."""
    from attnaudit.code_identity.code_hash import hash_of_code

    code = [declared.body, declared.parse_argument, declared.canonical]
    if not any(map(_is_own, code)):
        return ""
    settings = {name: value for name, value in vars(declared).items() if not name.startswith("__")}
    return hash_of_code(*code, *(settings[name] for name in sorted(settings) if settings[name] not in code))


def _code_of_model(source: str, adapter: ModelAdapter) -> str:
    """Return the hash of the user's code that builds a model, its adapter and its modules; "" if there is none."""
    from attnaudit.code_identity.code_hash import hash_of_code

    module, _, factory = source.partition(":")
    attributes = [value for _, value in sorted(getattr(adapter, "__dict__", {}).items()) if callable(value)]
    found: list[Any] = [
        _function_behind(models.get(source) if source in models else getattr(sys.modules.get(module), factory, None)),
        type(adapter),
        *map(_function_behind, attributes),
        *[type(part) for one in adapter.modules for part in one.modules()],
    ]
    # By identity, not by name: functions that one function returns have the same name, but may use other variables.
    own = list({id(one): one for one in found if _is_own(one)}.values())
    partials = [value for value in attributes if isinstance(value, partial)]
    if any(map(_is_own, partials)) or own:
        own += partials
    return hash_of_code(*own) if own else ""


def _is_own(value: Any) -> bool:
    """Return whether the code that runs if a value is called is the user's."""
    from attnaudit.code_identity.code_hash import is_of_the_user

    return is_of_the_user(_function_behind(value).__module__)


def _function_behind(value: Any) -> Any:
    """Return the function or the class whose code runs if an attribute of a model is called."""
    while isinstance(value, (partial, MethodType)):
        value = value.func if isinstance(value, partial) else value.__func__
    return value if isinstance(value, (type, FunctionType)) else type(value)


def executor_of(options: AuditOptions) -> Executor | None:
    """Return the executor that the options name; None to measure in this process.

    Raises:
        AuditError: Ray is not installed.
    """
    if options.executor == "ray":
        from attnaudit.executors.ray_actors import RayActors

        return RayActors(options.workers, timeout=options.worker_timeout)
    return ProcessPool(options.workers, timeout=options.worker_timeout) if options.has_workers else None


def threads_of(options: AuditOptions, processes: int) -> int:
    """Return the number of threads that torch uses in each process.

    A resumed run uses as many threads as the interrupted run. If shards are measured in several processes, each process
    uses one thread, so that the number of processes does not change rounding errors.

    Args:
        options: The options of the run.
        processes: The number of pytest-xdist workers.
    """
    if options.threads is not None:
        return options.threads
    if options.resume is not None:
        for file in sorted(options.resume.glob(f"parts/*/*/*/{PLAN}")):
            return read_plan(file).threads
    if options.has_workers:
        return 1
    import torch

    return torch.get_num_threads() if processes <= 1 else max(1, (os.cpu_count() or 1) // processes)


def refuse_unused_shards(options: AuditOptions, worker: str) -> None:
    """Refuse to resume a run if its shards would not be used. They would otherwise be measured again without notice.

    Args:
        options: The options of the run.
        worker: The name of this process.

    Raises:
        AuditError: Some shards belong to a model or a data set that is not audited now. Or they were measured with
            pytest-xdist and this run does not use it, or the other way round.
    """
    if options.resume is None:
        return
    for file in sorted(options.resume.glob(f"parts/*/*/*/{PLAN}")):
        plan = read_plan(file)
        for kind, name, items in (
            ("model", plan.model, options.model_items()),
            ("data", plan.data, options.data_items()),
        ):
            if name not in [item.id for item in items]:
                raise AuditError(
                    f"--audit-resume {options.resume}: it contains shards of {kind} {name}, which is not audited now. "
                    "Give the options that the shards were measured with, or start a new run."
                )
        if (file.parent.parent.name == "main") != (worker == "main"):
            with_or_without = "without" if file.parent.parent.name == "main" else "with"
            raise AuditError(
                f"--audit-resume {options.resume}: its shards were measured {with_or_without} the option -n of "
                f"pytest-xdist. Resume the run {with_or_without} -n."
            )


def refuse_two_pools(options: AuditOptions, processes: int) -> None:
    """Refuse --audit-workers together with pytest-xdist.

    Raises:
        AuditError: Both are given.
    """
    if processes > 1 and options.has_workers:
        raise AuditError(
            f"--audit-workers {options.workers}: pytest-xdist already runs {processes} processes, and each of them "
            "would start more processes. Give either -n or --audit-workers."
        )
