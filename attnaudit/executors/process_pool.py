"""Measure shards in a pool of processes. A process that dies, or takes longer than a time limit, is replaced."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import signal
import threading
from collections import Counter, deque
from collections.abc import Iterable
from multiprocessing import connection, get_context
from typing import TYPE_CHECKING

from attnaudit.errors import AuditError
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
from attnaudit.processes import end_with_parent

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from multiprocessing.context import SpawnProcess

    from attnaudit.engine.shard_measuring import Shard

#: A run fails if this number of processes died one after the other while they measured the same shard, or before they
#: had loaded the model.
MOST_DEATHS = 5


class ProcessPool:
    """Measures shards in several processes on this machine.

    If a process dies, a new one replaces it and measures its shard again. A process that exceeds the time limit is
    killed and replaced in the same way.

    Args:
        workers: The number of processes.
        timeout: The number of seconds that a process may need for a shard, including its start and the loading of the
            model; None for no limit.
    """

    def __init__(self, workers: int, *, timeout: int | None = None) -> None:
        self.workers = workers
        self.timeout = timeout

    def run(self, job: ShardJob, shards: Iterable[Shard], finished: Finished) -> None:
        """Measure shards (see `Executor.run`).

        Raises:
            AuditError: A shard cannot be measured, or the processes that measure a shard die or exceed the time limit
                repeatedly.
        """
        from attnaudit.engine.row_lengths import RowLengths

        with contextlib.ExitStack() as stack:
            if isinstance(job.lengths, RowLengths):
                job = dataclasses.replace(job, lengths=stack.enter_context(job.lengths.shared()))
            self._measure(job, shards, finished)

    def _measure(self, job: ShardJob, shards: Iterable[Shard], finished: Finished) -> None:
        remaining = iter(shards)
        again: deque[Shard] = deque()
        deaths: Counter[int] = Counter()
        timeouts: Counter[int] = Counter()
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
                members.append(_Member(number, _for_device(job, number), shard, self.timeout))

        try:
            for number in range(self.workers):
                start(number)
            while members:
                ready = connection.wait([one.connection for one in members])
                for member in [one for one in members if one.connection in ready]:
                    message = member.receive()
                    if message is None:
                        members.remove(member)
                        index = member.shard.index
                        (timeouts if member.exceeded else deaths)[index] += 1
                        refuse_timeouts(member.shard, timeouts[index], self.timeout)
                        _refuse_deaths(member, deaths[index])
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
        timeout: The number of seconds that it may need for a shard; None for no limit.

    Attributes:
        exceeded: Whether the process was killed because it exceeded the time limit for its shard.
    """

    def __init__(self, number: int, job: ShardJob, shard: Shard, timeout: int | None) -> None:
        context = get_context("spawn")
        self.number = number
        self.exceeded = False
        self._timeout = timeout
        self._timer: threading.Timer | None = None
        self.connection, theirs = context.Pipe()
        self.process: SpawnProcess = context.Process(target=_serve, args=(theirs, job), daemon=True)
        self.process.start()
        theirs.close()  # so that the end of the process closes the connection
        self.send(shard)

    def send(self, shard: Shard) -> None:
        """Send a shard. If the process is dead, the next `receive` notices this."""
        self.shard = shard
        self._start_timer()
        with contextlib.suppress(OSError):  # including BrokenPipeError
            self.connection.send(shard)

    def receive(self) -> MeasuredShard | tuple[str, str] | None:
        """Return a measured shard, or an error as `described` returns it; None if the process has died."""
        try:
            message: MeasuredShard | tuple[str, str] = self.connection.recv()
        except (EOFError, OSError):
            self.kill()
            return None
        self._stop_timer()
        return message

    def _start_timer(self) -> None:
        """Start the time limit for a shard.

        A thread kills the process, because this thread may be waiting for it: a process that hangs may neither read
        its shard nor finish writing a result.
        """
        self.exceeded = False
        if self._timeout is not None:
            self._timer = threading.Timer(self._timeout, self._exceed)
            self._timer.daemon = True
            self._timer.start()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer.join()  # so that it cannot kill the process while the process measures the next shard
            self._timer = None

    def _exceed(self) -> None:
        self.exceeded = True
        self.process.kill()

    def stop(self) -> None:
        """Let the process end."""
        self._stop_timer()
        self.connection.close()
        self.process.join(timeout=10)
        self.kill()

    def kill(self) -> None:
        """End the process now."""
        self._stop_timer()
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
    if code is not None and code >= 0:  # nothing killed the process
        how = f"exit status {code}"
        advice = f"Code of the model or of a measure ended them, for example with os._exit({code}). Remove this call."
    else:
        how = "an unknown exit status" if code is None else f"signal {-code}"
        advice = (
            "Perhaps the machine ran out of memory. Give fewer --audit-workers, and resume the run with --audit-resume."
        )
    raise AuditError(
        f"{named(member.shard)} could not be measured: {deaths} processes died one after another ({how}). {advice}"
    )


def _serve(channel: Connection, job: ShardJob) -> None:
    """Measure the shards that arrive, until the connection is closed. This is the main function of a process."""
    end_with_parent()
    # Ctrl+C reaches all processes. The process that started this one ends it.
    signal.signal(signal.SIGINT, lambda *_: None)
    worker: ShardWorker | None = None
    with contextlib.suppress(EOFError, OSError):  # the connection is closed
        while True:
            shard = channel.recv()
            message: MeasuredShard | tuple[str, str]
            try:
                worker = worker or ShardWorker(job)
                message = worker.measure(shard)
            except BaseException as error:  # including SystemExit and KeyboardInterrupt
                message = described(error, shard)
            channel.send(message)
