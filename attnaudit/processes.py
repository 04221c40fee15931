"""Helpers for work in several processes or threads: run tasks in parallel, and replace files atomically."""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import active_children, get_context, parent_process
from pathlib import Path
from typing import TypeVar

from attnaudit.disk_arrays.mapped_arrays import release_libraries, release_mapped
from attnaudit.errors import AuditError

#: The number of kernels that oneDNN keeps.
KERNELS = 64

#: Options of `mallopt`: the size above which glibc allocates memory directly from the operating system, and the size of
#: free memory at the end of the heap above which glibc returns this memory.
M_MMAP_THRESHOLD, M_TRIM_THRESHOLD = -3, -1

T = TypeVar("T")
R = TypeVar("R")

#: The number of threads that `in_threads` uses.
_threads = 1


def spread(work: Callable[[T], R], tasks: Sequence[T], jobs: int) -> Iterator[tuple[T, R]]:
    """Run tasks in several processes and yield each task with its result, in the order in which they finish.

    If there is only one job or one task, everything runs in the current process.

    Args:
        work: The function that is called with each task. It must be importable, and tasks and results must be
            picklable.
        tasks: The tasks.
        jobs: The number of processes. Each process uses one thread, and ends when the current process ends.

    Raises:
        AuditError: A process was killed.
        Exception: The error that `work` raised. Tasks that have not started are then cancelled.
        KeyboardInterrupt: The user interrupted this process. The other processes are killed, also if the generator is
            closed before its end.
    """
    if jobs <= 1 or len(tasks) <= 1:
        yield from ((task, work(task)) for task in tasks)
        return
    others = set(active_children())
    pool = ProcessPoolExecutor(min(jobs, len(tasks)), mp_context=get_context("spawn"), initializer=_start)
    try:
        task_of = {pool.submit(work, task): task for task in tasks}
        for future in as_completed(task_of):
            yield task_of[future], future.result()
    except BrokenProcessPool as error:
        raise AuditError(
            "A process was killed, probably because the machine ran out of memory. Give fewer --jobs and run the same "
            "command again. Finished results are kept."
        ) from error
    except (KeyboardInterrupt, GeneratorExit):
        for process in set(active_children()) - others:
            process.kill()  # `shutdown` would wait for the running tasks, which may take hours
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def _start() -> None:
    """Limit torch to one thread, because the processes together already use all CPUs. End with the parent process."""
    import torch

    torch.set_num_threads(1)
    keep_freed_memory()
    end_with_parent()


def end_with_parent() -> None:
    """End this process as soon as the process that started it has ended, even if it was killed."""
    parent = parent_process()
    if parent is not None:
        threading.Thread(target=_wait_for_end, args=(parent.join,), daemon=True).start()


def _wait_for_end(join: Callable[[], None]) -> None:
    join()
    os._exit(1)


def allow_threads(number: int) -> None:
    """Set the number of threads that `in_threads` uses from now on, at most one per CPU. At first, it is 1.

    While statistics are computed, the processes that measured have nothing to do. One process may therefore use as many
    threads as all of them together.
    """
    global _threads
    _threads = max(1, min(number, processors()))


def in_threads(work: Callable[[T], R], tasks: Iterable[T], *, most: int) -> list[R]:
    """Run tasks in threads, and return their results in the order of the tasks.

    This saves time if `work` calls compiled code that releases the interpreter lock, such as k-means of scikit-learn.

    Args:
        work: The function that is called with each task.
        tasks: The tasks.
        most: The largest number of threads, for example because each of them needs memory. With less than 2, the tasks
            run in the current thread.

    Raises:
        Exception: The error that `work` raised, for the first task for which it raised one.

    Examples:
        >>> in_threads(abs, [-1, 2, -3], most=2)
        [1, 2, 3]
    """
    number = min(_threads, most)
    if number < 2:
        return [work(task) for task in tasks]
    with ThreadPoolExecutor(number) as pool:
        return list(pool.map(work, tasks))


def processors() -> int:
    """Return the number of CPUs that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def limit_caches() -> None:
    """Limit the memory that libraries keep for later. Call this before the first pass of a model.

    By default, oneDNN keeps 1,024 kernels. In an audit, nearly every batch has a different shape and needs its own
    kernel. The cache would therefore need more than 100 MiB without saving time.

    On Linux, Arrow gets memory from the allocator of the system, whose free memory `return_free_memory` can return. Its
    own allocator would keep up to 60 MiB while a report is written. pyarrow reads this setting when it is imported.

    If the environment variables ONEDNN_PRIMITIVE_CACHE_CAPACITY and ARROW_DEFAULT_MEMORY_POOL are already set, their
    values are kept.
    """
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", str(KERNELS))
    if sys.platform == "linux":
        os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")


def return_large_arrays() -> None:
    """Let the allocator return every array of more than 1 MiB to the operating system as soon as it is freed.

    By default, glibc keeps freed arrays of up to 32 MiB for later. While a check of a million rows is judged, more than
    100 MiB would be kept. On other systems, nothing is changed.
    """
    _set_allocator(M_MMAP_THRESHOLD, 1 << 20)


def keep_freed_memory() -> None:
    """Let the allocator keep the memory of freed arrays, so that later arrays can use it. Call this before training.

    By default, glibc returns the memory of large arrays to the operating system, which fills it with zeros when the
    next array needs it. In the training of a Transformer, this took 40% of the time. `return_free_memory` still returns
    all free memory. On other systems, nothing is changed.
    """
    # Before version 2.35, glibc accepts at most 32 MiB.
    if any(_set_allocator(M_MMAP_THRESHOLD, size) for size in (1 << 30, 32 << 20)):
        _set_allocator(M_TRIM_THRESHOLD, 2**31 - 1)


def _set_allocator(option: int, value: int) -> bool:
    """Set an option of glibc's allocator, and return whether it was accepted. Other systems do not have the option."""
    set_option = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    return set_option is not None and bool(set_option(option, value))


def return_free_memory(*, libraries: bool = True) -> None:
    """Give memory that this process no longer uses back to the operating system, where this is possible.

    Allocators keep free memory for later. Without this call, the memory of a process can therefore grow to the sum of
    what its steps needed. With it, the memory stays near the maximum of a single step. The arrays of
    `attnaudit.disk_arrays.mapped_arrays` are removed from memory as well, and are read again from their files. If there
    are such arrays, the same is done with the libraries.

    Args:
        libraries: Whether to remove the code of torch from memory, which takes about 10 ms.
    """
    arrow = sys.modules.get("pyarrow")
    if arrow is not None:
        arrow.default_memory_pool().release_unused()
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # only glibc has this function
        if trim is not None:
            trim(0)
    release_mapped()
    if libraries:
        release_libraries()


def lock_file(path: Path) -> int | None:
    """Create and lock a file until its descriptor is closed or this process ends.

    On Windows, and on file systems without locks, nothing is locked.

    Returns:
        The descriptor of the file; None if another process has locked it.

    Raises:
        OSError: The file cannot be created.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        import fcntl
    except ImportError:
        return descriptor
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    except OSError:  # the file system has no locks
        return descriptor
    return descriptor


def replace_file(path: Path, content: bytes) -> None:
    """Write a file atomically.

    Another process that reads the file sees either the old content or the new content, never only a part of it. Missing
    parent folders are created.

    Raises:
        OSError: The file cannot be written.
    """
    new = unfinished_path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        new.write_bytes(content)
        new.replace(path)
    finally:
        with contextlib.suppress(OSError):
            new.unlink(missing_ok=True)


def unfinished_path(path: Path) -> Path:
    """Return a path for the content of a file until it is complete. No other call returns it, on any machine.

    Processes of several containers that share a volume may have the same id, so the id would not be enough.
    """
    return path.with_name(f".{path.name}.{uuid.uuid4().int >> 64}")  # see `is_unfinished`


def is_unfinished(path: Path) -> bool:
    """Return whether a file has a name that `unfinished_path` gives to a file until its content is complete.

    Such a file remains if the process was killed while it wrote the file.
    """
    return path.name.startswith(".") and path.suffix[1:].isdecimal()
