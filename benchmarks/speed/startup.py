"""How long commands take that need no model: wall-clock seconds of whole processes, and whether they import torch."""

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
COLLECT = ["-m", "pytest", "--collect-only", "audits/", "--model", "demo", "-q", "-p", "no:cacheprovider"]
COMMANDS = {
    "python -c pass": ["-c", "pass"],
    "attnaudit --help": ["-m", "attnaudit.cli", "--help"],
    "pytest --collect-only audits/ --model demo -q": COLLECT,
    "python -c 'import torch'": ["-c", "import torch"],
}
#: Says whether torch was imported, after running a module with the arguments given.
WITNESS = """
import contextlib, io, runpy, sys
sys.argv = sys.argv[1:]
with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
print("torch" in sys.modules)
"""


def _run(arguments: list[str]) -> str:
    done = subprocess.run([sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True)
    if done.returncode not in (0, 1):
        raise SystemExit(f"{' '.join(arguments)}: {done.stdout}{done.stderr}")
    return done.stdout


def cost(arguments: list[str]) -> tuple[float, float]:
    """Seconds of wall clock and of CPU."""
    before, started = os.times(), time.perf_counter()
    _run(arguments)
    wall, after = time.perf_counter() - started, os.times()
    return wall, (after.children_user + after.children_system) - (before.children_user + before.children_system)


def imports_torch(arguments: list[str]) -> bool:
    """arguments: as of `python -m`, such as ["-m", "pytest", ...]."""
    return _run(["-c", WITNESS, *arguments[1:]]).strip().splitlines()[-1] == "True"


def measured(repeats: int) -> list[dict[str, Any]]:
    """Median, least and most seconds of each command, run in turn."""
    with tempfile.TemporaryDirectory(prefix="attnaudit-") as folder:
        audit = ["-m", "pytest", "audits/", "--model", "demo", "-q", "-p", "no:cacheprovider"]
        audit += ["--audit-max-instances=5", f"--audit-reports={folder}"]
        commands = {**COMMANDS, "audit of 5 instances": audit}
        times: dict[str, list[tuple[float, float]]] = {name: [] for name in commands}
        for _ in range(repeats):
            for name, arguments in commands.items():
                times[name].append(cost(arguments))
    return [
        {
            "command": name,
            "seconds": statistics.median(wall for wall, _ in found),
            "low": min(wall for wall, _ in found),
            "high": max(wall for wall, _ in found),
            "cpu": statistics.median(cpu for _, cpu in found),
            "imports_torch": imports_torch(COMMANDS[name]) if name in COMMANDS and "-m" in COMMANDS[name] else None,
        }
        for name, found in times.items()
    ]
