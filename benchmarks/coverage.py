"""Measure how often the intervals of the checks contain the true value, on realistic distributions.

    python -m benchmarks.coverage [--quick] [--jobs N] [--only WORD]

The script draws many samples of n instances from populations whose true value is known. It computes the interval of
each sample as the checks do, and counts how often the interval contains the true value. It then measures how accurate
planned sample sizes are (planning.py). The distributions are quantiles that were measured on the packaged reviews
(coverage_shapes.json). The results are written to coverage.json and coverage.md next to this file.

With --quick, fewer samples are drawn, the tables are printed and nothing is written. With --only, only the scenarios
whose name contains the word are run ("planning" stands for the planned sample sizes). The stored results of the other
scenarios are kept.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import numpy as np

from benchmarks import planning
from benchmarks.coverage_samples import CORRELATION, HERE, LEVELS
from benchmarks.coverage_scenarios import scenarios

SIZES = (30, 100, 300, 1000)
#: The number of samples per scenario and sample size.
TRIALS = 1000
#: The number of samples of slow scenarios.
SLOW_TRIALS = 200


def run(index: int, n: int, trials: int) -> dict[str, Any]:
    """Return the results of one scenario at one sample size, computed on one thread.

    Args:
        index: The index of the scenario in `scenarios()`.
        n: The sample size.
        trials: The number of samples.
    """
    from threadpoolctl import threadpool_limits

    with threadpool_limits(limits=1):
        return _run(index, n, trials)


def _run(index: int, n: int, trials: int) -> dict[str, Any]:
    scenario = scenarios()[index]
    truth, started = scenario.truth(n), time.perf_counter()
    counts = {level: [0, 0] for level in LEVELS}
    widths, absent = [], 0
    for trial in range(trials):
        estimate = scenario.draw(n, np.random.default_rng([index, n, trial]))
        if estimate is None:
            absent += 1
            continue
        for level in LEVELS:
            found = estimate.at(level)
            counts[level][0] += truth < found.low
            counts[level][1] += truth > found.high
        widths.append(estimate.high - estimate.low)
    intervals = trials - absent
    rows: dict[str, dict[str, float] | None] = {f"{level:g}": None for level in LEVELS}
    rows |= {
        f"{level:g}": {
            "coverage": 1 - (below + above) / intervals,
            "error": math.sqrt(
                max((below + above) / intervals * (1 - (below + above) / intervals), 0.25 / intervals) / intervals
            ),
            "truth below": below / intervals,
            "truth above": above / intervals,
        }
        for level, (below, above) in counts.items()
        if intervals
    }
    return {
        "statistic": scenario.statistic,
        "shape": scenario.shape,
        "n": n,
        "truth": truth,
        "trials": trials,
        "without an interval": absent,
        "mean width": float(np.mean(widths)) if widths else None,
        "levels": rows,
        "seconds": round(time.perf_counter() - started, 1),
    }


def table(rows: Sequence[dict[str, Any]], level: str) -> str:
    """Return a Markdown table with one line per scenario and one column per sample size.

    Args:
        rows: The results of `run`.
        level: The confidence level as text, such as "0.95".
    """
    sizes = sorted({row["n"] for row in rows})
    lines = ["| statistic | shape | " + " | ".join(f"n = {n}" for n in sizes) + " |"]
    lines.append("|---|---|" + "---:|" * len(sizes))
    for pair in dict.fromkeys((row["statistic"], row["shape"]) for row in rows):
        cells = []
        for n in sizes:
            row = next(r for r in rows if (r["statistic"], r["shape"], r["n"]) == (*pair, n))
            one = row["levels"][level]
            if one is None:
                cells.append("no interval")
                continue
            low, high = one["truth below"], one["truth above"]
            cells.append(f"{one['coverage']:.1%} ± {one['error']:.1%} ({low:.1%}, {high:.1%})")
        lines.append(f"| {pair[0]} | {pair[1]} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def page(rows: Sequence[dict[str, Any]], plans: Sequence[dict[str, Any]]) -> str:
    trials = sorted({row["trials"] for row in rows})
    return f"""# Coverage of the intervals, measured

`python -m benchmarks.coverage` writes this page; coverage.json has all numbers. Each cell shows the share of
samples whose interval contains the true value, ± its Monte Carlo standard error. The brackets show how often the
true value lay below and above the interval. Samples without an interval, which coverage.json counts, are left out.
Many samples have none if the denominator of a ratio is uncertain, for example if only 5% of the texts are positive.
There are {trials[0]:,} (information ranking, and balanced classes) to {trials[-1]:,} samples per cell. The
distributions are those of the measures of the demo model on the packaged reviews. "Sources of 1 to 8" means that the
rows of one source have a correlation of {CORRELATION:g}. "Balanced" means that every class has the same weight (the
argument `classes` of the checks). "Smallest of the classes" is `classes = "smallest"`. It has no interval if a class
has fewer than 10 sources, so the samples of 30 rows are those with 10 to 20 rows of either class. For the information
ranking ("MI ranking"), the true value is that of the true order of the ranks.

## Nominal 95%

{table(rows, "0.95")}

## Nominal 99.75%, the level of a failure under 20 gated checks

{table(rows, "0.9975")}

## Planned sample sizes

An inconclusive verdict names the number of instances that would decide it. This table compares that number with the
one that is needed to decide in 80% of samples. It also shows how often the planned range contains the needed
number, and how often a fresh sample of the planned size (up to 20 n) leads to the correct verdict. If chance moved
the value away from the threshold, the planned number is too small: rely on the range rather than on the number.

{planning.table(plans)}
"""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--quick", action="store_true", help="draw fewer samples, with n up to 300; print the tables and write nothing"
    )
    parser.add_argument("--jobs", type=int, default=1, help="number of processes (default: 1)")
    parser.add_argument("--only", default="", metavar="WORD", help="run the scenarios whose name contains this word")
    options = parser.parse_args(arguments)
    chosen = [(i, one) for i, one in enumerate(scenarios()) if options.only in one.name]
    sizes = SIZES[:3] if options.quick else SIZES
    share = 0.1 if options.quick else 1.0
    work = [(i, n, int((SLOW_TRIALS if one.slow else TRIALS) * share)) for i, one in chosen for n in sizes]
    rows: list[dict[str, Any]] = []
    with ProcessPoolExecutor(options.jobs) as pool:
        for row in pool.map(run, *zip(*work, strict=True)) if work else ():
            one = row["levels"]["0.95"] or dict.fromkeys(("coverage", "error", "truth below", "truth above"), math.nan)
            print(f"{row['statistic']}: {row['shape']}, n={row['n']}: {one['coverage']:.3f} ± {one['error']:.3f} "
                  f"({one['truth below']:.3f}, {one['truth above']:.3f}), {row['seconds']} s", flush=True)  # fmt: skip
            rows.append(row)
        plans = plan_figures(pool, 0.05 if options.quick else 1.0) if options.only in "planning" else []
    if options.quick:
        print(table(rows, "0.95") if rows else "")
        print(planning.table(plans) if plans else "")
        return 0
    path = HERE / "coverage.json"
    stored = json.loads(path.read_text(encoding="utf-8")) if options.only and path.is_file() else {}
    new = {(row["statistic"], row["shape"]) for row in rows}
    rows += [row for row in stored.get("rows", []) if (row["statistic"], row["shape"]) not in new]
    plans = plans or stored.get("planning", [])
    order = [(one.statistic, one.shape) for one in scenarios()]
    rows.sort(key=lambda row: (order.index((row["statistic"], row["shape"])), row["n"]))
    document = {"rows": rows, "planning": plans}
    path.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    (HERE / "coverage.md").write_text(page(rows, plans), encoding="utf-8")
    return 0


def plan_figures(pool: ProcessPoolExecutor, share: float) -> list[dict[str, Any]]:
    """Return the results of every planning case.

    Args:
        pool: The processes that share the work.
        share: The number of trials, as a share of the usual number.
    """
    work = [
        (shape, n, distance, int(planning.TRIALS * share))
        for shape in planning.SHAPES
        for n, distance in planning.CASES
    ]
    return list(pool.map(planning.run, *zip(*work, strict=True)))


if __name__ == "__main__":
    sys.exit(main())
