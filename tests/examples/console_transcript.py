"""Runs a page of the documentation as a reader would: writes its example files, and runs the commands that it shows."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

BLOCK = re.compile(r"(?:<!-- example: (\S+) -->\n)?```(\w*)\n(.*?)```", re.DOTALL)
#: Numbers differ between machines, because training does.
NUMBER = re.compile(r"\d+(?:[.,]\d+)*")
#: Numbers of conformance checks, which are the same on all machines.
COUNTS = re.compile(r"\d+ passed, \d+ failed, \d+ skipped")
ANYTHING = "..."


def steps(text: str) -> Iterator[tuple[str, str]]:
    """Yield ("file name", its contents) and ("$ command", the output that the page shows), in the order of the page."""
    for name, language, body in BLOCK.findall(text):
        if name:
            yield name, body
        elif language == "console":
            yield from re.findall(r"^(\$ .*)\n((?:(?!\$ ).*\n)*)", body, re.MULTILINE)


def run_page(text: str, folder: Path) -> list[str]:
    """Follow a page in a folder.

    Returns:
        One message for each command whose output lacks a line that the page shows. Lines of the page must occur in the
        same order as in the output, with other lines between them only where the page has `...`. Numbers may differ,
        except those of conformance checks.
    """
    here = Path(__file__).resolve().parents[2]
    scripts = folder / ".scripts"  # `python`, `pytest` and `attnaudit` are those of this environment
    scripts.mkdir()
    modules = {"python": "", "pytest": "-m pytest -p no:cacheprovider", "attnaudit": "-m attnaudit"}
    for name, module in modules.items():
        script = scripts / name
        script.write_text(f'#!/bin/sh\nexec "{sys.executable}" {module} "$@"\n', encoding="utf-8")
        script.chmod(0o755)
    environment = {
        **os.environ,
        "PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(here),
        "COLUMNS": "100",
    }
    environment.pop("CI", None)
    problems = []
    for step, shown in steps(text):
        if not step.startswith("$ "):
            (folder / step).parent.mkdir(exist_ok=True)
            (folder / step).write_text(shown, encoding="utf-8")
            continue
        done = subprocess.run(
            step[2:], shell=True, cwd=folder, env=environment, capture_output=True, text=True, check=False
        )
        missing = first_missing_line(shown, done.stdout)
        if missing is not None or done.returncode > 1:
            problems.append(f"{step}\nexit status {done.returncode}; missing: {missing}\n{done.stdout}{done.stderr}")
    return problems


def first_missing_line(shown: str, output: str) -> str | None:
    """Return the first line of a shown output that the real one lacks at its place; None if there is none."""
    real = [_masked(line) for line in output.splitlines()]
    at, anywhere = 0, False
    for line in shown.splitlines():
        if line == ANYTHING:
            anywhere = True
            continue
        masked = _masked(line)
        places = range(at, len(real) if anywhere else min(at + 1, len(real)))
        found = next((i for i in places if real[i] == masked), None)
        if found is None:
            return line
        at, anywhere = found + 1, False
    return None if anywhere or at == len(real) else f"nothing, but the output continues: {output.splitlines()[at]}"


def _masked(line: str) -> str:
    return line.rstrip() if COUNTS.search(line) else NUMBER.sub("#", line.rstrip())
