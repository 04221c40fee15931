"""Measure shards in a pool of processes. A process that dies is replaced."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import threading
from collections import Counter, deque
from collections.abc import Iterable
from multiprocessing import connection, get_context, parent_process
from typing import TYPE_CHECKING

from attnaudit.errors import AuditError
from attnaudit.executors.shard_job import Finished, MeasuredShard, ShardJob, ShardWorker, described, rebuilt
from attnaudit.formatting import plural

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from multiprocessing.context import SpawnProcess

    from attnaudit.engine.shard_measuring import Shard

#: A run fails if this number of processes died one after the other while they measured the same shard, or before they
#: had loaded the model.
MOST_DEATHS = 5


class ProcessPool:
    """Measures shards in several processes on this machine.

    If a process dies, a new one replaces it and measures its shard again.

    Args:
        workers: The number of processes.
    """

    def __init__(self, workers: int) -> None:
        self.workers = workers

    def run(self, job: ShardJob, shards: Iterable[Shard], finished: Finished) -> None:
        """Measure shards (see `Executor.run`).

        Raises:
            AuditError: A shard cannot be measured, or the processes that measure a shard die repeatedly.
        """
        remaining = iter(shards)
        again: deque[Shard] = deque()
        deaths: Counter[int] = Counter()
        members: list[_Member] = []
        ahead: deque[Shard] = deque()  # a shard that was read while the processes were busy

        def read_ahead() -> None:
            if not ahead:
                ahead.extend(_read(shard) for shard in itertools.islice(remaining, 1))

        def next_shard() -> Shard | None:
            if again:
                return again.popleft()
            read_ahead()
            return ahead.popleft() if ahead else None

        def start(number: int) -> None:
            shard = next_shard()
            if shard is not None:
                members.append(_Member(number, _for_device(job, number), shard))

        try:
            for number in range(self.workers):
                start(number)
            while members:
                ready = connection.wait([one.connection for one in members])
                for member in [one for one in members if one.connection in ready]:
                    message = member.receive()
                    if message is None:
                        members.remove(member)
                        deaths[member.shard.index] += 1
                        _refuse_deaths(member, deaths[member.shard.index])
                        again.append(member.shard)
                        start(member.number)
                        continue
                    if not isinstance(message, MeasuredShard):
                        raise rebuilt(*message)
                    shard = next_shard()
                    if shard is not None:
                        member.send(shard)  # the process measures it while the result is stored
                    finished(message)
                    if shard is None:
                        members.remove(member)
                        member.stop()
                read_ahead()
        finally:
            for member in members:
                member.kill()


class _Member:
    """A process of the pool, and the shard that it measures.

    Args:
        number: The number of the process in the pool.
        job: The description of the measurement.
        shard: The first shard that it measures.
    """

    def __init__(self, number: int, job: ShardJob, shard: Shard) -> None:
        context = get_context("spawn")
        self.number = number
        self.connection, theirs = context.Pipe()
        self.process: SpawnProcess = context.Process(target=_serve, args=(theirs, job), daemon=True)
        self.process.start()
        theirs.close()  # so that the end of the process closes the connection
        self.send(shard)

    def send(self, shard: Shard) -> None:
        """Send a shard. If the process is dead, the next `receive` notices this."""
        self.shard = shard
        with contextlib.suppress(OSError):  # including BrokenPipeError
            self.connection.send(shard)

    def receive(self) -> MeasuredShard | tuple[str, str] | None:
        """Return a measured shard, or an error as `described` returns it; None if the process has died."""
        try:
            message: MeasuredShard | tuple[str, str] = self.connection.recv()
        except (EOFError, OSError):
            self.kill()
            return None
        return message

    def stop(self) -> None:
        """Let the process end."""
        self.connection.close()
        self.process.join(timeout=10)
        self.kill()

    def kill(self) -> None:
        """End the process now."""
        self.connection.close()
        self.process.kill()
        self.process.join()


def _read(shard: Shard) -> Shard:
    """Return a shard with all of its instances in memory."""
    return dataclasses.replace(shard, instances=list(shard.instances))


def _for_device(job: ShardJob, number: int) -> ShardJob:
    """Return the job for one process. With the device "cuda", the processes are distributed over the GPUs."""
    if job.device != "cuda":
        return job
    import torch

    return dataclasses.replace(job, device=f"cuda:{number % max(1, torch.cuda.device_count())}")


def _refuse_deaths(member: _Member, deaths: int) -> None:
    """Raise an error if too many processes died with the same shard."""
    if deaths < MOST_DEATHS:
        return
    code = member.process.exitcode
    how = f"signal {-code}" if code is not None and code < 0 else f"exit status {code}"
    rows = member.shard.instances
    raise AuditError(
        f"Shard {member.shard.index} ({plural(len(rows), 'row')}, from id {rows[0].id!r}) could not be measured: "
        f"{deaths} processes died one after another ({how}). Perhaps the machine ran out of memory. "
        "Give fewer --audit-workers, and resume the run with --audit-resume."
    )


def _serve(channel: Connection, job: ShardJob) -> None:
    """Measure the shards that arrive, until the connection is closed. This is the main function of a process."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        worker: ShardWorker | None = None
        while True:
            shard = channel.recv()
            worker = worker or ShardWorker(job)
            channel.send(worker.measure(shard))
    except (EOFError, BrokenPipeError, KeyboardInterrupt):
        return
    except BaseException as error:
        channel.send(described(error))


def _end_with_parent() -> None:
    """End this process as soon as the process that started it has ended, even if it was killed."""
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
