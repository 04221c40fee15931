"""Measure shards in actors of Ray, on one machine or on a cluster."""

from __future__ import annotations

import contextlib
import importlib
import itertools
import logging
import os
import socket
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from attnaudit.errors import AuditError
from attnaudit.executors.ray_watchdog import RayWatchdog
from attnaudit.executors.shard_job import (
    Finished,
    MeasuredShard,
    ShardJob,
    ShardWorker,
    described,
    named,
    rebuilt,
    refuse_timeouts,
)

if TYPE_CHECKING:
    from attnaudit.engine.shard_measuring import Shard

#: The number of times that Ray measures a shard again after the process of an actor died. A pool gives up after as many
#: deaths (`process_pool.MOST_DEATHS`).
MOST_RETRIES = 4
#: The seconds that a cluster may take to accept a connection.
SECONDS_TO_CONNECT = 10
#: The seconds between two looks at the connection to Ray while no actor has finished.
LOOK = 10
#: The environment variable that names a running cluster.
ADDRESS = "RAY_ADDRESS"


class RayActors:
    """Measures shards in actors of Ray, which Ray starts again if they die.

    If the environment variable `RAY_ADDRESS` names a cluster, the actors run on the machines of the cluster. These
    machines must have the same files and packages as this one. Otherwise, Ray is started on this machine, and stopped
    after measuring.

    Args:
        workers: The number of actors. On a GPU, each of them gets one GPU.
        timeout: The number of seconds that an actor may need for a shard, including its start and the loading of the
            model; None for no limit. An actor that exceeds it is killed, and a new one replaces it.
    """

    def __init__(self, workers: int, *, timeout: int | None = None) -> None:
        self.workers = workers
        self.timeout = timeout
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
            AuditError: The cluster cannot be reached, the Ray process on this machine dies, a shard cannot be measured,
                or the actor of a shard dies or exceeds the time limit repeatedly.
        """
        with contextlib.ExitStack() as ending:
            ending.enter_context(_without_warnings())
            actors: list[Any] = []
            if self._ray.is_initialized():
                ending.callback(lambda: [self._ray.kill(one) for one in actors])
            else:
                self._start(ending)  # the end of the connection ends the actors
            self._run(job, shards, finished, actors)

    def _start(self, ending: contextlib.ExitStack) -> None:
        """Connect to the cluster, or start Ray on this machine.

        Args:
            ending: Gets the functions that end the connection, and Ray if it was started.

        Raises:
            AuditError: The cluster cannot be reached, or Ray cannot be started.
        """
        common: dict[str, Any] = {"log_to_driver": False, "configure_logging": False}
        address = os.environ.get(ADDRESS, "")
        try:
            if address:
                _require_server(address)
                ending.callback(self._ray.shutdown)
                self._ray.init(**common)
            else:
                ending.callback(RayWatchdog().end)
                ending.callback(self._ray.shutdown)  # before the watchdog ends what is left
                self._ray.init(address="local", num_cpus=self.workers, include_dashboard=False, **common)
        except Exception as error:  # Ray also raises plain exceptions, for example if it starts too slowly
            reason = str(error.__cause__ or error).strip() or type(error).__name__
            if not address:
                raise AuditError(
                    f"--audit-executor ray: Ray could not be started on this machine. {reason.rstrip('.')}. If the "
                    "machine is busy, start the run again later or with fewer --audit-workers. Or leave "
                    "--audit-executor ray out to measure in a pool of processes."
                ) from error
            raise AuditError(
                f"{ADDRESS}={address}: no connection to the Ray cluster at this address. Start the cluster with `ray "
                "start --head`, correct the address, or unset the variable to start Ray on this machine. If the "
                "cluster was started with a token, set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN, too. The error was: "
                + reason
            ) from error

    def _run(self, job: ShardJob, shards: Iterable[Shard], finished: Finished, actors: list[Any]) -> None:
        """Measure shards with the connection to Ray that exists.

        Args:
            job: The description of the measurement.
            shards: The shards.
            finished: Called with every measured shard.
            actors: Filled with the actors that have not ended.

        Raises:
            AuditError: As in `run`.
        """
        ray = self._ray
        gpus = 1 if job.device.startswith("cuda") else 0
        actor = ray.remote(max_restarts=-1, max_task_retries=MOST_RETRIES, num_cpus=1, num_gpus=gpus)(_Actor)
        # In a list, because Ray would replace a plain reference by the job in every call.
        stored = [ray.put(job)]
        remaining = iter(shards)
        busy: dict[Any, _Task] = {}
        timeouts: Counter[int] = Counter()

        def start() -> Any:
            actors.append(actor.remote())
            return actors[-1]

        def send(one: Any, shard: Shard) -> None:
            busy[one.measure.remote(stored, shard)] = _Task(one, shard, time.monotonic())

        def end(one: Any) -> None:
            ray.kill(one)
            actors.remove(one)

        for shard in itertools.islice(remaining, self.workers):
            send(start(), shard)
        while busy:
            left = self._seconds_left(busy.values())
            ready, _ = ray.wait(list(busy), num_returns=1, timeout=LOOK if left is None else min(LOOK, left))
            if not ready:
                self._require_node()
            for reference in ready:
                task = busy.pop(reference)
                message = self._received(reference, task.shard)
                following = next(remaining, None)
                if following is None:
                    end(task.actor)  # actors that wait for its CPU can start, and measure their shards
                else:
                    send(task.actor, following)
                finished(message)
            for reference, task in [] if ready else list(busy.items()):
                if self._seconds_left([task]) == 0:
                    del busy[reference]
                    end(task.actor)
                    timeouts[task.shard.index] += 1
                    refuse_timeouts(task.shard, timeouts[task.shard.index], self.timeout)
                    send(start(), task.shard)

    def _require_node(self) -> None:
        """Require that the process of Ray through which this process reaches the cluster is alive.

        Without it, no result arrives any more, and Ray waits forever.

        Raises:
            AuditError: The process has died, or the cluster was restarted.
        """
        here = self._ray.get_runtime_context().get_node_id()
        if any(node["NodeID"] == here and node["Alive"] for node in self._ray.nodes()):
            return
        raise AuditError(
            "The Ray process (raylet) on this machine has died, so no more results can arrive. Resume the run with "
            "--audit-resume."
        )

    def _seconds_left(self, tasks: Iterable[_Task]) -> float | None:
        """Return the seconds until the first of some tasks exceeds the time limit; None if there is no limit."""
        if self.timeout is None:
            return None
        return max(0.0, min(task.began for task in tasks) + self.timeout - time.monotonic())

    def _received(self, reference: Any, shard: Shard) -> MeasuredShard:
        """Return a measured shard.

        Raises:
            AuditError: The shard cannot be measured, or its actor died repeatedly.
        """
        try:
            message = self._ray.get(reference)
        except self._ray.exceptions.RayError as error:
            died = isinstance(error, self._ray.exceptions.RayActorError)
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
            reason = "the process of the actor died" if died else reason
            memory = "give fewer --audit-workers" if self.workers > 1 else "free some memory"
            raise AuditError(
                f"{named(shard)} could not be measured: Ray gave up after {MOST_RETRIES} retries ({reason}). Perhaps "
                "code of the model or of a measure ended the process, for example with os._exit(): then remove this "
                f"call. Or perhaps the machine ran out of memory: {memory}, and resume the run with "
                "--audit-resume."
            ) from error
        if not isinstance(message, MeasuredShard):
            raise rebuilt(*message)
        return message


@contextlib.contextmanager
def _without_warnings() -> Iterator[None]:
    """Let Ray log only errors, unless its logger has another level than the default, which is INFO."""
    logger = logging.getLogger("ray")
    before = logger.level
    if before == logging.INFO:
        logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


def _require_server(address: str) -> None:
    """Require that something listens at the address of a cluster. Ray itself would try for several minutes.

    Raises:
        OSError: Nothing listens there.
    """
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdecimal():
        socket.create_connection((host.strip("[]"), int(port)), timeout=SECONDS_TO_CONNECT).close()


@dataclass(frozen=True, slots=True)
class _Task:
    """A shard that an actor measures, and when it was sent."""

    actor: Any
    shard: Shard
    began: float


class _Actor:
    """An actor, which loads the model when it gets its first shard.

    It has no constructor arguments, because Ray logs an error if they are in its object store.
    """

    def __init__(self) -> None:
        self._worker: ShardWorker | None = None

    def measure(self, stored: list[Any], shard: Shard) -> MeasuredShard | tuple[str, str]:
        """Return a measured shard, or an error as `described` returns it.

        Args:
            stored: A list with one item, the reference to the description of the measurement.
            shard: The shard.

        Raises:
            SystemExit: Ray ends the process.
        """
        try:
            if self._worker is None:
                ray: Any = importlib.import_module("ray")
                self._worker = ShardWorker(ray.get(stored[0]))
            return self._worker.measure(shard)
        except BaseException as error:  # including SystemExit and KeyboardInterrupt
            if hasattr(error, "ray_terminate_msg"):
                raise
            return described(error, shard)
