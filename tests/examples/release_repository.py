"""The repository of a user in which the commands of a workflow are run."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

from attnaudit import cli
from attnaudit.data import load, sample

ROOT = Path(__file__).resolve().parents[2]


def release_repository(folder: Path) -> dict[str, str]:
    """Write a repository with the demo as `checkpoints/release` and 60 rows of held-out data.

    Returns:
        The environment for its commands, in which `pytest` and `attnaudit` are those of this interpreter.
    """
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "attnaudit" / "models" / "demo", folder / "checkpoints" / "release", ignore=ignored)
    assert cli.main(["init", str(folder)]) == 0
    rows = sample(load("movie-reviews"), 60, 0).instances
    lines = [json.dumps({"text": row.text, "label": row.label}) + "\n" for row in rows]
    (folder / "audits" / "held_out.jsonl").write_text("".join(lines), encoding="utf-8")
    scripts = folder / "bin"
    scripts.mkdir()
    for name, module in (("pytest", "pytest"), ("attnaudit", "attnaudit")):
        (scripts / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" -m {module} "$@"\n', encoding="utf-8")
        (scripts / name).chmod(0o755)
    path = os.pathsep.join([str(scripts), os.environ["PATH"]])
    return {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "CI": "true"}
