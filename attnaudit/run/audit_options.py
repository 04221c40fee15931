"""The options of one audit. They are validated as far as this is possible before a model or data is loaded."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from attnaudit.devices import AUTO, require_name
from attnaudit.errors import AuditError, CheckError, ModelError, ReportError, require_seed, similar_path
from attnaudit.run.audit_items import AuditItem, resolve_datasets, resolve_models

if TYPE_CHECKING:
    from attnaudit.checks.policies.policy import Policy

#: The units over which statistics can be computed (see `attnaudit.engine.batches.clean_pass.Unit`).
UNITS = ("tokens", "words", "sources")


#: The largest number of processes, and of threads.
MOST_WORKERS = 1024
#: The largest number of seconds for --audit-worker-timeout: 11 days.
LONGEST_TIMEOUT = 1_000_000
#: The values of --audit-executor.
EXECUTORS = ("processes", "ray")


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditOptions:
    """The options of one audit.

    Attributes:
        models: The values of --model or audit_model, as given.
        data: The values of --data or audit_data, as given.
        models_base: The folder that relative paths in `models` start from.
        data_base: The folder that relative paths in `data` start from.
        reports: The folder in which each run creates its own folder.
        policy: The TOML file whose checks replace the declared ones, or None.
        device: "cpu", "cuda", "cuda:N", or "auto" for "cuda" where torch finds a CUDA device and "cpu" elsewhere.
        max_instances: The size of the sample that is audited, or None for every instance.
        unit: The units into which texts are divided for all statistics, one of UNITS.
        seed: Seed of samples, permutations and intervals.
        batch_tokens: The largest number of tokens in one forward pass; None for the default of the device.
        workers: The number of processes that measure.
        executor: What runs these processes: "processes" for a pool on this machine, or "ray".
        threads: The number of threads that torch uses in each process; None for the default.
        worker_timeout: The number of seconds that a worker may need for a shard; None for no limit.
        resume: The folder of the run that is resumed; None to start a new run.
        sequential: Whether every check is sequential, as with `sampling = "sequential"` in its policy.
    """

    models: tuple[str, ...]
    data: tuple[str, ...]
    models_base: Path
    data_base: Path
    reports: Path
    policy: Path | None = None
    device: str = "cpu"
    max_instances: int | None = None
    unit: str = "tokens"
    seed: int = 0
    batch_tokens: int | None = None
    workers: int = 1
    executor: str = "processes"
    threads: int | None = None
    worker_timeout: int | None = None
    resume: Path | None = None
    sequential: bool = False
    _resolved: dict[str, Any] = field(default_factory=dict)

    def validate(self) -> None:
        """Validate the device, the sample size, the unit and the seed.

        Raises:
            AuditError: One of them is invalid. The message names the option.
        """
        if self.device != AUTO:
            require_name("--audit-device", self.device)
        if self.max_instances is not None and self.max_instances < 1:
            raise AuditError(
                f"--audit-max-instances {self.max_instances}: expected 1 or more. Leave it out to audit every instance."
            )
        if self.unit not in UNITS:
            raise AuditError(f"--audit-unit {self.unit}: expected {', '.join(UNITS[:-1])} or {UNITS[-1]}.")
        require_seed("--audit-seed", self.seed)
        if not 1 <= self.workers <= MOST_WORKERS:
            raise AuditError(f"--audit-workers {self.workers}: expected a number from 1 to {MOST_WORKERS:,}.")
        if self.batch_tokens is not None and self.batch_tokens < 1:
            raise AuditError(f"--audit-batch-tokens {self.batch_tokens}: expected a number of tokens above 0.")
        if self.executor not in EXECUTORS:
            raise AuditError(f"--audit-executor {self.executor}: expected {' or '.join(EXECUTORS)}.")
        if self.threads is not None and not 1 <= self.threads <= MOST_WORKERS:
            raise AuditError(f"--audit-threads {self.threads}: expected a number from 1 to {MOST_WORKERS:,}.")
        if self.worker_timeout is not None:
            if not 1 <= self.worker_timeout <= LONGEST_TIMEOUT:
                raise AuditError(
                    f"--audit-worker-timeout {self.worker_timeout}: expected a number of seconds from 1 to "
                    f"{LONGEST_TIMEOUT:,}."
                )
            if not self.has_workers:
                raise AuditError(
                    f"--audit-worker-timeout {self.worker_timeout}: without workers, nothing can end a model that "
                    "hangs. Give --audit-workers 2 or more, or leave the option out."
                )

    @property
    def has_workers(self) -> bool:
        """Whether other processes measure the shards."""
        return self.workers > 1 or self.executor == "ray"

    @property
    def engine_unit(self) -> Literal["tokens", "words", "sources"]:
        """The unit, which `validate` has checked."""
        return cast(Literal["tokens", "words", "sources"], self.unit)

    def model_items(self) -> tuple[AuditItem, ...]:
        """Return the models to audit.

        Raises:
            ModelError: No model is given, or one is unknown.
        """
        if not self.models:
            raise ModelError(
                "No model is given. Name one: --model demo (shipped), --model CHECKPOINT_FOLDER or --model "
                "package.module:factory; or set audit_model in pytest.ini."
            )
        if "models" not in self._resolved:
            self._resolved["models"] = resolve_models(self.models, base=self.models_base)
        resolved: tuple[AuditItem, ...] = self._resolved["models"]
        return resolved

    def data_items(self) -> tuple[AuditItem, ...]:
        """Return the data sets to audit on.

        Raises:
            DataError: A data set is unknown.
        """
        if "data" not in self._resolved:
            self._resolved["data"] = resolve_datasets(self.data, base=self.data_base)
        resolved: tuple[AuditItem, ...] = self._resolved["data"]
        return resolved

    def load_policy(self) -> Policy | None:
        """Return the checks of the policy file. Return None if the options name no policy file.

        Raises:
            CheckError: The file is absent or invalid. The message names the file and the table.
        """
        if self.policy is None:
            return None
        if "policy" not in self._resolved:
            from attnaudit.checks import load_policy

            if not self.policy.exists() and (question := similar_path(self.policy)):
                raise CheckError(f"{self.policy}: there is no such policy file. {question}")
            self._resolved["policy"] = load_policy(self.policy)
        policy: Policy = self._resolved["policy"]
        return policy

    def require_writable_reports(self) -> None:
        """Create the folder of the reports.

        Raises:
            ReportError: The folder cannot be written to.
        """
        try:
            self.reports.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.reports):  # a unique name: several workers may try at once
                pass
        except OSError as error:
            raise ReportError(
                f"--audit-reports {self.reports}: cannot be written to ({error.strerror or error}). Give a folder that "
                "you may write to, or a path where a folder can be created."
            ) from error
