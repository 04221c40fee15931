"""Work shared out among processes that start anew, one thread each."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from pathlib import Path
from typing import TypeVar

from attnaudit.errors import AuditError

T = TypeVar("T")
R = TypeVar("R")


def spread(work: Callable[[T], R], tasks: Sequence[T], jobs: int) -> Iterator[tuple[T, R]]:
    """(task, result) of every task, as they get done. With one job or one task all happens in this process.

    work and tasks must be importable and picklable. What `work` raises is raised here; what has not begun is then not
    begun.
    """
    if jobs <= 1 or len(tasks) <= 1:
        yield from ((task, work(task)) for task in tasks)
        return
    pool = ProcessPoolExecutor(min(jobs, len(tasks)), mp_context=get_context("spawn"), initializer=_one_thread)
    try:
        waiting = {pool.submit(work, task): task for task in tasks}
        for future in as_completed(waiting):
            yield waiting[future], future.result()
    except BrokenProcessPool as error:
        raise AuditError(
            "A process was killed, often because the memory was not enough. Give fewer --jobs and run the same command "
            "again: what is finished is kept."
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


def _one_thread() -> None:
    import torch

    torch.set_num_threads(1)


def processors() -> int:
    """CPUs that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def replace_file(path: Path, content: bytes) -> None:
    """Write a file whole or not at all: whoever reads it meanwhile sees the old one. Raises OSError."""
    new = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        new.write_bytes(content)
        new.replace(path)
    finally:
        with contextlib.suppress(OSError):
            new.unlink(missing_ok=True)
