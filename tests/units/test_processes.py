"""Tests of the process pool and of work in threads."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from attnaudit import processes
from attnaudit.errors import AuditError
from attnaudit.processes import allow_threads, in_threads, is_unfinished, replace_file, spread, unfinished_path


def kill_this_process(_task: int) -> int:
    os.kill(os.getpid(), signal.SIGKILL)
    return 0


@pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGKILL")
def test_a_killed_process_raises_an_error_that_names_the_remedy() -> None:
    with pytest.raises(AuditError, match=r"A process was killed.*fewer --jobs.*Finished results are kept"):
        list(spread(kill_this_process, [1, 2], 2))


def wait_and_tell(folder: str) -> None:
    (Path(folder) / str(os.getpid())).touch()
    time.sleep(300)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="processes are found in /proc")
def test_all_processes_end_if_the_one_that_started_them_is_killed(tmp_path: Path) -> None:
    code = f"""
from attnaudit.processes import spread
from tests.units.test_processes import wait_and_tell
if __name__ == "__main__":
    list(spread(wait_and_tell, [{str(tmp_path)!r}] * 3, 2))
"""
    parent = subprocess.Popen([sys.executable, "-c", code], cwd=Path(__file__).parents[2])
    try:
        wait_until(lambda: len(list(tmp_path.iterdir())) == 2)
    finally:
        parent.kill()
        parent.wait()
    wait_until(lambda: not any(Path("/proc", file.name).exists() for file in tmp_path.iterdir()))


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGINT for another process")
def test_an_interrupt_does_not_wait_for_the_tasks_that_are_running(tmp_path: Path) -> None:
    code = f"""
import signal
from attnaudit.processes import spread
from tests.units.test_processes import wait_and_tell
if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # Background jobs of a shell ignore the signal.
    list(spread(wait_and_tell, [{str(tmp_path)!r}] * 3, 2))
"""
    parent = subprocess.Popen([sys.executable, "-c", code], cwd=Path(__file__).parents[2], stderr=subprocess.PIPE)
    try:
        wait_until(lambda: len(list(tmp_path.iterdir())) == 2)
        parent.send_signal(signal.SIGINT)
        _, printed = parent.communicate(timeout=60)
    finally:
        parent.kill()
    assert parent.returncode
    assert printed.rstrip().endswith(b"KeyboardInterrupt")


def wait_until(done: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not done():
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.fixture
def two_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pretend that this process may use two CPUs, and restore the number of threads afterwards."""
    monkeypatch.setattr(processes, "processors", lambda: 2)
    monkeypatch.setattr(processes, "_threads", 1)


@pytest.mark.usefixtures("two_processors")
def test_tasks_run_in_as_many_threads_as_are_allowed_but_at_most_one_per_cpu() -> None:
    both = threading.Barrier(2, timeout=30)

    def meet(task: int) -> int:
        both.wait()  # passes only if two tasks run at the same time
        return -task

    allow_threads(8)
    assert in_threads(meet, range(4), most=9) == [0, -1, -2, -3]
    names = in_threads(lambda _: threading.current_thread().name, range(20), most=9)
    assert len(set(names)) <= 2
    here = threading.current_thread().name
    assert in_threads(lambda _: threading.current_thread().name, range(3), most=0) == [here] * 3


@pytest.mark.usefixtures("two_processors")
@pytest.mark.parametrize("threads", [1, 2])
def test_the_error_of_the_first_task_that_fails_is_raised(threads: int) -> None:
    def invert(task: int) -> float:
        if task < 0:
            raise ValueError(f"negative: {task}")
        return 1 / task

    allow_threads(threads)
    with pytest.raises(ValueError, match="negative: -3"):
        in_threads(invert, [1, -3, 2, -4], most=9)


@pytest.mark.slow
@pytest.mark.skipif("CS_GNU_LIBC_VERSION" not in getattr(os, "confstr_names", {}), reason="the C library is not glibc")
def test_training_does_not_get_new_memory_for_every_large_array() -> None:
    code = """
import resource, sys
import torch
from attnaudit.processes import keep_freed_memory
if sys.argv[1:]:
    keep_freed_memory()
pages = 48 << 20 >> 12
for _ in range(12):
    torch.ones(48 << 20, dtype=torch.uint8)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(5):
    torch.ones(48 << 20, dtype=torch.uint8)
print((resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) / pages)
"""

    def shares_of_new_pages(*args: str) -> float:
        done = subprocess.run([sys.executable, "-c", code, *args], capture_output=True, text=True, check=True)
        return float(done.stdout)

    assert shares_of_new_pages("keep") < 0.1 < 1 < shares_of_new_pages()


@pytest.mark.slow
def test_processes_with_the_same_id_do_not_disturb_each_other_when_they_replace_a_file(tmp_path: Path) -> None:
    """Processes of two containers that share a volume may have the same id."""
    code = """
import os, sys
from pathlib import Path
os.getpid = lambda: 7
from attnaudit.processes import replace_file
path, content = Path(sys.argv[1]), sys.argv[2].encode() * 200_000
for _ in range(300):
    replace_file(path, content)
    found = path.read_bytes()
    assert len(found) == 200_000 and len(set(found)) == 1, (len(found), set(found))
"""
    command = [sys.executable, "-c", code, str(tmp_path / "file")]
    both = [subprocess.Popen([*command, letter], stderr=subprocess.PIPE) for letter in "ab"]
    errors = [process.communicate(timeout=120)[1].decode() for process in both]
    assert [process.returncode for process in both] == [0, 0], errors
    assert [file.name for file in tmp_path.iterdir()] == ["file"]


def test_the_name_of_a_file_that_is_not_complete_is_recognised_and_unique(tmp_path: Path) -> None:
    names = {unfinished_path(tmp_path / "audit.json") for _ in range(100)}
    assert len(names) == 100
    assert all(map(is_unfinished, names))
    assert is_unfinished(tmp_path / ".audit.json.1234")  # the name that older versions gave
    replace_file(tmp_path / "audit.json", b"{}")
    assert not is_unfinished(tmp_path / "audit.json")
