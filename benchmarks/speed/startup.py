"""Measure how long short commands take, from the start of the process to its end, and whether they import torch."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
#: Options of pytest that load the plugin of attnaudit and no other installed plugin.
ALONE = ["-p", "attnaudit.plugin.hooks"]
COLLECT = ["--collect-only", "audits/", "--model", "demo", "-q", "-p", "no:cacheprovider"]
POLICY = ["--policy", "audits/policy.toml"]
#: Without --policy, the tests in audits/ choose among several policies by the family of the model. pytest loads the
#: model for this choice, so this command cannot avoid the import of torch.
CHOOSING = "pytest --collect-only audits/ --model demo -q"
COMMANDS = {
    "python -c pass": ["-c", "pass"],
    "attnaudit --help": ["-m", "attnaudit.cli", "--help"],
    CHOOSING: ["-m", "pytest", *ALONE, *COLLECT],
    f"{CHOOSING} --policy audits/policy.toml": ["-m", "pytest", *ALONE, *COLLECT, *POLICY],
    f"{CHOOSING} --policy audits/policy.toml, with the plugins installed here": ["-m", "pytest", *COLLECT, *POLICY],
    "pytest --collect-only of an empty folder, with the plugins installed here but attnaudit's": [
        *["-m", "pytest", "--collect-only", "EMPTY", "-q", "-p", "no:cacheprovider", "-p", "no:attnaudit"]
    ],
    "python -c 'import torch'": ["-c", "import torch"],
}
#: The exit status of pytest if it collects nothing.
NO_TESTS = 5
#: A program that runs a module with arguments, and then prints whether torch was imported.
WITNESS = """
import contextlib, io, runpy, sys
sys.argv = sys.argv[1:]
with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
print("torch" in sys.modules)
"""


class Starts:
    """Runs commands in new processes.

    Compiled modules are kept in a separate folder. Later starts use them, as on a user's machine.
    """

    def __init__(self, folder: Path) -> None:
        self.empty = folder / "empty"
        self.empty.mkdir()
        inherited = {k: v for k, v in os.environ.items() if k not in ("PYTHONDONTWRITEBYTECODE", "PYTHONPYCACHEPREFIX")}
        self.environment = {**inherited, "PYTHONPYCACHEPREFIX": str(folder / "compiled")}

    def run(self, arguments: list[str]) -> str:
        """Run a command and return its standard output.

        Raises:
            SystemExit: The exit status of the command is not 0, 1 or NO_TESTS.
        """
        alone = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"} if ALONE[1] in arguments else {}
        done = subprocess.run(
            [sys.executable, *(str(self.empty) if one == "EMPTY" else one for one in arguments)],
            cwd=ROOT,
            env={**self.environment, **alone},
            capture_output=True,
            text=True,
        )
        if done.returncode not in (0, 1, NO_TESTS):
            raise SystemExit(f"`python {' '.join(arguments)}` failed:\n{done.stdout}{done.stderr}")
        return done.stdout

    def cost(self, arguments: list[str]) -> tuple[float, float]:
        """Return the wall-clock time and the CPU time of a command, in seconds."""
        before, started = os.times(), time.perf_counter()
        self.run(arguments)
        wall, after = time.perf_counter() - started, os.times()
        return wall, (after.children_user + after.children_system) - (before.children_user + before.children_system)

    def imports_torch(self, arguments: list[str]) -> bool | None:
        """Return whether a command imports torch. Return None for a command that does not run attnaudit."""
        if arguments[0] != "-m" or "EMPTY" in arguments:
            return None
        return self.run(["-c", WITNESS, *arguments[1:]]).strip().splitlines()[-1] == "True"


def measured(repeats: int) -> list[dict[str, Any]]:
    """Return the median, the smallest and the largest time of each command, in seconds. The commands take turns.

    Args:
        repeats: The number of runs of each command.
    """
    with tempfile.TemporaryDirectory(prefix="attnaudit-") as name:
        folder = Path(name)
        starts = Starts(folder)
        audit = ["-m", "pytest", *ALONE, "audits/", "--model", "demo", "-q", "-p", "no:cacheprovider"]
        audit += ["--audit-max-instances=5", f"--audit-reports={folder / 'reports'}"]
        commands = {**COMMANDS, "audit of 5 instances": audit}
        times: dict[str, list[tuple[float, float]]] = {name: [] for name in commands}
        torch = {name: starts.imports_torch(arguments) for name, arguments in COMMANDS.items()}
        for arguments in commands.values():
            starts.run(arguments)
        for _ in range(repeats):
            for name, arguments in commands.items():
                times[name].append(starts.cost(arguments))
    return [
        {
            "command": name,
            "seconds": statistics.median(wall for wall, _ in found),
            "low": min(wall for wall, _ in found),
            "high": max(wall for wall, _ in found),
            "cpu": statistics.median(cpu for _, cpu in found),
            "imports_torch": torch.get(name),
        }
        for name, found in times.items()
    ]
