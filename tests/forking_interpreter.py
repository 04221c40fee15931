"""Start Python modules in new processes that need not import torch again.

Run as a script, this is a server: it imports the slow libraries once, and then forks a process for each request that it
reads from its standard input. A forked process runs a module as `python -m` does.
"""

from __future__ import annotations

import atexit
import functools
import gc
import importlib
import json
import os
import runpy
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pytest

#: What a run of the audit imports, without attnaudit itself, which has to be imported in each process.
SLOW_IMPORTS = (
    "pytest",
    *("torch", "scipy.stats", "scipy.special", "sklearn.cluster", "numpy.fft", "pyarrow.dataset", "pyarrow.parquet"),
    *("jinja2", "msgspec", "rich.table", "threadpoolctl", "safetensors.torch", "xml.etree.ElementTree"),
)


@dataclass(frozen=True, slots=True)
class Completed:
    """A process that has ended.

    Attributes:
        status: Its exit status, or the negative number of the signal that ended it.
        out: What it wrote to its standard output.
        err: What it wrote to its standard error.
    """

    status: int
    out: str
    err: str


class ForkingInterpreter:
    """A server process, which the first run starts. Where processes cannot be forked, `python -m` starts each module.

    Args:
        python_path: The folder that the processes import attnaudit from.
        scratch: A folder for the outputs of the processes.
    """

    def __init__(self, python_path: Path, scratch: Path) -> None:
        self._scratch = scratch
        self._environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
        from attnaudit.plugin.selection import CI_VARIABLES

        for name in (
            *CI_VARIABLES,
            "PYTHONDONTWRITEBYTECODE",
        ):  # pytest caches the modules that it rewrites as bytecode
            self._environment.pop(name, None)
        inherited = self._environment.get("PYTHONPATH")
        self._environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(python_path), inherited]))
        self._server: subprocess.Popen[bytes] | None = None
        self._unread = b""

    def run(
        self,
        module: str,
        arguments: Sequence[str],
        *,
        cwd: Path,
        env: Mapping[str, str] | None = None,
        timeout: float = 300,
    ) -> Completed:
        """Run a module in a new process and wait for it.

        Args:
            module: The module to run, such as "pytest".
            arguments: Its arguments.
            cwd: The working folder.
            env: Variables to add to the environment.
            timeout: After how many seconds to give up.

        Raises:
            TimeoutError: The process did not end in time. It is killed.
        """
        environment = {**self._environment, **(env or {})}
        if not hasattr(os, "fork"):
            command = [sys.executable, "-m", module, *arguments]
            done = subprocess.run(
                command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=timeout, check=False
            )
            return Completed(done.returncode, done.stdout, done.stderr)
        if self._server is None:
            self._server = subprocess.Popen(
                [sys.executable, __file__],
                cwd=self._scratch,
                env=self._environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
        assert self._server.stdin is not None
        out, err = self._scratch / "out.txt", self._scratch / "err.txt"
        request = {"module": module, "arguments": list(arguments), "cwd": str(cwd), "env": environment}
        self._server.stdin.write(json.dumps({**request, "out": str(out), "err": str(err)}).encode() + b"\n")
        self._server.stdin.flush()
        process = int(self._answer(timeout))
        try:
            status = int(self._answer(timeout))
        except TimeoutError:
            os.kill(process, signal.SIGKILL)
            self._answer(timeout)
            raise
        return Completed(status, *(path.read_text(encoding="utf-8", errors="replace") for path in (out, err)))

    def close(self) -> None:
        """End the server."""
        if self._server is not None:
            self._server.communicate(timeout=60)
            self._server = None

    def _answer(self, timeout: float) -> str:
        """Read a line from the server.

        Raises:
            TimeoutError: There is none in time.
        """
        assert self._server is not None
        assert self._server.stdout is not None
        end = time.monotonic() + timeout
        while b"\n" not in self._unread:  # several lines may arrive together
            ready, _, _ = select.select([self._server.stdout], [], [], max(0, end - time.monotonic()))
            received = os.read(self._server.stdout.fileno(), 4096) if ready else b""
            if not received:
                raise TimeoutError(f"no answer within {timeout} seconds")
            self._unread += received
        line, _, self._unread = self._unread.partition(b"\n")
        return line.decode()


@functools.cache
def shared() -> ForkingInterpreter:
    """Return the server that all tests of this process share."""
    scratch = tempfile.TemporaryDirectory(prefix="attnaudit-")
    interpreter = ForkingInterpreter(Path(__file__).parents[1], Path(scratch.name))
    atexit.register(scratch.cleanup)
    atexit.register(interpreter.close)
    return interpreter


def run_module(
    module: str, *arguments: str, cwd: Path, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a module in a new process as `python -m` does.

    Args:
        module: The module to run, such as "attnaudit".
        arguments: Its arguments.
        cwd: The working folder.
        env: Variables to add to the environment, which is that of this process without CI and with few of pytest's.
    """
    addopts = {"PYTEST_ADDOPTS": os.environ.get("PYTEST_ADDOPTS", "")}
    done = shared().run(module, arguments, cwd=cwd, env={**addopts, **(env or {})})
    return subprocess.CompletedProcess([module, *arguments], done.status, done.out, done.err)


def run_pytest(pytester: pytest.Pytester, *arguments: str) -> pytest.RunResult:
    """Do what `pytester.runpytest_subprocess` does, in a process that need not import torch."""
    start = time.monotonic()
    path = os.pathsep.join(filter(None, [str(pytester.path), os.environ.get("PYTHONPATH", "")]))
    words = [f"--basetemp={pytester.path / 'basetemp'}", "-p", "no:hypothesispytest", *arguments]
    done = shared().run("pytest", words, cwd=pytester.path, env={**os.environ, "PYTHONPATH": path})
    print(done.out)
    print(done.err, file=sys.stderr)
    import pytest

    return pytest.RunResult(done.status, done.out.splitlines(), done.err.splitlines(), time.monotonic() - start)


def serve() -> None:
    """Answer each request with the id of the forked process and, when it has ended, its exit status."""
    for name in SLOW_IMPORTS:
        importlib.import_module(name)
    gc.freeze()  # pytest collects garbage at its end, which would otherwise look through all of torch
    for line in sys.stdin:
        request = json.loads(line)
        process = os.fork()
        if process == 0:
            _become(request)
            return
        print(process, flush=True)
        _, status = os.waitpid(process, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


def _become(request: Mapping[str, Any]) -> None:
    """Run the module of a request in this process, with its files, folder, environment and arguments."""
    for number, path, flags in (
        (0, os.devnull, os.O_RDONLY),
        (1, request["out"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC),
        (2, request["err"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC),
    ):
        file = os.open(path, flags, 0o644)
        os.dup2(file, number)
        os.close(file)
    sys.stdin = os.fdopen(0, "r")
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    time.tzset()
    # As `python -m` does.
    first = [request["cwd"], *filter(None, request["env"].get("PYTHONPATH", "").split(os.pathsep))]
    sys.path[:] = [*first, *(path for path in sys.path[1:] if path not in first)]
    sys.argv = [request["module"], *request["arguments"]]
    runpy.run_module(request["module"], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    serve()
