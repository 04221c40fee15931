"""Runs in several processes, resumed runs and merged parts have the bytes of a run in one process."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks.killed_processes import MARK, alive, command_line, kill, kind_of, marked

ROOT = Path(__file__).parents[2]
POLICY = '[[check]]\nname = "UniformFragility"\nat_least = 0.0001\n'
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shards")
    (folder / "policy.toml").write_text(POLICY, encoding="utf-8")
    return folder


def start(folder: Path, *options: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "audits/", "--model", "demo"]
    command += ["--policy", str(folder / "policy.toml"), "--audit-max-instances", "600"]
    with (folder / "log.txt").open("ab") as log:
        return subprocess.Popen(
            [*command, "--audit-reports", str(folder / "reports"), *options], stdout=log, stderr=log, cwd=ROOT
        )


def newest(folder: Path) -> Path:
    return folder / "reports" / (folder / "reports" / "latest.txt").read_text().strip()


def numbers(folder: Path, *options: str) -> bytes:
    assert start(folder, *options).wait() == 0, (folder / "log.txt").read_text()
    return (newest(folder) / "measurements.parquet").read_bytes()


@pytest.fixture(scope="module")
def undisturbed(folder: Path) -> bytes:
    return numbers(folder, "--audit-threads", "1")


def test_a_pool_has_the_bytes_of_one_process(folder: Path, undisturbed: bytes) -> None:
    assert numbers(folder, "--audit-workers", "2") == undisturbed


def test_ray_has_the_bytes_of_one_process(folder: Path, undisturbed: bytes) -> None:
    if importlib.util.find_spec("ray") is None:
        pytest.skip("Ray is not installed (the extra 'ray')")
    assert numbers(folder, "--audit-workers", "2", "--audit-executor", "ray") == undisturbed


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs SIGKILL")
def test_a_killed_run_is_resumed_with_the_same_bytes(folder: Path, undisturbed: bytes) -> None:
    before = newest(folder)
    process = start(folder, "--audit-threads", "1")
    while process.poll() is None and not any((newest(folder) / "parts").glob("shards/*/*/0*.json")):
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    run = newest(folder)
    assert run != before
    assert json.loads((run / "audit.json").read_text())["status"] == "running"
    stored = {file: file.stat().st_mtime_ns for file in run.glob("parts/shards/*/*/0*.parquet")}
    assert stored
    refused = start(folder, "--audit-threads", "1", "--audit-seed", "5", "--audit-resume", str(run))
    assert refused.wait() != 0
    assert "They differ in: seed" in (folder / "log.txt").read_text()
    assert {file: file.stat().st_mtime_ns for file in stored} == stored
    assert numbers(folder, "--audit-resume", str(run)) == undisturbed
    assert start(folder, "--audit-resume", str(run)).wait() == 4  # the run has ended


def files_of(run: Path) -> dict[Path, str]:
    return {file: hashlib.sha256(file.read_bytes()).hexdigest() for file in run.rglob("*") if file.is_file()}


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("executor", ["processes", "ray"])
def test_workers_of_a_killed_run_cannot_disturb_the_resumed_run(
    folder: Path, undisturbed: bytes, executor: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if executor == "ray":
        pytest.importorskip("ray", reason="Ray is not installed (the extra 'ray')")
    mark = f"{os.getpid()}-{executor}"
    with monkeypatch.context() as patch:
        patch.setenv(MARK, mark)
        before = newest(folder)
        options = ("--audit-workers", "2", "--audit-executor", executor)
        process = start(folder, *options)
    while process.poll() is None and not any(newest(folder).glob("parts/shards/*/*/0*.json")):
        time.sleep(0.02)
    run = newest(folder)
    assert run != before
    orphans = [one for one in marked(mark) if kind_of(one) == "worker"]
    assert orphans
    try:
        for one in orphans:
            os.kill(one, signal.SIGSTOP)
        for one in marked(mark):
            if "ray_watchdog" in command_line(one):  # it would end the workers
                kill(one)
        process.kill()
        process.wait()
        assert any(map(alive, orphans))
        resumed = start(folder, *options, "--audit-resume", str(run))
        while not json.loads((run / "audit.json").read_text())["gates"]:  # until it has locked the run
            assert resumed.poll() is None
            time.sleep(0.02)
        for one in orphans[:1]:  # this one goes on while the resumed run measures
            os.kill(one, signal.SIGCONT)
        assert resumed.wait() == 0, (folder / "log.txt").read_text()
        assert (run / "measurements.parquet").read_bytes() == undisturbed
        written = files_of(run)
        for one in filter(alive, orphans):
            os.kill(one, signal.SIGCONT)
        deadline = time.monotonic() + 120
        while any(map(alive, orphans)):
            assert time.monotonic() < deadline, "a worker of the killed run does not end"
            time.sleep(0.1)
        assert files_of(run) == written
    finally:
        for one in marked(mark):
            kill(one)


def test_merged_parts_have_the_bytes_of_one_process(folder: Path, undisturbed: bytes) -> None:
    command = [sys.executable, "-m", "attnaudit", "measure", "--model", "demo", "--max-instances", "600"]
    command += ["--policy", str(folder / "policy.toml")]
    for part in ("1/2", "2/2"):
        subprocess.run(
            [*command, "--shard", part, "--out", str(folder / part.replace("/", "of"))],
            check=True,
            cwd=ROOT,
            env=os.environ,
        )
    merged = folder / "reports" / "merged"
    subprocess.run(
        [
            sys.executable,
            "-m",
            "attnaudit",
            "merge",
            str(folder / "1of2"),
            str(folder / "2of2"),
            "--into",
            str(merged),
        ],
        check=True,
        cwd=ROOT,
    )
    assert numbers(folder, "--audit-resume", str(merged)) == undisturbed
