"""Kill processes of audits at random moments, resume the audits, and compare their numbers with an undisturbed run.

    python benchmarks/random_kills.py --kills 100 --executor processes
    python benchmarks/random_kills.py --kills 100 --executor ray

Each run audits the demo model with --audit-workers. After a random time, this script sends SIGKILL to one of the
processes of the run: to a process that measures, to another process (with Ray, the processes of Ray), or to pytest
itself. A run whose pytest was killed is resumed with --audit-resume. A run that ends must have a measurements.parquet
with the same bytes as a run in one process without kills. The script runs only on Linux.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

POLICY = """
[[check]]
name = "TotalEffect"
at_least = 0.01

[[check]]
name = "InformationRanking"
at_least = 0.1
severity = "report"
"""


def children(process: int) -> list[int]:
    """Return the ids of all descendants of a process that are alive."""
    found = []
    for task in Path(f"/proc/{process}/task").glob("*/children"):
        try:
            direct = [int(one) for one in task.read_text().split()]
        except OSError:
            continue
        for one in direct:
            found += [one, *children(one)]
    return found


def command_line(process: int) -> str:
    """Return the command line of a process; "" if it has ended."""
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def kind_of(process: int, driver: int) -> str:
    """Return what a process of a run does."""
    line = command_line(process)
    if process == driver:
        return "pytest"
    if "spawn_main" in line or "ray::" in line:
        return "worker"
    return "other"


class Runs:
    """Runs of the same audit.

    Args:
        folder: The folder for their reports.
        rows: The number of rows to audit.
    """

    def __init__(self, folder: Path, rows: int) -> None:
        self.folder = folder
        self.policy = folder / "policy.toml"
        self.policy.write_text(POLICY)
        self.rows = rows

    def start(self, *options: str) -> subprocess.Popen[bytes]:
        """Start or resume a run."""
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "audits/", "--model", "demo"]
        command += ["--policy", str(self.policy), "--audit-max-instances", str(self.rows)]
        command += ["--audit-reports", str(self.folder), *options]
        with (self.folder / "log.txt").open("ab") as log:
            return subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)

    def newest(self) -> Path | None:
        """Return the folder of the newest run."""
        latest = self.folder / "latest.txt"
        return self.folder / latest.read_text().strip() if latest.exists() else None


def digest(run: Path) -> str:
    """Return the SHA-256 hash of the numbers of a run that passed."""
    status = json.loads((run / "audit.json").read_text())["status"]
    if status != "passed":
        raise SystemExit(f"{run}: the run ended with the status {status!r}; see log.txt next to it.")
    return hashlib.sha256((run / "measurements.parquet").read_bytes()).hexdigest()


def main() -> None:
    """Kill processes until the number of kills is reached, and print what was killed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--executor", choices=("processes", "ray"), default="processes")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rows", type=int, default=2026)
    parser.add_argument("--seconds", type=float, default=8.0, help="mean time before a kill")
    parser.add_argument("--kills-per-run", type=int, default=5, help="afterwards, the run may end")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--limit", type=float, default=1e9, help="stop after this number of seconds")
    options = parser.parse_args()
    draw = random.Random(options.seed)
    killed: Counter[str] = Counter()
    began, ended, resumed = time.monotonic(), 0, 0
    with tempfile.TemporaryDirectory(prefix="random-kills-") as name:
        runs = Runs(Path(name), options.rows)
        if runs.start("--audit-threads", "1").wait() != 0:
            raise SystemExit((runs.folder / "log.txt").read_text()[-2000:])
        undisturbed = runs.newest()
        assert undisturbed is not None
        expected = digest(undisturbed)
        workers = ["--audit-workers", str(options.workers), "--audit-executor", options.executor]
        resume: Path | None = None
        of_run = 0
        while (killed.total() < options.kills and time.monotonic() - began < options.limit) or resume is not None:
            before = runs.newest()
            process = runs.start(*workers, *(["--audit-resume", str(resume)] if resume else []))
            resumed += resume is not None
            dead = False
            while process.poll() is None:
                wait = draw.expovariate(1 / options.seconds) if of_run < options.kills_per_run else None
                try:
                    process.wait(timeout=wait)
                    break
                except subprocess.TimeoutExpired:
                    pass
                alive = [process.pid, *children(process.pid)]
                by_kind: dict[str, list[int]] = {}
                for one in alive:
                    by_kind.setdefault(kind_of(one, process.pid), []).append(one)
                kinds = sorted(by_kind, key=lambda kind: kind == "pytest")
                if len(kinds) > 1 and draw.random() < 0.7:
                    kinds = kinds[:-1]  # pytest itself less often, since each kill of it costs a start
                victim = draw.choice(by_kind[draw.choice(kinds)])
                kind = kind_of(victim, process.pid)
                try:
                    os.kill(victim, signal.SIGKILL)
                except ProcessLookupError:
                    continue
                killed[kind] += 1
                of_run += 1
                print(f"{killed.total():4} killed {kind}", flush=True)
                if kind == "pytest":
                    dead = True
                    process.wait()
                    break
            time.sleep(0.2)
            newest = runs.newest()
            if newest is None or (newest == before and resume is None):
                continue  # killed before the run began
            if not dead and process.returncode == 0:
                if digest(newest) != expected:
                    raise SystemExit(f"{newest}: other numbers than the undisturbed run")
                ended, resume, of_run = ended + 1, None, 0
                print(f"     run {ended} ended with the bytes of the undisturbed run", flush=True)
                continue
            has_shards = any(newest.glob("parts/shards/*/*/plan.json"))
            resume = newest if has_shards else None
    print(
        f"{killed.total()} kills ({', '.join(f'{count} of {kind}' for kind, count in sorted(killed.items()))}); "
        f"{resumed} starts resumed a run; {ended} runs ended, all with the bytes of the undisturbed run; "
        f"{time.monotonic() - began:.0f} s"
    )


if __name__ == "__main__":
    main()
