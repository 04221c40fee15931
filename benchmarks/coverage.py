"""How often do the intervals of the checks hold the true value, on numbers shaped like those they are really given?

    python -m benchmarks.coverage [--quick] [--jobs N] [--only WORD]

Draws many samples of n instances from populations whose true value is known, asks the functions that the checks use for
their intervals, and counts; then how good planning figures are (planning.py). The shapes are quantiles measured on the
embedded reviews (coverage_shapes.json). Writes coverage.json and coverage.md beside this file; --quick draws fewer
samples, prints the tables and writes nothing. --only runs the scenarios whose name holds a word ("planning": only those
figures) and keeps the stored results of the others.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnaudit.engine.measurements import Measurements
from attnaudit.instances import Instance
from attnaudit.statistics.f1_drop import F1Drop
from attnaudit.statistics.groups import Groups
from attnaudit.statistics.interval_estimate import IntervalEstimate
from attnaudit.statistics.intervals import mean_interval, median_interval, proportion_interval, ratio_interval

HERE = Path(__file__).resolve().parent
SIZES = (30, 100, 300, 1000)
#: 95%, and the level at which a policy of 20 gated checks calls a failure.
LEVELS = (0.95, 0.9975)
TRIALS = 1000
#: Of the statistics that take a second each.
SLOW_TRIALS = 200
CLUSTERS = (1, 2, 4, 8)
CORRELATION = 0.5
PERMUTATIONS = 20
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Scenario:
    """draw: (n, random numbers) -> the spread of the statistic on a sample of n. truth: n -> the true value."""

    statistic: str
    shape: str
    draw: Callable[[int, np.random.Generator], IntervalEstimate | None]
    truth: Callable[[int], float]
    slow: bool = False

    @property
    def name(self) -> str:
        return f"{self.statistic}: {self.shape}"


# --- populations ------------------------------------------------------------------------------------------------------


def shapes() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((HERE / "coverage_shapes.json").read_text(encoding="utf-8"))
    return found


@dataclass(frozen=True)
class Population:
    """A distribution by its quantiles at 0, .005, ..., 1, linear in between; then `of`, such as rounding into ties."""

    quantiles: Floats
    of: Callable[[Floats], Floats] = lambda x: x

    def at(self, u: Floats) -> Floats:
        return self.of(np.interp(u, np.linspace(0, 1, len(self.quantiles)), self.quantiles))

    def mean(self) -> float:
        return float(self.at((np.arange(4_000_000) + 0.5) / 4_000_000).mean())

    def median(self) -> float:
        return float(self.at(np.array([0.5]))[0])


def populations() -> dict[str, Population]:
    found = {name: Population(np.array(values)) for name, values in shapes()["shapes"].items()}
    found["tau of the gradient, tied"] = Population(found["tau of the gradient"].quantiles, lambda x: np.round(x, 1))
    tvd = found["uniform TVD"].quantiles
    # Sparse attention: on seven instances of ten nothing moves at all.
    found["uniform TVD, 70% zero"] = Population(
        np.concatenate([np.zeros(140), np.interp(np.linspace(0, 1, 61), np.linspace(0, 1, len(tvd)), tvd)])
    )
    return found


def apart(n: int) -> tuple[list[Instance], NDArray[np.int64]]:
    return [Instance(id=f"{i:06d}", text=f"{i}") for i in range(n)], np.arange(n)


def clustered(n: int, random: np.random.Generator) -> tuple[list[Instance], NDArray[np.int64]]:
    """n rows in sources of 1, 2, 4 or 8."""
    sizes = random.choice(CLUSTERS, n)
    members = np.repeat(np.arange(n), sizes)[:n]
    return [Instance(id=f"{i:06d}", text="", source=f"s{g:06d}") for i, g in enumerate(members)], members


def uniform_of(members: NDArray[np.int64], random: np.random.Generator, correlation: float) -> Floats:
    """(n,) uniform numbers; those of one source are correlated as normal scores."""
    from scipy.special import ndtr

    shared, own = random.normal(size=len(members)), random.normal(size=len(members))
    found: Floats = ndtr(math.sqrt(correlation) * shared[members] + math.sqrt(1 - correlation) * own)
    return found


# --- scenarios --------------------------------------------------------------------------------------------------------


def of_values(statistic: str, shape: str, population: Population, truth: float, *, sources: bool = False) -> Scenario:
    def draw(n: int, random: np.random.Generator) -> IntervalEstimate | None:
        instances, members = clustered(n, random) if sources else apart(n)
        values = population.at(uniform_of(members, random, CORRELATION if sources else 0.0))
        groups = Groups.of(instances, np.ones(n, dtype=bool))
        if statistic.startswith("median"):
            return median_interval(values, groups, confidence=LEVELS[0])
        if statistic.startswith("proportion"):
            return proportion_interval(values, groups, confidence=LEVELS[0])
        return mean_interval(values, groups, confidence=LEVELS[0], generator=random)

    name = f"{statistic}, sources of 1 to 8" if sources else statistic
    return Scenario(name, shape, draw, lambda n: truth)


def of_ratio(shape: str, divisor: Population, share: float) -> Scenario:
    """The mean of a gain as a share of the mean of the largest gain, as the erasure checks give it."""

    def draw(n: int, random: np.random.Generator) -> IntervalEstimate | None:
        largest = divisor.at(random.random(n))
        gain = largest * np.clip(share + 0.5 * random.normal(size=n), -1, 1)
        groups = Groups.of(apart(n)[0], np.ones(n, dtype=bool))

        return ratio_interval(gain, largest, groups, confidence=LEVELS[0], generator=random)

    truth = float(np.clip(share + 0.5 * np.random.default_rng(0).normal(size=4_000_000), -1, 1).mean())
    return Scenario("ratio of means", shape, draw, lambda n: truth)


def of_f1(shape: str, changed: Population | float, replacements: int, *, sources: bool = False) -> Scenario:
    """Two classes with the demo model's confusion; each instance has its own chance that a replacement flips it."""
    counts = shapes()["uniform"]
    cells = [(t, p) for t in (0, 1) for p in (0, 1)]
    names = ("negative", "positive")
    share = np.array(
        [sum(v for k, v in counts.items() if k.startswith(f"{names[t]} predicted {names[p]},")) for t, p in cells],
        dtype=np.float64,
    )
    share /= share.sum()
    flip = changed if isinstance(changed, float) else changed.mean()

    def f1(said: Floats) -> float:
        true = share[2] + share[3]
        return float(2 * (share[2:] * said[2:]).sum() / (true + (share * said).sum()))

    original = np.array([p for _, p in cells], dtype=np.float64)
    truth = f1(original) - f1(original * (1 - flip) + (1 - original) * flip)

    def draw(n: int, random: np.random.Generator) -> IntervalEstimate | None:
        chosen = random.choice(4, n, p=share)
        labels, predicted = np.array(cells)[chosen].T
        chance = np.full(n, changed) if isinstance(changed, float) else changed.at(random.random(n))
        instances, members = clustered(n, random) if sources else apart(n)
        drawn = [uniform_of(members, random, CORRELATION if sources else 0.0) for _ in range(replacements)]
        flipped = np.column_stack(drawn) < chance[:, None]
        replaced = np.where(flipped, 1 - predicted[:, None], predicted[:, None]).astype(np.float64)
        measured = Measurements(
            model="m", data="d", seed=0, classes=names, instances=instances, tokens=[], labels=labels,
            predicted=predicted,
        )  # fmt: skip
        groups = Groups.of(instances, np.ones(n, dtype=bool))
        return F1Drop.of(measured, replaced).interval(groups, confidence=LEVELS[0])

    name = "ΔF1, " + ("uniform" if replacements == 1 else "permutations") + (", sources of 1 to 8" if sources else "")
    return Scenario(name, shape, draw, lambda n: truth)


def of_ranking(shape: str, told: Sequence[float], attention: Sequence[float]) -> Scenario:
    """States of rank r tell the output with strength told[r]. The true value is that of the true order of the told."""
    from attnaudit.checks.information_ranking import ranking_interval
    from attnaudit.metrics.ranked_information import information_ranking, ranking_agreement

    def weights_of(n: int, random: np.random.Generator) -> Floats:
        found: Floats = -np.sort(-random.dirichlet(40 * np.array(attention), n), axis=1)
        return found

    # Sorting each instance's weights moves their means, and with them the weight of each pair.
    mean = weights_of(1_000_000, np.random.default_rng(0)).mean(0)
    truth = ranking_agreement(np.array(told, dtype=np.float64), mean)[0]

    def draw(n: int, random: np.random.Generator) -> IntervalEstimate | None:
        output = random.normal(size=n)
        states = random.normal(size=(n, len(told), 8))
        states[:, :, :2] += np.array(told)[None, :, None] * output[:, None, None]
        weights = weights_of(n, random)
        ranking = information_ranking(states, weights, output[:, None], seed=int(random.integers(1 << 30)))
        if np.isnan(ranking.weighted_tau):
            return None
        instances, _ = apart(n)
        groups = Groups.of(instances, np.ones(n, dtype=bool))
        return ranking_interval(ranking, weights, groups, confidence=LEVELS[0], generator=random, null=random)

    return Scenario("MI ranking", shape, draw, lambda n: truth, slow=True)


def scenarios() -> list[Scenario]:
    known = populations()
    found = []
    for name in (
        "tau of the gradient", "tau of the gradient, tied", "tau of leave-one-out", "influence entropy",
        "permutation TVD", "uniform TVD", "uniform TVD, 70% zero", "JSD at .01", "JSD at .2",
    ):  # fmt: skip
        found.append(of_values("mean", name, known[name], known[name].mean()))
    for name in ("tau of leave-one-out", "uniform TVD"):
        found.append(of_values("mean", name, known[name], known[name].mean(), sources=True))
    for name in ("tau of the gradient, tied", "largest weight", "uniform TVD"):
        found.append(of_values("median", name, known[name], known[name].median()))
    found.append(of_values("median", "uniform TVD", known["uniform TVD"], known["uniform TVD"].median(), sources=True))
    for share in (0.02, 0.1, 0.5):
        ones = Population(np.linspace(0, 1, 201), lambda u, share=share: (u < share).astype(np.float64))
        found.append(of_values("proportion", f"{share:g}", ones, share))
        if share != 0.02:
            found.append(of_values("proportion", f"{share:g}", ones, share, sources=True))
    for name in ("largest weight", "uniform TVD"):
        found.append(of_ratio(f"share of {name}", known[name], 0.6))
    found.append(of_f1("4% flip", 0.04, 1))
    found.append(of_f1("30% flip", 0.3, 1))
    found.append(of_f1("flips as measured", known["permutation flips"], PERMUTATIONS))
    found.append(of_ranking("in order", (1.2, 0.8, 0.5, 0.25, 0.0), (0.4, 0.25, 0.15, 0.12, 0.08)))
    found.append(of_ranking("partly in order", (0.5, 1.2, 0.8, 0.0, 0.25), (0.4, 0.25, 0.15, 0.12, 0.08)))
    found += [of_f1(shape, share, 1, sources=True) for shape, share in (("4% flip", 0.04), ("30% flip", 0.3))]
    return found


# --- counting ---------------------------------------------------------------------------------------------------------


def run(index: int, n: int, trials: int) -> dict[str, Any]:
    """Counts of one scenario at one size."""
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
    kept = trials - absent
    rows = {
        f"{level:g}": {
            "coverage": 1 - (below + above) / kept,
            "error": math.sqrt(max((below + above) / kept * (1 - (below + above) / kept), 0.25 / kept) / kept),
            "truth below": below / kept,
            "truth above": above / kept,
        }
        for level, (below, above) in counts.items()
    }
    return {
        "statistic": scenario.statistic,
        "shape": scenario.shape,
        "n": n,
        "truth": truth,
        "trials": trials,
        "without an interval": absent,
        "mean width": float(np.mean(widths)),
        "levels": rows,
        "seconds": round(time.perf_counter() - started, 1),
    }


def table(rows: Sequence[dict[str, Any]], level: str) -> str:
    """Markdown: one line per scenario, one cell per n."""
    sizes = sorted({row["n"] for row in rows})
    lines = ["| statistic | shape | " + " | ".join(f"n = {n}" for n in sizes) + " |"]
    lines.append("|---|---|" + "---:|" * len(sizes))
    for pair in dict.fromkeys((row["statistic"], row["shape"]) for row in rows):
        cells = []
        for n in sizes:
            row = next(r for r in rows if (r["statistic"], r["shape"], r["n"]) == (*pair, n))
            one = row["levels"][level]
            low, high = one["truth below"], one["truth above"]
            cells.append(f"{one['coverage']:.1%} ± {one['error']:.1%} ({low:.1%}, {high:.1%})")
        lines.append(f"| {pair[0]} | {pair[1]} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def page(rows: Sequence[dict[str, Any]], plans: Sequence[dict[str, Any]]) -> str:
    from benchmarks.planning import table as planning_table

    trials = sorted({row["trials"] for row in rows})
    return f"""# Coverage of the intervals, measured

Written by `python -m benchmarks.coverage`; all numbers are in coverage.json. Each cell: the share of samples whose
interval holds the true value, ± its Monte-Carlo standard error, and in brackets how often the truth lay below and above
the interval. Samples per cell: {trials[0]:,} (MI ranking) to {trials[-1]:,}. Shapes are those of the demo model's
measures on the embedded reviews; "sources of 1 to 8" are rows of one source with correlation {CORRELATION:g}. For the
MI ranking the true value is that of the ranks' true order.

## Nominal 95%

{table(rows, "0.95")}

## Nominal 99.75%: a failure under 20 gated checks

{table(rows, "0.9975")}

## Planning figures

Of inconclusive samples of n: the number of instances that they name, against the number that really decides in 80% of
samples; how often the range holds that number; and how often a fresh sample of the named size (up to 20 n) decides
rightly. A value that chance moved away from the threshold names too small a number: read the range, not the figure.

{planning_table(plans)}
"""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer samples, n up to 300; prints, writes nothing")
    parser.add_argument("--jobs", type=int, default=1, help="processes (default: 1)")
    parser.add_argument("--only", default="", metavar="WORD", help="scenarios whose name holds this word")
    options = parser.parse_args(arguments)
    chosen = [(i, one) for i, one in enumerate(scenarios()) if options.only in one.name]
    sizes = SIZES[:3] if options.quick else SIZES
    share = 0.1 if options.quick else 1.0
    work = [(i, n, int((SLOW_TRIALS if one.slow else TRIALS) * share)) for i, one in chosen for n in sizes]
    rows: list[dict[str, Any]] = []
    with ProcessPoolExecutor(options.jobs) as pool:
        for row in pool.map(run, *zip(*work, strict=True)) if work else ():
            one = row["levels"]["0.95"]
            print(f"{row['statistic']}: {row['shape']}, n={row['n']}: {one['coverage']:.3f} ± {one['error']:.3f} "
                  f"({one['truth below']:.3f}, {one['truth above']:.3f}), {row['seconds']} s", flush=True)  # fmt: skip
            rows.append(row)
        plans = plan_figures(pool, 0.05 if options.quick else 1.0) if options.only in "planning" else []
    if options.quick:
        from benchmarks.planning import table as planning_table

        print(table(rows, "0.95") if rows else "")
        print(planning_table(plans) if plans else "")
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
    from benchmarks import planning

    work = [
        (shape, n, distance, int(planning.TRIALS * share))
        for shape in planning.SHAPES
        for n, distance in planning.CASES
    ]
    return list(pool.map(planning.run, *zip(*work, strict=True)))


if __name__ == "__main__":
    sys.exit(main())
