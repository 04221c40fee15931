"""Measure what a sequential audit of the demo model costs on .jsonl files of different lengths: CPU time and memory.

The rows are excerpts of ten words from the shipped reviews. The files are written to a temporary folder, and removed
afterwards. The table is written to stopping_early.md.
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
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from attnaudit.data import load
from attnaudit.data.line_index import LineIndex
from attnaudit.report.run_files import read_run
from attnaudit.run.run_choice import newest_run
from benchmarks.stopping_early import HERE, write

SIZES = (10_000, 10_000_000)
WORDS = 10


class Cost(NamedTuple):
    """What an audit cost.

    Attributes:
        rows: The number of rows in the file.
        size: The size of the file in bytes.
        audited: The number of audited rows.
        seconds: The CPU time of pytest in seconds.
        index_seconds: The CPU time of finding the lines of the file, measured separately.
        memory: The largest resident memory of pytest, in bytes.
        verdicts: The gates and their verdicts.
    """

    rows: int
    size: int
    audited: int
    seconds: float
    index_seconds: float
    memory: int
    verdicts: str


def write_rows(path: Path, count: int) -> None:
    """Write a file of `count` short texts with labels."""
    generator = random.Random(0)
    reviews = [(one.text.split(), one.label) for one in load("movie-reviews").instances]
    with path.open("w", encoding="utf-8") as file:
        for _ in range(count):
            words, label = generator.choice(reviews)
            start = generator.randrange(max(1, len(words) - WORDS))
            file.write(json.dumps({"text": " ".join(words[start : start + WORDS]), "label": label}) + "\n")


def audit(path: Path, rows: int) -> Cost:
    """Audit the demo model on a file in a process of its own."""
    reports = path.parent / "reports"
    command = [sys.executable, "-m", "pytest", "audits/", "-q", "-p", "no:cacheprovider", "--model=demo"]
    command += [f"--data={path}", f"--audit-reports={reports}", "--audit-sequential"]
    process = subprocess.Popen(command, cwd=HERE.parent, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    run = read_run(newest_run(reports))
    started = time.process_time()
    LineIndex(path)
    return Cost(
        rows=rows,
        size=path.stat().st_size,
        audited=run.data[0].audited,
        seconds=usage.ru_utime + usage.ru_stime,
        index_seconds=time.process_time() - started,
        memory=usage.ru_maxrss * 1024,
        verdicts=", ".join(f"{one.check} {one.verdict}" for one in run.checks if one.severity == "gate"),
    )


def line(cost: Cost) -> str:
    """Return a row of the table."""
    cells = (
        f"{cost.rows:,}",
        f"{cost.size / 1e6:,.1f} MB",
        f"{cost.audited:,}",
        f"{cost.seconds:.1f} s",
        f"{cost.index_seconds:.1f} s",
        f"{cost.memory / 1e6:,.0f} MB",
        cost.verdicts,
    )
    return f"| {' | '.join(cells)} |"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--rows", type=int, nargs="+", default=SIZES, help="numbers of rows; the stored table is then not changed"
    )
    options = parser.parse_args(arguments)
    lines = [
        "| rows of the file | size | rows audited | CPU time | of which finding the lines | peak memory | verdicts |",
        "|---:|---:|---:|---:|---:|---:|---|",
    ]
    for rows in options.rows:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "excerpts.jsonl"
            write_rows(path, rows)
            lines.append(line(audit(path, rows)))
    print("\n".join(lines))
    if tuple(options.rows) == SIZES:
        write("files", lines)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
