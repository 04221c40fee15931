"""The watchdog of Ray: it ends the processes of Ray, and no others, after the process that started it was killed."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from attnaudit.executors.ray_watchdog import MARK, RayWatchdog, marked

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the watchdog is needed on Linux only")
ROOT = Path(__file__).parents[3]
#: Starts a watchdog and two processes that would not end by themselves, and waits to be killed.
PARENT = """
import subprocess, sys, time
from attnaudit.executors.ray_watchdog import RayWatchdog
SLEEPS = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
before = subprocess.Popen([sys.executable, "-c", SLEEPS])
watchdog = RayWatchdog()
after = [subprocess.Popen([sys.executable, "-c", SLEEPS], start_new_session=new) for new in (False, True)]
print(before.pid, *[one.pid for one in after], watchdog._process.pid, flush=True)
time.sleep(600)
"""


def ended(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


def wait_for_end(*processes: int) -> None:
    deadline = time.monotonic() + 30
    while not all(map(ended, processes)):
        assert time.monotonic() < deadline, "a process is left"
        time.sleep(0.02)


@pytest.fixture
def sleeping() -> Iterator[subprocess.Popen[bytes]]:
    """A process that the watchdog must not end."""
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as process:
        yield process
        assert process.poll() is None
        process.kill()


def test_a_killed_process_leaves_nothing_that_it_started_after_the_watchdog(sleeping: subprocess.Popen[bytes]) -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, cwd=ROOT) as parent:
        assert parent.stdout is not None
        before, *processes = map(int, parent.stdout.readline().split())
        parent.kill()
    try:
        wait_for_end(*processes)  # the last of them is the watchdog itself
        assert not ended(before)
    finally:
        os.kill(before, 9)


def test_what_is_left_after_a_run_ends_with_the_watchdog(sleeping: subprocess.Popen[bytes]) -> None:
    watchdog = RayWatchdog()
    mark = os.environ[MARK]
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as left:
        while left.pid not in marked(mark):
            time.sleep(0.02)
        watchdog.end()
        assert left.wait(timeout=30) == -9
    assert MARK not in os.environ
    assert marked(mark) == []


#: Starts a process without the mark, as if it had overwritten its environment, and ends before it.
LOSES_THE_MARK = """
import os, subprocess, sys, time
from attnaudit.executors.ray_watchdog import MARK
environment = {name: value for name, value in os.environ.items() if name != MARK}
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], env=environment)
print(child.pid, flush=True)
time.sleep(3)
"""


def test_a_process_without_the_mark_ends_too_if_its_parent_had_it(sleeping: subprocess.Popen[bytes]) -> None:
    watchdog = RayWatchdog()
    with subprocess.Popen([sys.executable, "-c", LOSES_THE_MARK], stdout=subprocess.PIPE, cwd=ROOT) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
    assert not ended(child)
    watchdog.end()
    wait_for_end(child)


def test_a_watchdog_that_was_killed_is_no_error() -> None:
    watchdog = RayWatchdog()
    assert watchdog._process is not None
    watchdog._process.kill()
    watchdog._process.wait()
    watchdog.end()
