"""End the processes of Ray on this machine when the process that started them has ended, even if it was killed.

Ray ends its two servers together with the process that started them. Its other processes notice this themselves, but
late: a process that is just starting tries for up to a minute to reach the servers. A watchdog ends all of them.

This file is also the script that the watchdog runs, so it imports only the standard library.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

#: The environment variable that marks the processes of Ray. They inherit it from the process that starts Ray.
MARK = "ATTNAUDIT_RAY"
#: The seconds between two searches for marked processes, while their processes are ended and before.
INTERVAL, INTERVAL_BEFORE = 0.1, 1.0
#: The watchdog ends after it has found no marked process for this number of seconds. In this time, a process that was
#: being started when its parent was killed appears.
QUIET = 2.0
#: The same, if the process that started Ray has stopped Ray itself.
QUIET_AFTER_STOP = 0.2


class RayWatchdog:
    """A process that ends all processes of Ray that this process starts from now on, until `end` is called.

    It is needed on Linux only. On other systems, nothing is done.

    Raises:
        OSError: The process cannot be started.
    """

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        if sys.platform != "linux":
            return
        mark = uuid.uuid4().hex
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__, mark],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # so that it survives if the process group of this process is killed
        )
        os.environ[MARK] = mark

    def end(self) -> None:
        """End the processes of Ray that are left, and the watchdog."""
        if self._process is not None:
            os.environ.pop(MARK, None)
            with contextlib.suppress(OSError):  # the watchdog was killed
                self._process.communicate(b"stopped")
            self._process = None


def marked(mark: str) -> list[int]:
    """Return the ids of the processes whose environment contains a mark."""
    wanted = f"{MARK}={mark}".encode()
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended, or belongs to another user
            if wanted in (folder / "environ").read_bytes().split(b"\0"):
                found.append(int(folder.name))
    return found


def with_children(known: set[tuple[int, str]], mark: str) -> set[tuple[int, str]]:
    """Return the marked processes, the known ones, and their children, as ids with the times at which they started.

    Some processes of Ray overwrite their environment with a title, so that they lose the mark. They are found as
    children of the process that started them, while it runs.
    """
    started, parents = {}, {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            fields = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()
            if fields[0] not in "ZX":  # it has not ended
                started[int(folder.name)], parents[int(folder.name)] = fields[19], int(fields[1])
    running = {process for process, start in known if started.get(process) == start}
    running |= set(marked(mark)) & set(started)
    while found := {process for process, parent in parents.items() if parent in running} - running:
        running |= found
    return {(process, started[process]) for process in running}


def main(mark: str) -> None:
    """Wait until standard input is closed, and then kill all processes with a mark, and their children.

    Args:
        mark: The value of the environment variable `MARK` in these processes.
    """
    known: set[tuple[int, str]] = set()
    while not select.select([sys.stdin], [], [], INTERVAL_BEFORE)[0]:
        known = with_children(known, mark)
    quiet = QUIET_AFTER_STOP if sys.stdin.buffer.read() else QUIET  # a killed process sends nothing
    last = time.monotonic()
    while time.monotonic() - last < quiet:
        known = with_children(known, mark)
        for process, _ in known:
            last = time.monotonic()
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        time.sleep(INTERVAL)


if __name__ == "__main__":
    main(sys.argv[1])
