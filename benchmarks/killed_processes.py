"""Find and kill processes of a run, and start the nodes of a Ray cluster again after their processes were killed."""

from __future__ import annotations

import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

#: The seconds that a node of Ray may take to start.
START = 90
#: How often the nodes are started before this is an error.
ATTEMPTS = 4
#: The seconds between two looks at the raylets.
RAYLETS = 2
#: Options of Ray: it sends no statistics, and its actors get as much CPU time as other processes.
RAY = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0"}
#: The environment variable that marks the processes of a run or a node.
MARK = "RANDOM_KILLS"


def marked(mark: str) -> list[int]:
    """Return the ids of all processes that inherited a mark in their environment, wherever they are in the tree."""
    wanted = f"{MARK}={mark}".encode()
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if wanted in (folder / "environ").read_bytes().split(b"\0") and alive(int(folder.name)):
                found.append(int(folder.name))
        except OSError:  # it has ended, or belongs to another user
            continue
    return found


def alive(process: int) -> bool:
    """Return whether a process exists and has not ended."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def command_line(process: int) -> str:
    """Return the command line of a process; "" if it has ended."""
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def kind_of(process: int) -> str:
    """Return what a process does."""
    line = command_line(process)
    program = line.partition(" ")[0]
    if program.endswith("/raylet"):
        return "raylet"
    if program.endswith("/gcs_server"):
        return "GCS of Ray"
    if "ray_watchdog" in line:
        return "watchdog of Ray"
    if "spawn_main" in line or line.startswith(("ray::_Actor", "ray::IDLE")) or "default_worker.py" in line:
        return "worker"
    return "other process"


def kill(process: int) -> bool:
    """Send SIGKILL to a process. Return whether it still existed."""
    try:
        os.kill(process, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


class RayNodes:
    """Two nodes of a Ray cluster on this machine, each started by its own `ray start`.

    Args:
        folder: The folder for the files of Ray. Its path must be short.

    Attributes:
        marks: The marks of the processes of both nodes.
        environment: The environment variables with which other processes reach the cluster.
        restarts: The number of times that each node was started again.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        with socket.socket() as free:
            free.bind(("", 0))
            self._address = f"127.0.0.1:{free.getsockname()[1]}"
        self.marks = [f"{os.getpid()}-first-node", f"{os.getpid()}-second-node"]
        self._common = {
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": secrets.token_hex(32),
            # Processes that lose the first node give up after this number of seconds instead of 60.
            "RAY_gcs_rpc_server_reconnect_timeout_s": "10",
        }
        self.environment = {**self._common, "RAY_ADDRESS": self._address}
        self._nodes: list[subprocess.Popen[bytes] | None] = [None, None]
        self.restarts = [-1, -1]
        self._looked = 0.0

    def repair(self) -> None:
        """Start the nodes that do not run. If the first one has ended, both start again, because it is the head.

        If an agent of a raylet was killed, the raylet ends, but `ray start` goes on. Such a node counts as ended.
        """
        if time.monotonic() - self._looked > RAYLETS:
            for number, node in enumerate(self._nodes):
                if node is not None and all(kind_of(one) != "raylet" for one in marked(self.marks[number])):
                    self._end(number)
            self._looked = time.monotonic()
        for _ in range(ATTEMPTS):
            for number, node in enumerate(self._nodes):
                if node is not None and node.poll() is None:
                    continue
                for one in range(number, 2):
                    self._end(one)
                if not self._start(number):
                    self.stop()  # perhaps the first node ended a moment ago
                    break
            else:
                return
        raise SystemExit(f"The nodes of Ray could not be started {ATTEMPTS} times; see {self._folder}.")

    def stop(self) -> None:
        """End both nodes."""
        for number in range(2):
            self._end(number)

    def _end(self, number: int) -> None:
        """Kill all processes of a node."""
        while left := marked(self.marks[number]):
            for one in left:
                kill(one)
            time.sleep(0.05)
        node = self._nodes[number]
        if node is not None:
            node.wait()
            self._nodes[number] = None

    def _start(self, number: int) -> bool:
        """Start a node, and wait until it is ready. Return whether it is."""
        command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--num-cpus", "1"]
        command += ["--min-worker-port", "0", "--max-worker-port", "0", "--object-store-memory", "200000000"]
        if number == 0:
            command += ["--head", "--port", self._address.partition(":")[2], "--include-dashboard=false"]
            command += ["--temp-dir", str(self._folder / "ray")]
        else:
            command += ["--address", self._address]
        path = self._folder / f"node-{number}.txt"
        environment = {**os.environ, **RAY, **self._common, MARK: self.marks[number], "OMP_NUM_THREADS": "1"}
        with path.open("wb") as log:
            self._nodes[number] = node = subprocess.Popen(
                command, stdout=log, stderr=log, env=environment, start_new_session=True
            )
        self.restarts[number] += 1
        deadline = time.monotonic() + START
        while "Ray runtime started" not in path.read_text(errors="replace"):
            if node.poll() is not None or time.monotonic() > deadline:
                return False
            time.sleep(0.1)
        return True
