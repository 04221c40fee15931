"""Measure shards in actors of Ray, on one machine or on a cluster."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from attnaudit.errors import AuditError
from attnaudit.executors.shard_job import Finished, MeasuredShard, ShardJob, ShardWorker, described, rebuilt

if TYPE_CHECKING:
    from attnaudit.engine.shard_measuring import Shard

#: The number of times that Ray measures a shard again after the process of an actor died.
MOST_RETRIES = 5
#: The environment variable that names a running cluster.
ADDRESS = "RAY_ADDRESS"


class RayActors:
    """Measures shards in actors of Ray, which Ray starts again if they die.

    If the environment variable `RAY_ADDRESS` names a cluster, the actors run on the machines of the cluster. These
    machines must have the same files and packages as this one. Otherwise, Ray is started on this machine, and stopped
    after measuring.

    Args:
        workers: The number of actors. On a GPU, each of them gets one GPU.
    """

    def __init__(self, workers: int) -> None:
        self.workers = workers
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        try:
            self._ray: Any = importlib.import_module("ray")
        except ImportError as error:
            raise AuditError(
                '--audit-executor ray: Ray is not installed. Install it with pip install "attnaudit[ray]", or leave '
                "the option out to measure in a pool of processes."
            ) from error

    def run(self, job: ShardJob, shards: Iterable[Shard], finished: Finished) -> None:
        """Measure shards (see `Executor.run`).

        Raises:
            AuditError: A shard cannot be measured, or the actor of a shard dies repeatedly.
        """
        ray = self._ray
        started = not ray.is_initialized()
        if started:
            self._start()
        try:
            self._run(job, shards, finished)
        finally:
            if started:
                ray.shutdown()

    def _start(self) -> None:
        """Connect to the cluster, or start Ray on this machine."""
        common = {"log_to_driver": False, "configure_logging": False, "include_dashboard": False}
        if os.environ.get(ADDRESS):
            common.pop("include_dashboard")
            self._ray.init(**common)
        else:
            self._ray.init(address="local", num_cpus=self.workers, **common)

    def _run(self, job: ShardJob, shards: Iterable[Shard], finished: Finished) -> None:
        ray = self._ray
        gpus = 1 if job.device.startswith("cuda") else 0
        actor = ray.remote(max_restarts=-1, max_task_retries=MOST_RETRIES, num_cpus=1, num_gpus=gpus)(_Actor)
        stored = ray.put(job)
        remaining = iter(shards)
        actors = [actor.remote(stored) for _ in range(self.workers)]
        busy: dict[Any, tuple[Any, Shard]] = {}

        def send(one: Any) -> None:
            shard = next(remaining, None)
            if shard is not None:
                busy[one.measure.remote(shard)] = one, shard

        try:
            for one in actors:
                send(one)
            while busy:
                ready, _ = ray.wait(list(busy), num_returns=1)
                one, shard = busy.pop(ready[0])
                finished(self._received(ready[0], shard))
                send(one)
        finally:
            for one in actors:
                ray.kill(one)

    def _received(self, reference: Any, shard: Shard) -> MeasuredShard:
        """Return a measured shard.

        Raises:
            AuditError: The shard cannot be measured, or its actor died repeatedly.
        """
        try:
            message = self._ray.get(reference)
        except self._ray.exceptions.RayError as error:
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise AuditError(
                f"Shard {shard.index} (from id {shard.instances[0].id!r}) could not be measured: Ray gave up after "
                f"{MOST_RETRIES} attempts ({reason}). Give fewer --audit-workers, and resume the run with "
                "--audit-resume."
            ) from error
        if not isinstance(message, MeasuredShard):
            raise rebuilt(*message)
        return message


class _Actor:
    """An actor, which loads the model when it gets its first shard.

    Args:
        job: The description of the measurement.
    """

    def __init__(self, job: ShardJob) -> None:
        self._job = job
        self._worker: ShardWorker | None = None

    def measure(self, shard: Shard) -> MeasuredShard | tuple[str, str]:
        """Return a measured shard, or an error as `described` returns it."""
        try:
            self._worker = self._worker or ShardWorker(self._job)
            return self._worker.measure(shard)
        except Exception as error:
            return described(error)
