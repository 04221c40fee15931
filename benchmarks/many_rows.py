"""Audit the demo model on many rows, and measure the time and the resident memory of every process.

    python benchmarks/many_rows.py --rows 10000 100000 1000000
    python benchmarks/many_rows.py --rows 2000 --workers 1 2 --policy audits/policy.toml

The rows are movie-review sentences, repeated with random words left out. Only cheap measures are computed: the total
effect of attention, with attention rearranged, and attention replaced by equal weights. The second command compares two
workers with one, with all measures of a policy. The script runs only on Linux.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

POLICY = """
[[check]]
name = "TotalEffect"
at_least = 0.01

[[check]]
name = "UniformFragility"
at_least = 0.001
severity = "report"
"""
#: The seconds between two looks at the memory of the processes.
INTERVAL = 0.2


def write_rows(path: Path, count: int) -> None:
    """Write rows that are unlike each other: sentences with random words left out."""
    from attnaudit.data import load

    draw = random.Random(0)
    instances = load("movie-reviews").instances
    with path.open("w", encoding="utf-8") as file:
        for number in range(count):
            one = instances[number % len(instances)]
            words = one.text.split()
            kept = [word for word in words if draw.random() > 0.15] or words
            file.write(json.dumps({"text": " ".join(kept), "label": one.label}) + "\n")


def memory(process: int) -> dict[str, int]:
    """Return the resident memory of a process in KiB: all of it, and the part that is not backed by a file."""
    found = {}
    try:
        for line in Path(f"/proc/{process}/status").read_text().splitlines():
            if line.startswith(("VmRSS:", "RssAnon:")):
                found[line.split(":")[0]] = int(line.split()[1])
    except OSError:
        pass
    return found


def descendants(process: int) -> list[int]:
    """Return the ids of a process and all processes that it started."""
    found = [process]
    for task in Path(f"/proc/{process}/task").glob("*/children"):
        try:
            for child in task.read_text().split():
                found += descendants(int(child))
        except OSError:
            continue
    return found


def measure(rows: int, folder: Path, workers: int, batch_tokens: int, policy: Path | None) -> dict[str, float]:
    """Audit, and return what it took."""
    data = folder / f"rows-{rows}.jsonl"
    write_rows(data, rows)
    (folder / "policy.toml").write_text(POLICY if policy is None else policy.read_text(encoding="utf-8"))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "audits/", "--model", "demo"]
    command += [
        "--data",
        str(data),
        "--policy",
        str(folder / "policy.toml"),
        "--audit-reports",
        str(folder / "reports"),
    ]
    command += ["--audit-workers", str(workers)] if workers > 1 else ["--audit-threads", "1"]
    command += ["--audit-batch-tokens", str(batch_tokens)]
    began = time.monotonic()
    most: dict[str, int] = {}
    with (folder / "log.txt").open("ab") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
        while process.poll() is None:
            for number, one in enumerate(descendants(process.pid)):
                for name, value in memory(one).items():
                    key = f"{'pytest' if number == 0 else 'children'} {name}"
                    most[key] = max(most.get(key, 0), value)
            time.sleep(INTERVAL)
    if process.returncode not in (0, 1):  # a gate may fail
        raise SystemExit((folder / "log.txt").read_text()[-3000:])
    usage = os.times()
    data.unlink()
    return {
        "rows": rows,
        "workers": workers,
        "seconds": round(time.monotonic() - began, 1),
        "cpu_seconds_so_far": round(usage.children_user + usage.children_system, 1),
        "load_1min": round(os.getloadavg()[0], 1),
        **{f"{name} MiB": round(value / 1024) for name, value in most.items()},
    }


def main() -> None:
    """Print one JSON line per number of rows."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=int, nargs="+", default=[10_000, 100_000])
    parser.add_argument("--workers", type=int, nargs="+", default=[1])
    parser.add_argument("--policy", type=Path, help="a policy file; without it, only cheap measures are computed")
    parser.add_argument("--batch-tokens", type=int, default=1024)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="many-rows-") as name:
        for rows in options.rows:
            for workers in options.workers:
                cost = measure(rows, Path(name), workers, options.batch_tokens, options.policy)
                print(json.dumps(cost), flush=True)


if __name__ == "__main__":
    main()
