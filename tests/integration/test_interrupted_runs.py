"""Runs that are killed, or whose disk is full, while they write: resumed, they have the bytes of an undisturbed run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.forking_interpreter import run_module

ROOT = Path(__file__).parents[2]
POLICY = '[[check]]\nname = "UniformFragility"\nat_least = 0.0001\n'
#: A pytest plugin that kills its process, or fills the disk, when the process changes a file.
PLUGIN = '''"""Kill this process at a change to a file, or let the disk be full from then on."""

import errno
import os
import re
import signal
import sys
from pathlib import Path

import pyarrow.parquet

AT, HOW, FOLDER = (os.environ[f"INTERRUPT_{name}"] for name in ("AT", "HOW", "FOLDER"))
REMOVALS = {"os.remove", "os.rmdir"}
CHANGES = {"os.rename", "os.mkdir", "table", *REMOVALS}
full = False


def interrupt(event, arguments):
    global full
    writes = event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)
    if not writes and event not in CHANGES or not str(arguments[0]).startswith(FOLDER):
        return
    if re.search(AT, f"{event} {arguments[0]}"):
        if HOW == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        full = True
    if full and event not in REMOVALS:  # files can still be removed
        raise OSError(errno.ENOSPC, "No space left on device", str(arguments[0]))


class Writer(pyarrow.parquet.ParquetWriter):
    """Announces the tables of a Parquet file."""

    tables = 0

    def __init__(self, where, *arguments, **options):
        self.path = where
        super().__init__(where, *arguments, **options)

    def write_table(self, *arguments, **options):
        self.tables += 1
        sys.audit("table", f"{self.path} {self.tables}")
        super().write_table(*arguments, **options)


pyarrow.parquet.ParquetWriter = Writer
sys.addaudithook(interrupt)
'''
#: A moment of a run, and a pattern for the change that the process makes at this moment.
MOMENTS = {
    "before the plan of the shards": r"rename .*/\.plan\.json",
    "between the numbers and the record of a shard": r"rename .*/\.000001\.json",
    "while the numbers are put together": r"table .*/parts/.*\.parquet 3",
    "before the part is complete": r"rename .*/\.main-\w+\.part\.json",
    "before the parts are merged": r"rename .*/parts/main-\w+\.parquet$",
    "while the report is written": r"rename .*/\.report\.html",
    "before the status is written": r"rename .*/\.summary\.md",
    "while the parts are removed": r"rmdir .*/parts/shards$",
}
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not hasattr(os, "fork"), reason="the tests kill processes that were forked"),
]


class Runs:
    """Runs of the same audit, in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.reports = folder / "reports"
        (folder / "policy.toml").write_text(POLICY, encoding="utf-8")
        (folder / "interrupting.py").write_text(PLUGIN, encoding="utf-8")

    def start(self, *options: str, at: str = "$^", how: str = "kill") -> subprocess.CompletedProcess[str]:
        """Run the audit. At the first change that a pattern describes, kill it or let the disk be full."""
        words = ["-q", "-p", "no:cacheprovider", "-p", "interrupting", "audits/", "--model", "demo"]
        words += ["--policy", str(self.folder / "policy.toml"), "--audit-max-instances", "600", "--audit-threads", "1"]
        environment = {"INTERRUPT_AT": at, "INTERRUPT_HOW": how, "INTERRUPT_FOLDER": str(self.reports)}
        environment["PYTHONPATH"] = os.pathsep.join([str(self.folder), str(ROOT)])
        options = ("--audit-reports", str(self.reports), *options)
        return run_module("pytest", *words, *options, cwd=ROOT, env=environment)

    def newest(self) -> Path:
        return self.reports / (self.reports / "latest.txt").read_text(encoding="utf-8").strip()

    def status(self) -> str:
        """The status of the newest run."""
        status: str = json.loads((self.newest() / "audit.json").read_text(encoding="utf-8"))["status"]
        return status

    def numbers(self) -> bytes:
        return (self.newest() / "measurements.parquet").read_bytes()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """measurements.parquet of an undisturbed run."""
    runs = Runs(tmp_path_factory.mktemp("undisturbed"))
    done = runs.start()
    assert done.returncode == 0, done.stdout + done.stderr
    return runs.numbers()


def require_same_after_resuming(runs: Runs, undisturbed: bytes) -> None:
    """Resume a run, or start a new one if there are no shards, and compare its numbers."""
    has_shards = any(runs.newest().glob("parts/shards/*/*/plan.json"))
    done = runs.start(*(["--audit-resume", str(runs.newest())] if has_shards else []))
    assert done.returncode == 0, done.stdout + done.stderr
    assert runs.status() == "passed"
    assert runs.numbers() == undisturbed
    left = [file.name for file in runs.newest().rglob("*") if file.name.startswith(".") or file.name == "parts"]
    assert not left


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_run_that_was_killed_is_resumed_with_the_same_bytes(undisturbed: bytes, tmp_path: Path, moment: str) -> None:
    runs = Runs(tmp_path)
    assert runs.start(at=MOMENTS[moment]).returncode == -signal.SIGKILL
    if "removed" in moment:
        assert runs.status() == "passed"
        assert runs.numbers() == undisturbed
        return
    assert runs.status() == "running"
    require_same_after_resuming(runs, undisturbed)


@pytest.mark.parametrize("moment", list(MOMENTS)[:-1])
def test_a_full_disk_is_an_error_and_the_run_is_resumed_with_the_same_bytes(
    undisturbed: bytes, tmp_path: Path, moment: str
) -> None:
    runs = Runs(tmp_path)
    done = runs.start(at=MOMENTS[moment], how="full")
    assert done.returncode > 0
    assert "No space left on device" in done.stdout
    assert "Free some space" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr
    assert runs.status() != "passed"
    require_same_after_resuming(runs, undisturbed)


def test_only_one_of_two_processes_resumes_a_run(undisturbed: bytes, tmp_path: Path) -> None:
    runs = Runs(tmp_path)
    assert runs.start(at=MOMENTS["between the numbers and the record of a shard"]).returncode == -signal.SIGKILL
    run = runs.newest()
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "audits/", "--model", "demo"]
    command += ["--policy", str(tmp_path / "policy.toml"), "--audit-max-instances", "600", "--audit-threads", "1"]
    command += ["--audit-reports", str(runs.reports), "--audit-resume", str(run)]
    both = [subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) for _ in range(2)]
    shown = [one.communicate()[0].decode() for one in both]
    assert sorted(one.returncode for one in both) == [0, 4]
    refused = shown[both.index(next(one for one in both if one.returncode))]
    assert "another process is measuring or writing this run" in refused or "this run has passed" in refused
    assert runs.status() == "passed"
    assert runs.numbers() == undisturbed
