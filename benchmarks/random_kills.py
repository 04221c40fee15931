"""Kill processes of audits at random moments, resume the audits, and compare their numbers with an undisturbed run.

    python benchmarks/random_kills.py --kills 120 --executor processes
    python benchmarks/random_kills.py --kills 50 --executor ray
    python benchmarks/random_kills.py --kills 40 --executor ray --nodes 2

Each run audits the demo model with two workers. At random moments, this script sends SIGKILL to one of the processes of
the run: a worker, pytest itself, a process of Ray or, with --nodes 2, a process of one of two Ray nodes, which were
started with `ray start` and are started again if they end. A run whose pytest ended is resumed with --audit-resume. A
run that passes must have a measurements.parquet with the same bytes as a run in one process without kills, and every
row exactly once. The script runs only on Linux.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

if __package__ is None:  # started as a file
    sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.killed_processes import RAY, RayNodes, alive, command_line, kill, kind_of, marked
from benchmarks.many_rows import write_rows

POLICY = """
[[check]]
name = "PermutationFragility"
at_least = 0.001

[[check]]
name = "Agreement"
importance = "leave_one_out"
at_least = "floor"
severity = "report"
"""
#: The seconds between two looks at the files of a run.
INTERVAL = 0.02
#: The number of words of a text.
WORDS = 8
#: The moments of kills, and how often each of them is drawn. Shards that a resumed run had before do not count.
MOMENTS = {"before the first shard": 0.25, "between two shards": 0.55, "after the last shard": 0.2}
#: The moment of a kill before pytest has begun or resumed the run: it is still importing.
STARTING = "while pytest starts"
#: How often another kill follows within a few seconds.
TWICE = 0.75
#: How often each kind of process is drawn, if there is one; any other kind has the weight 1.
WEIGHTS = {"pytest": 2, "worker": 6, "raylet": 2}
#: The seconds after which the processes of a run whose pytest has ended must have ended, too.
ENDING = 30
#: The same if the watchdog that ends the processes of Ray was killed, too. Ray then ends them itself.
ENDING_WITHOUT_WATCHDOG = 180
#: The status of a pytest process that stopped with an error that was reported, such as a lost cluster.
TESTS_FAILED = 1


@dataclass
class Timeline:
    """How long the parts of an undisturbed run took, in seconds.

    Attributes:
        first: The time until the first shard was stored.
        shards: The time from the first to the last shard.
        rest: The time after the last shard.
        count: The number of shards.
    """

    first: float
    shards: float
    rest: float
    count: int


class Runs:
    """Runs of the same audit.

    Args:
        folder: The folder for their reports.
        rows: The number of rows to audit.
        environment: Environment variables of the runs.
    """

    def __init__(self, folder: Path, rows: int, environment: dict[str, str]) -> None:
        self.folder = folder
        self.policy = folder / "policy.toml"
        self.policy.write_text(POLICY)
        self.data = folder / "rows.jsonl"
        write_rows(self.data, rows)
        texts = [json.loads(line) for line in self.data.read_text().splitlines()]
        short = [{**one, "text": " ".join(one["text"].split()[:WORDS])} for one in texts]  # so that a kill costs little
        self.data.write_text("".join(f"{json.dumps(one)}\n" for one in short))
        self.rows = rows
        self.environment = environment
        self.started = 0

    def start(self, *options: str) -> tuple[subprocess.Popen[bytes], str]:
        """Start or resume a run. Return its process, and the mark in the environment of all of its processes."""
        self.started += 1
        mark = f"{os.getpid()}-run-{self.started}"
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "audits/", "--model", "demo"]
        command += ["--policy", str(self.policy), "--data", str(self.data), "--audit-reports", str(self.folder)]
        environment = {**os.environ, **self.environment, "RANDOM_KILLS": mark, "OMP_NUM_THREADS": "1", **RAY}
        with (self.folder / "log.txt").open("ab") as log:
            return (
                subprocess.Popen([*command, *options], stdout=log, stderr=log, start_new_session=True, env=environment),
                mark,
            )

    def newest(self) -> Path | None:
        """Return the folder of the newest run."""
        latest = self.folder / "latest.txt"
        return self.folder / latest.read_text().strip() if latest.exists() else None

    def log(self) -> str:
        """Return the end of what the runs printed."""
        return (self.folder / "log.txt").read_text(errors="replace")[-3000:]


def stored(run: Path | None) -> int:
    """Return the number of shards that a run has stored."""
    return 0 if run is None else len(list(run.glob("parts/shards/*/*/[0-9]*.json")))


def is_complete(run: Path | None) -> bool:
    """Return whether all shards of a run are stored."""
    plans = [] if run is None else list(run.glob("parts/shards/*/*/plan.json"))
    return bool(plans) and all(stored(run) >= json.loads(plan.read_text())["shards"] for plan in plans)


def has_passed(run: Path | None) -> bool:
    """Return whether a run has passed. This can be the case although its pytest was killed, a moment later."""
    return run is not None and json.loads((run / "audit.json").read_text())["status"] == "passed"


def has_begun(run: Path | None, since: float) -> bool:
    """Return whether pytest has begun or resumed a run since a time, which it shows by writing audit.json."""
    return run is not None and (run / "audit.json").exists() and (run / "audit.json").stat().st_mtime > since


def digest(run: Path, rows: int) -> str:
    """Return the SHA-256 hash of the numbers of a run that passed, with every row exactly once."""
    import pyarrow.parquet as pq

    status = json.loads((run / "audit.json").read_text())["status"]
    if status != "passed":
        raise SystemExit(f"{run}: the run ended with the status {status!r}.")
    file = run / "measurements.parquet"
    table = pq.read_table(file, columns=["instance", "measure"])
    cells, ids = table.num_rows, len(table.column("instance").unique())
    different = table.group_by(["instance", "measure"]).aggregate([]).num_rows
    if different != cells or ids != rows:
        raise SystemExit(
            f"{file}: {cells} numbers, {different} of them different, of {ids} rows; expected {rows} rows."
        )
    return hashlib.sha256(file.read_bytes()).hexdigest()


class Killing:
    """Kills processes of runs until a number of kills is reached.

    Args:
        runs: The runs.
        nodes: The nodes of the cluster of Ray; None if there is none.
        options: The options of the script.
        workers: The options of pytest that choose the executor.
    """

    def __init__(self, runs: Runs, nodes: RayNodes | None, options: argparse.Namespace, workers: list[str]) -> None:
        self.runs = runs
        self.nodes = nodes
        self.expected = ""
        self.options = options
        self.workers = workers
        self.draw = random.Random(options.seed)
        self.timeline = Timeline(1, 1, 1, 1)
        self.kills: Counter[tuple[str, str]] = Counter()
        self.began = time.monotonic()
        self.ended = self.resumed = self.refused = self.of_run = self.at_start = 0
        self.watched, self.since, self.of_start = True, 0.0, 0
        self.longest = {True: 0.0, False: 0.0}  # the seconds until the last process ended, with and without watchdog

    def undisturbed(self) -> None:
        """Run once in one process and without kills, to get the numbers, and to learn how long its parts take."""
        began, times = time.monotonic(), []
        process, _ = self.runs.start("--audit-threads", "1")
        while process.poll() is None:
            times += [time.monotonic() - began] * (stored(self.runs.newest()) - len(times))
            time.sleep(INTERVAL)
        run = self.runs.newest()
        if process.returncode != 0 or run is None or not times:
            raise SystemExit(self.runs.log())
        self.expected = digest(run, self.runs.rows)
        self.timeline = Timeline(times[0], times[-1] - times[0], time.monotonic() - began - times[-1], len(times))
        print(f"an undisturbed run: {self.timeline}", flush=True)

    def compare(self, run: Path) -> None:
        """Compare the numbers of a run with those of the undisturbed run."""
        if digest(run, self.runs.rows) != self.expected:
            raise SystemExit(f"{run}: other numbers than the undisturbed run")

    def run_all(self) -> None:
        """Start and resume runs until there were enough kills, and the last run has passed."""
        resume: Path | None = None
        while self.wanted() or resume is not None:
            before = self.runs.newest()
            if self.nodes is not None:
                self.nodes.repair()
            process, mark = self.runs.start(*self.workers, *(["--audit-resume", str(resume)] if resume else []))
            self.resumed += resume is not None
            victim = self.disturb(process, mark, before, resume)
            self.require_end(mark)
            newest = self.runs.newest()
            run = resume if newest in (before, resume) else newest
            if process.returncode == 0 or has_passed(run):
                assert run is not None
                self.compare(run)
                self.ended, resume, self.of_run = self.ended + 1, None, 0
                print(f"     run {self.ended} has the bytes of the undisturbed run", flush=True)
                continue
            if process.returncode not in (-9, TESTS_FAILED) and victim != "raylet":
                print(self.runs.log())
                print(f"     pytest ended with status {process.returncode} after a kill of: {victim}", flush=True)
            self.refused += victim != "pytest"
            has_shards = run is not None and any(run.glob("parts/shards/*/*/plan.json"))
            resume = run if has_shards else None

    def wanted(self) -> bool:
        """Return whether more kills are wanted."""
        late = time.monotonic() - self.began > self.options.limit
        return self.kills.total() < self.options.kills and not late

    def disturb(self, process: subprocess.Popen[bytes], mark: str, before: Path | None, resume: Path | None) -> str:
        """Kill processes of a run until it ends. Return what was killed last."""
        victim, began, progress = "nothing", time.monotonic(), (-1, time.monotonic())
        self.watched, self.since, self.of_start = True, time.time(), 0
        self.at_start = stored(resume)
        due = self.next_kill(self.at_start) if self.of_run < self.options.kills_per_run else None
        moment_began = time.monotonic()
        while process.poll() is None:
            time.sleep(INTERVAL)
            now, run = time.monotonic(), self.runs.newest()
            run = resume or (run if run != before else None)
            count = stored(run)
            if count != progress[0]:
                progress = count, now
            if now - progress[1] > self.options.patience:
                raise SystemExit(f"{self.runs.log()}\nno shard was stored for {self.options.patience} s")
            if self.nodes is not None:
                self.nodes.repair()
            if due is None:
                continue
            shards, wait = due
            if shards is None:
                if not is_complete(run):
                    moment_began = now
                    continue
            elif count < shards and not is_complete(run):
                moment_began = now
                continue
            if now - moment_began < wait:
                continue
            victim = self.kill_one(process, mark, run) or victim
            if victim == "pytest":
                process.wait()
                break
            moment_began = time.monotonic()
            due = self.next_kill(stored(run)) if self.of_run < self.options.kills_per_run else None
        print(f"     after {time.monotonic() - began:.0f} s", flush=True)
        return victim

    def next_kill(self, shards: int) -> tuple[int | None, float] | None:
        """Draw when to kill next: after how many shards (None for all of them), and how many seconds later."""
        line = self.timeline
        if self.of_start and self.draw.random() < TWICE:
            return 0, self.draw.uniform(0, 4)
        late = shards >= line.count and self.draw.random() < 0.5  # half of the complete runs may end
        if late or not self.wanted():
            return None
        if self.at_start >= line.count:  # only the start and the end of pytest remain
            return None, self.draw.uniform(0, line.first + line.rest)
        moment = self.draw.choices(list(MOMENTS), list(MOMENTS.values()))[0]
        if moment.startswith("before"):
            return 0, self.draw.uniform(0, 1.1 * line.first)
        if moment.startswith("after"):
            return None, self.draw.uniform(0, line.rest)
        return shards + self.draw.randint(0 if shards > self.at_start else 1, 3), self.draw.uniform(
            0, 2 * line.shards / line.count
        )

    def kill_one(self, process: subprocess.Popen[bytes], mark: str, run: Path | None) -> str:
        """Kill one process of a run or of a node. Return its kind; "" if it has just ended."""
        by_kind: dict[str, list[int]] = {}
        marks = [mark, *(self.nodes.marks if self.nodes is not None else ())]
        for one in (one for each in marks for one in marked(each)):
            kind = "pytest" if one == process.pid else kind_of(one)
            by_kind.setdefault(kind, []).append(one)
        if not by_kind:
            return ""
        kinds = sorted(by_kind)
        kind = self.draw.choices(kinds, [WEIGHTS.get(one, 1) for one in kinds])[0]
        victim = self.draw.choice(sorted(by_kind[kind]))
        count, complete = stored(run), is_complete(run)
        if not kill(victim):
            return ""
        started = "between two shards" if count > self.at_start else "before the first shard"
        moment = "after the last shard" if complete else started
        if not has_begun(run, self.since):
            moment = STARTING
        self.kills[kind, moment] += 1
        self.watched &= kind != "watchdog of Ray"
        self.of_run += 1
        self.of_start += 1
        print(f"{self.kills.total():4} killed {kind} {moment} ({count} stored)", flush=True)
        return kind

    def require_end(self, mark: str) -> None:
        """Require that all processes of a run end soon after its pytest has ended."""
        began, waited = time.monotonic(), 0.0
        while left := [one for one in marked(mark) if alive(one)]:
            waited = time.monotonic() - began
            if waited > (ENDING if self.watched else ENDING_WITHOUT_WATCHDOG):
                for one in left:
                    print(f"     left behind: {kind_of(one)}: {command_line(one)}", flush=True)
                    kill(one)
                raise SystemExit("processes were left behind")
            time.sleep(0.1)
        self.longest[self.watched] = max(self.longest[self.watched], waited)

    def summary(self) -> str:
        """Return what was killed when, as a Markdown table, and how the runs ended."""
        moments = [STARTING, *MOMENTS]
        lines = ["| process | " + " | ".join(moments) + " |", "|---|" + "---|" * len(moments)]
        for kind in sorted({kind for kind, _ in self.kills}):
            lines.append(f"| {kind} | " + " | ".join(str(self.kills[kind, moment]) for moment in moments) + " |")
        return "\n".join(lines) + (
            f"\n{self.kills.total()} kills; {self.refused} times, pytest ended because of another process that was "
            f"killed; {self.resumed} starts resumed a run; {self.ended} runs passed, all with the bytes of the "
            f"undisturbed run; {time.monotonic() - self.began:.0f} s. After a pytest process had ended, the last "
            f"process that it had started ended within {self.longest[True]:.1f} s"
            + (f", and within {self.longest[False]:.1f} s if the watchdog was killed" if self.longest[False] else "")
        )


def main() -> None:
    """Kill processes until the number of kills is reached, and print what was killed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--executor", choices=("processes", "ray"), default="processes")
    parser.add_argument("--nodes", type=int, choices=(0, 2), default=0, help="number of Ray nodes; 0 for none")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rows", type=int, default=2600)
    parser.add_argument("--kills-per-run", type=int, default=20, help="afterwards, the run may end")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--limit", type=float, default=1e9, help="stop after this number of seconds")
    parser.add_argument("--patience", type=float, default=600, help="seconds without a new shard that are an error")
    parser.add_argument("--folder", type=Path, help="folder for the runs (default: a temporary folder)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="kills-") as name:
        folder = Path(name) if options.folder is None else options.folder
        folder.mkdir(parents=True, exist_ok=True)
        nodes = RayNodes(Path(name)) if options.nodes else None
        runs = Runs(folder, options.rows, nodes.environment if nodes is not None else {})
        workers = ["--audit-workers", str(options.workers), "--audit-executor", options.executor]
        killing = Killing(runs, nodes, options, workers)
        try:
            killing.undisturbed()
            killing.run_all()
        finally:
            if nodes is not None:
                nodes.stop()
            print(killing.summary())


if __name__ == "__main__":
    main()
