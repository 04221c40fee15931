"""Measure the size of reports and how fast they open in Chromium, for generated runs of several sizes.

The results are written to benchmarks/report_pages.md. Run the script from the root of the repository:

    python -m benchmarks.report_pages
"""

from __future__ import annotations

import argparse
import platform
import shutil
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from playwright.sync_api import sync_playwright

from attnaudit.engine.measurements import Measurements
from attnaudit.formatting import plural
from attnaudit.instances import Instance
from attnaudit.readings import named
from attnaudit.records import (
    SCHEMA_VERSION,
    CheckRecord,
    DataRecord,
    Interval,
    ModelRecord,
    RankedInstance,
    RunRecord,
)
from attnaudit.report import build
from attnaudit.run.measurements_file import write_measurements

RUNS = ((2_000, 0, 0), (2_000, 12, 12), (20_000, 0, 0), (100_000, 0, 0))
WORDS = tuple(f"{a}{b}{c}" for a in "bdfgklmnprst" for b in ("a", "e", "i", "o", "ou") for c in ("n", "r", "st", "l"))
TOKEN_COLUMNS = (
    "gradient.meister.inputs",
    "leave_one_out.inputs",
    "token_effect.held",
    *(f"adversarial.{epsilon}.attention" for epsilon in (0.01, 0.02, 0.05, 0.1, 0.2)),
)
NUMBERS = 80
OPENINGS = 5


def generated(n: int, *, layers: int, heads: int) -> Measurements:
    """Return random measurements of n texts with 22 tokens on average, as many as the texts of the demo have.

    Args:
        n: The number of instances.
        layers: The number of layers with a reading for every head; 0 for a single reading.
        heads: The number of heads of each layer.
    """
    rng = np.random.default_rng(0)
    lengths = rng.integers(4, 41, size=n)
    words = rng.integers(0, len(WORDS), size=int(lengths.sum()))
    ends = np.cumsum(lengths)[:-1]
    tokens = [[WORDS[i] for i in row] for row in np.split(words, ends)]
    readings = [f"own@layer={layer},heads={head}" for layer in range(layers) for head in range(heads)]
    attention = [named("attention", reading) for reading in readings] or ["attention"]

    def column() -> list[np.ndarray[Any, Any]]:
        weights = np.split(rng.gamma(0.5, size=int(lengths.sum())) + 1e-9, ends)
        return [row / row.sum() for row in weights]

    confidence = rng.uniform(0.5, 1, size=n)
    predicted = rng.integers(0, 2, size=n)
    probabilities = np.where(np.arange(2) == predicted[:, None], confidence[:, None], 1 - confidence[:, None])
    vectors = {name: column() for name in (*attention, *TOKEN_COLUMNS)}
    scalars = {f"measure.{i}": rng.normal(size=n) for i in range(NUMBERS)}
    scalars |= {named("uniform.tvd", reading): rng.uniform(size=n) for reading in readings}
    return Measurements(
        model="generated",
        data="generated",
        seed=0,
        classes=("negative", "positive"),
        instances=[
            Instance(id=f"row-{i:06}", text="", label=("negative", "positive")[label])
            for i, label in enumerate(rng.integers(0, 2, size=n).tolist())
        ],
        sources=["all"] * n,
        tokens=tokens,
        labels=np.zeros(n, dtype=np.int64),
        predicted=predicted,
        scalars=scalars,
        vectors={**vectors, "probabilities": list(probabilities)},
        per_token=set(vectors),
    )


def write_run(folder: Path, measurements: Measurements) -> None:
    """Write audit.json and measurements.parquet of a run with one informational check."""
    folder.mkdir(parents=True)
    n = len(measurements)
    worst = [RankedInstance(instance=one, value=i / 100) for i, one in enumerate(measurements.ids[:10])]
    check = CheckRecord(
        check="uniform.tvd",
        family="fragility",
        model="generated",
        data="generated",
        seed=0,
        title="Uniform attention changes the output",
        question="Does the output change when every token gets the same weight?",
        why="",
        how_to_read="At 0, nothing changes.",
        parameters={},
        needs=["uniform.tvd"],
        verdict="inconclusive",
        reason="",
        severity="report",
        inconclusive="fail",
        statistic="mean",
        unit="TVD",
        value_name="mean TVD",
        value=0.1,
        requirement=None,
        interval=Interval(low=0.09, high=0.11, confidence=0.95, method="generated"),
        n=n,
        n_defined=n,
        undefined={},
        references=[],
        details={},
        distribution=None,
        charts=[],
        worst=worst,
        worst_first="lowest",
        token_columns=[],
        note="",
        blocks=False,
    )
    run = RunRecord(
        schema_version=SCHEMA_VERSION,
        run=folder.name,
        created="2026-01-01T00:00:00+00:00",
        finished="2026-01-01T00:00:00+00:00",
        command=["pytest"],
        seed=0,
        exit_status=0,
        attnaudit="0",
        policy="",
        environment=None,
        models=[
            ModelRecord(
                name="generated",
                source="generated",
                description="random numbers",
                classes=list(measurements.classes),
                parameters=0,
                sha256="0" * 64,
                linear_decoder=True,
                conformance=[],
            )
        ],
        data=[
            DataRecord(
                name="generated",
                source="generated",
                description="random words",
                rows=n,
                audited=n,
                labelled=n,
                classes=list(measurements.classes),
                sha256="0" * 64,
                sample_seed=None,
                sample_sha256=None,
            )
        ],
        measured=[],
        checks=[check],
        missing=[],
        status="informational",
    )
    (folder / "audit.json").write_bytes(msgspec.json.encode(run))
    write_measurements(measurements, folder / "measurements.parquet")


@dataclass(frozen=True, slots=True, kw_only=True)
class PageTimes:
    """Sizes in bytes and times in seconds of one report.

    Attributes:
        build: CPU seconds to build the report.
        page: Size of report.html.
        files: Size of the files next to it.
        count: Number of these files.
        load: Time until the page is loaded (medians of several openings, as all of the following).
        ready: Time until the list of the explorer is shown.
        instance: Time until an instance in the middle of the list is shown.
        filter: Time to show only the wrong predictions.
        sort: Time to sort by a measure for the first time.
        search: Time to search all texts for the first time.
        again: Time of a second search.
    """

    build: float
    page: int
    files: int
    count: int
    load: float
    ready: float
    instance: float
    filter: float
    sort: float
    search: float
    again: float


def wait_until(page: Any, condition: str) -> None:
    """Wait until an expression is true, for at most two minutes.

    Playwright's own function does not work, because the Content Security Policy of the page forbids it.
    """
    end = time.perf_counter() + 120
    while not page.evaluate(condition):
        if time.perf_counter() > end:
            raise TimeoutError(condition)
        time.sleep(0.005)


def measure(folder: Path, browser: Any) -> PageTimes:
    """Build a report, open it several times, and use it."""
    started = time.process_time()
    build(folder)
    seconds = time.process_time() - started
    times: dict[str, list[float]] = {}
    for _ in range(OPENINGS):
        page = browser.new_page(viewport={"width": 1440, "height": 900})
        started = time.perf_counter()
        page.goto((folder / "report.html").as_uri())
        times.setdefault("load", []).append(time.perf_counter() - started)
        page.wait_for_selector("#explorer[data-state=ready]")
        times.setdefault("ready", []).append(time.perf_counter() - started)
        for name, action, done in ACTIONS:
            started = time.perf_counter()
            page.evaluate(action)
            wait_until(page, done)
            times.setdefault(name, []).append(time.perf_counter() - started)
        page.close()
    files = list((folder / "explorer").glob("*"))
    return PageTimes(
        build=seconds,
        page=(folder / "report.html").stat().st_size,
        files=sum(path.stat().st_size for path in files),
        count=len(files),
        **{name: statistics.median(values) for name, values in times.items()},
    )


SET = (
    "const set = (name, value) => {{ const c = document.querySelector(`#explorer [name=${{name}}]`); c.value = value; \
c.dispatchEvent(new Event('{event}')); }};"
)
STATUS = "document.querySelector('#explorer .status').textContent"
ACTIONS = (
    (
        "instance",
        "const list = document.querySelector('#explorer .list'); list.scrollTop = list.scrollHeight / 2; "
        "requestAnimationFrame(() => requestAnimationFrame(() => list.querySelector('[role=option]').click()));",
        "document.querySelectorAll('#explorer .gloss td[data-i]').length > 0",
    ),
    (
        "filter",
        f"{SET.format(event='change')} set('wrong', 'wrong');",
        f"/ of /.test({STATUS})",
    ),
    (
        "sort",
        f"document.querySelector('#explorer .reset').click(); {SET.format(event='change')} set('sort', '=measure.40');",
        "document.querySelector('#explorer .list-head .last').textContent === 'measure.40'",
    ),
    (
        "search",
        f"{SET.format(event='input')} set('search', 'ban doust');",
        f"/ of /.test({STATUS})",
    ),
    (
        "again",
        f"{SET.format(event='input')} set('search', 'row-000007');",
        f"/^1 of /.test({STATUS})",
    ),
)


def table(rows: Sequence[tuple[str, PageTimes]]) -> str:
    """Return the results as a Markdown table."""
    lines = [
        "| run | build, CPU s | report.html, MB | files next to it, MB | page loaded, s | list shown, s | instance, s "
        "| filter, s | sort, s | first search, s | next search, s |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for name, one in rows:
        files = f"{one.files / 1e6:.1f} ({plural(one.count, 'file')})" if one.count else "none"
        lines.append(
            f"| {name} | {one.build:.1f} | {one.page / 1e6:.2f} | {files} | {one.load:.2f} | {one.ready:.2f} "
            f"| {one.instance:.2f} | {one.filter:.2f} | {one.sort:.2f} | {one.search:.2f} | {one.again:.2f} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Measure all runs and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".md"))
    parser.add_argument("--keep", type=Path, help="write the runs into this folder and keep them")
    parser.add_argument("--chromium", default=shutil.which("chromium"))
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as temporary, sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=options.chromium, args=["--no-sandbox", "--disable-gpu"])
        version = browser.version
        for n, layers, heads in RUNS:
            folder = (options.keep or Path(temporary)) / f"{n}-{layers}x{heads}"
            write_run(folder, generated(n, layers=layers, heads=heads))
            name = plural(n, "instance") + (f", {layers} × {heads} heads" if heads else "")
            rows.append((name, measure(folder, browser)))
            print(table(rows[-1:]).splitlines()[-1], flush=True)
        browser.close()
    options.out.write_text(
        PAGE.format(version=version, machine=platform.machine(), table=table(rows)), encoding="utf-8"
    )


PAGE = """# Reports of large runs

This page shows how large the report of a run is, and how fast it opens. The runs are generated. Their texts have 4 to
40 tokens (22 on average). There are 80 measures per instance and 9 measures per token; with 12 × 12 heads, there are
152 measures per token, and each head also has one measure per instance. Data of up to 2 MB are in the page; larger data
are in files in the folder `explorer/`, which the page loads when they are needed.

Measured in Chromium {version} ({machine}), opened as a file, on a machine with 2 cores that did other work as well.
Times are medians of 5 openings. The times of the page and the list are counted from the start of the navigation, and
all other times from the user's action. The time of a search includes a delay of 0.12 s after the last key.

{table}

* *build*: `attnaudit report RUN`, without the start of Python.
* *instance*: scroll to the middle of the list, and open an instance there.
* *filter*: show only the wrong predictions.
* *sort*: sort by a measure that was not used before.
* *first search*: it reads all texts. *Next search*: another search after it.

To measure again: `python -m benchmarks.report_pages`.
"""


if __name__ == "__main__":
    main()
