"""Runs that are killed, or whose disk is full, at any write: resumed, they have the bytes of an undisturbed run."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from tests.forking_interpreter import run_module

ROOT = Path(__file__).parents[2]
POLICY = '[[check]]\nname = "UniformFragility"\nat_least = 0.0001\n'
#: A pytest plugin that kills its process, or fills the disk, at one of the changes to the folder of reports.
PLUGIN = '''"""Kill this process at a change to a folder, or let the disk be full from then on."""

import errno
import os
import signal
import sys
from pathlib import Path

import pyarrow.parquet

AT, HOW, FOLDER, COUNT = (os.environ[f"INTERRUPT_{name}"] for name in ("AT", "HOW", "FOLDER", "COUNT"))
REMOVALS = {"os.remove", "os.rmdir"}
CHANGES = {"os.rename", "os.mkdir", "table", *REMOVALS}
changes = 0


def count(event, arguments):
    global changes
    writes = event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)
    if not writes and event not in CHANGES or not isinstance(arguments[0], (str, Path)):
        return
    if not str(arguments[0]).startswith(FOLDER):
        return
    changes += 1
    with open(COUNT, "a") as file:
        file.write(f"{event} {arguments[0]}\n")
    if changes == int(AT) and HOW == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if HOW == "full" and changes >= int(AT) > 0 and event not in REMOVALS:
        raise OSError(errno.ENOSPC, "No space left on device", str(arguments[0]))


class Writer(pyarrow.parquet.ParquetWriter):
    def __init__(self, where, *arguments, **options):
        sys.audit("table", where)
        self.path = where
        super().__init__(where, *arguments, **options)

    def write_table(self, *arguments, **options):
        sys.audit("table", self.path)
        super().write_table(*arguments, **options)


pyarrow.parquet.ParquetWriter = Writer
sys.addaudithook(count)
'''
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not hasattr(os, "fork"), reason="starts each run by a fork"),
]


class Runs:
    """Runs of the same audit, in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.reports = folder / "reports"
        (folder / "policy.toml").write_text(POLICY, encoding="utf-8")
        (folder / "interrupting.py").write_text(PLUGIN, encoding="utf-8")

    def start(self, *options: str, at: int = 0, how: str = "kill") -> subprocess.CompletedProcess[str]:
        """Run the audit. At one of the changes to the reports, kill it or let the disk be full."""
        words = ["-q", "-p", "no:cacheprovider", "-p", "interrupting", "audits/", "--model", "demo"]
        words += ["--policy", str(self.folder / "policy.toml"), "--audit-max-instances", "600", "--audit-threads", "1"]
        environment = {"INTERRUPT_AT": str(at), "INTERRUPT_HOW": how, "INTERRUPT_FOLDER": str(self.reports)}
        environment |= {"INTERRUPT_COUNT": str(self.folder / "changes"), "PYTHONPATH": f"{self.folder}:{ROOT}"}
        options = ("--audit-reports", str(self.reports), *options)
        return run_module("pytest", *words, *options, cwd=ROOT, env=environment)

    def newest(self) -> Path:
        return self.reports / (self.reports / "latest.txt").read_text(encoding="utf-8").strip()

    def status(self) -> str:
        """The status of the newest run; "" if there is none."""
        record = self.newest() / "audit.json" if (self.reports / "latest.txt").exists() else None
        return json.loads(record.read_text(encoding="utf-8"))["status"] if record and record.exists() else ""

    def changes(self) -> int:
        return len((self.folder / "changes").read_text().splitlines())


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, int]:
    """measurements.parquet of an undisturbed run, and the number of changes to its folder."""
    runs = Runs(tmp_path_factory.mktemp("undisturbed"))
    done = runs.start()
    assert done.returncode == 0, done.stdout + done.stderr
    return (runs.newest() / "measurements.parquet").read_bytes(), runs.changes()


#: Which of the changes are tested; every 7th unless the environment variable says otherwise.
STEP = int(os.environ.get("INTERRUPT_STEP", "7"))


@pytest.mark.parametrize("how", ["kill", "full"])
def test_a_run_that_is_interrupted_at_any_change_has_the_same_bytes_after_it_is_resumed(
    undisturbed: tuple[bytes, int], tmp_path: Path, how: str
) -> None:
    expected, changes = undisturbed
    assert changes > 40
    for at in range(1, changes + 1, STEP):
        folder = tmp_path / str(at)
        folder.mkdir()
        runs = Runs(folder)
        first = runs.start(at=at, how=how)
        shown = first.stdout + first.stderr
        if how == "kill":
            assert first.returncode == -signal.SIGKILL
        elif runs.status() != "passed":
            assert first.returncode > 0, (at, shown)
            assert "Traceback" not in shown, (at, shown)
            assert "No space left on device" in shown, (at, shown)
        if runs.status() == "passed":
            assert (runs.newest() / "measurements.parquet").read_bytes() == expected
            continue
        has_shards = any(runs.reports.glob("*/parts/shards/*/*/plan.json"))
        options = ["--audit-resume", str(runs.newest())] if has_shards else []
        second = runs.start(*options)
        assert second.returncode == 0, (at, shown, second.stdout + second.stderr)
        run = runs.newest()
        assert runs.status() == "passed", at
        assert (run / "measurements.parquet").read_bytes() == expected, at
        assert not [file for file in run.rglob("*") if file.name.startswith(".") or file.name == "parts"], at
        shutil.rmtree(folder)
