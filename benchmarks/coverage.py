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
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnaudit.statistics.balanced_rows import WeightedRows
from attnaudit.statistics.cohens_kappa import CohensKappa
from attnaudit.statistics.f1_drop import F1Drop
from attnaudit.statistics.groups import Groups
from attnaudit.statistics.interval_estimate import IntervalEstimate
from attnaudit.statistics.intervals import mean_interval, median_interval, proportion_interval, ratio_interval
from attnaudit.statistics.total_effect_index import TotalEffectIndex

HERE = Path(__file__).resolve().parent
SIZES = (30, 100, 300, 1000)
#: The confidence levels: 95%, and the level at which a check fails under a policy of 20 gated checks.
LEVELS = (0.95, 0.9975)
#: The number of samples per scenario and sample size.
TRIALS = 1000
#: The number of samples of slow scenarios.
SLOW_TRIALS = 200
CLUSTERS = (1, 2, 4, 8)
CORRELATION = 0.5
PERMUTATIONS = 20
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Scenario:
    """A statistic on a population with a known true value.

    Attributes:
        statistic: The name of the statistic.
        shape: The name of the distribution.
        draw: Takes n and a random generator, draws a sample of n instances, and returns the interval of the statistic.
            Returns None if the sample has no interval.
        truth: Returns the true value for a sample of n instances.
        slow: Whether fewer samples are drawn, because each takes about a second or the scenario has many variants.
    """

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
    """Return the quantiles and counts in coverage_shapes.json."""
    stored: dict[str, Any] = json.loads((HERE / "coverage_shapes.json").read_text(encoding="utf-8"))
    return stored


@dataclass(frozen=True)
class Population:
    """A distribution that is defined by its quantiles. Between them, it is interpolated linearly.

    Attributes:
        quantiles: The quantiles at 0, 0.005, ..., 1: 201 values for measured distributions.
        of: A function that is applied to every value. An example is rounding, which creates ties.
    """

    quantiles: Floats
    of: Callable[[Floats], Floats] = lambda x: x

    def at(self, u: Floats) -> Floats:
        return self.of(np.interp(u, np.linspace(0, 1, len(self.quantiles)), self.quantiles))

    def mean(self) -> float:
        return float(self.at((np.arange(4_000_000) + 0.5) / 4_000_000).mean())

    def median(self) -> float:
        return float(self.at(np.array([0.5]))[0])


def populations() -> dict[str, Population]:
    """Return name -> distribution for the measured distributions and for variants of them."""
    found = {name: Population(np.array(values)) for name, values in shapes()["shapes"].items()}
    found["tau of the gradient, tied"] = Population(found["tau of the gradient"].quantiles, lambda x: np.round(x, 1))
    tvd = found["uniform TVD"].quantiles
    # This is like sparse attention: on seven of ten instances, replacing the weights changes nothing.
    found["uniform TVD, 70% zero"] = Population(
        np.concatenate([np.zeros(140), np.interp(np.linspace(0, 1, 61), np.linspace(0, 1, len(tvd)), tvd)])
    )
    return found


def independent(n: int) -> tuple[Groups, NDArray[np.int64]]:
    """Return groups of n rows in which each row has its own source, and the (n,) numbers of the sources."""
    return grouped(np.arange(n)), np.arange(n)


def clustered(n: int, random: np.random.Generator) -> tuple[Groups, NDArray[np.int64]]:
    """Return groups of n rows in which sources have 1, 2, 4 or 8 rows, and the (n,) numbers of the sources."""
    sizes = random.choice(CLUSTERS, n)
    members = np.repeat(np.arange(n), sizes)[:n]
    return grouped(members), members


def grouped(members: NDArray[np.int64]) -> Groups:
    """Return the groups of rows that share a source.

    Args:
        members: (n,) The number of the source of each row.
    """
    n = len(members)
    return Groups.of([f"{g:06d}" for g in members], [f"{i:06d}" for i in range(n)], np.ones(n, dtype=bool))


def uniform_of(members: NDArray[np.int64], random: np.random.Generator, correlation: float) -> Floats:
    """Return (n,) uniform random numbers that are correlated within sources.

    Args:
        members: (n,) The number of the source of each row.
        random: The random generator.
        correlation: The correlation of the normal scores of two numbers with the same source.
    """
    from scipy.special import ndtr

    shared, own = random.normal(size=len(members)), random.normal(size=len(members))
    found: Floats = ndtr(math.sqrt(correlation) * shared[members] + math.sqrt(1 - correlation) * own)
    return found


# --- scenarios --------------------------------------------------------------------------------------------------------


def of_values(statistic: str, shape: str, population: Population, truth: float, *, sources: bool = False) -> Scenario:
    """Return the scenario of a mean, a median or a proportion.

    Args:
        statistic: The name of the statistic.
        shape: The name of the distribution.
        population: The distribution of the values.
        truth: The true value.
        sources: Whether several rows share a source.
    """

    def draw(n: int, random: np.random.Generator) -> IntervalEstimate | None:
        groups, members = clustered(n, random) if sources else independent(n)
        values = population.at(uniform_of(members, random, CORRELATION if sources else 0.0))
        if statistic.startswith("median"):
            return median_interval(values, groups, confidence=LEVELS[0])
        if statistic.startswith("proportion"):
            return proportion_interval(values, groups, confidence=LEVELS[0])
        return mean_interval(values, groups, confidence=LEVELS[0], generator=random)

    name = f"{statistic}, sources of 1 to 8" if sources else statistic
    return Scenario(name, shape, draw, lambda n: truth)


def of_ratio(shape: str, divisor: Population, share: float) -> Scenario:
    """Return the scenario of the ratio that the erasure checks compute: the mean gain by the mean largest gain.

    Args:
        shape: The name of the scenario.
        divisor: The distribution of the largest gain.
        share: The ratio around which the gains are drawn. Gains are clipped, so the true value is slightly different.
    """

    def draw(n: int, random: np.random.Generator) -> IntervalEstimate | None:
        largest = divisor.at(random.random(n))
        gain = largest * np.clip(share + 0.5 * random.normal(size=n), -1, 1)
        groups, _ = independent(n)

        return ratio_interval(gain, largest, groups, confidence=LEVELS[0], generator=random)

    truth = float(np.clip(share + 0.5 * np.random.default_rng(0).normal(size=4_000_000), -1, 1).mean())
    return Scenario("ratio of means", shape, draw, lambda n: truth)


def of_pointing(shape: str, power: int, *, sources: bool = False) -> Scenario:
    """Return the scenario of the pointing check: the cosine of attention with the effects, above uniform weights.

    The population is that of the measured instances: the largest effect, the cosine, and the cosine of uniform weights.

    Args:
        shape: The name of the scenario.
        power: The largest effects are raised to this power, so that fewer instances carry the weight.
        sources: Whether rows share sources. Rows of one source then point similarly well.
    """
    largest, cosine, uniform = (np.array(column) for column in shapes()["pointing"].values())
    gain, room = largest**power * (cosine - uniform), largest**power * (1 - uniform)
    truth = float(gain.sum() / room.sum())
    order = np.argsort(gain - truth * room)

    def draw(n: int, random: np.random.Generator) -> IntervalEstimate | None:
        groups, members = clustered(n, random) if sources else independent(n)
        u = uniform_of(members, random, CORRELATION if sources else 0.0)
        rows = order[np.minimum((u * len(order)).astype(np.int64), len(order) - 1)]
        return ratio_interval(
            gain[rows],
            room[rows],
            groups,
            confidence=LEVELS[0],
            generator=random,
            bounds=(-np.inf, 1.0),
            extremes=(-1.0, 1.0),
        )

    return Scenario("pointing" + (", sources of 1 to 8" if sources else ""), shape, draw, lambda n: truth)


def of_f1(shape: str, changed: Population | float, replacements: int, *, sources: bool = False) -> Scenario:
    """Return the scenario of a drop in F1, with two classes and the confusion matrix of the demo model.

    Args:
        shape: The name of the scenario.
        changed: The probability that a replacement of the weights flips a prediction. If it differs between instances,
            its distribution.
        replacements: The number of replacements per instance.
        sources: Whether several rows share a source.
    """
    counts = shapes()["uniform"]
    cells = [(t, p) for t in (0, 1) for p in (0, 1)]
    names = ("negative", "positive")
    share = np.array(
        [sum(v for k, v in counts.items() if k.startswith(f"{names[t]} predicted {names[p]},")) for t, p in cells],
        dtype=np.float64,
    )
    share /= share.sum()
    flip = changed if isinstance(changed, float) else changed.mean()

    def f1(positive: Floats) -> float:
        true = share[2] + share[3]
        return float(2 * (share[2:] * positive[2:]).sum() / (true + (share * positive).sum()))

    original = np.array([p for _, p in cells], dtype=np.float64)
    truth = f1(original) - f1(original * (1 - flip) + (1 - original) * flip)

    def draw(n: int, random: np.random.Generator) -> IntervalEstimate | None:
        chosen = random.choice(4, n, p=share)
        labels, predicted = np.array(cells)[chosen].T
        chance = np.full(n, changed) if isinstance(changed, float) else changed.at(random.random(n))
        groups, members = clustered(n, random) if sources else independent(n)
        drawn = [uniform_of(members, random, CORRELATION if sources else 0.0) for _ in range(replacements)]
        flipped = np.column_stack(drawn) < chance[:, None]
        replaced = np.where(flipped, 1 - predicted[:, None], predicted[:, None]).astype(np.float64)
        drop = F1Drop.of(labels, predicted[:, None].astype(float), replaced, classes=len(names))
        return drop.interval(groups, confidence=LEVELS[0])

    name = "ΔF1, " + ("uniform" if replacements == 1 else "permutations") + (", sources of 1 to 8" if sources else "")
    return Scenario(name, shape, draw, lambda n: truth)


def of_total_effect(
    on: str, shape: str, *, positive: float = 0.5, outliers: float = 1.0, sources: bool = False
) -> Scenario:
    """Return the scenario of the total-effect index of attention, or of Cohen's κ.

    The rows are 201 of the demo model, ordered by their logit.

    Args:
        on: "logits", "probabilities" or "decisions".
        shape: The name of the scenario.
        positive: The share of rows with a positive logit.
        outliers: One row in a hundred has its logit, and the change of it, multiplied by this factor.
        sources: Whether rows share sources, which gives them similar logits.
    """
    stored = {name: np.array(values) for name, values in shapes()["rearrangement"].items()}
    size = len(stored["logit"])
    above = stored["logit"] > 0
    chance = np.where(above, positive / above.sum(), (1 - positive) / (~above).sum())
    factor = np.ones(size)
    factor[np.random.default_rng(0).permutation(size)[: size // 100]] = outliers
    z = stored["logit"] * factor
    p = 1 / (1 + np.exp(-z))
    outputs = np.stack([-z / 2, z / 2] if on == "logits" else [1 - p, p], axis=1)
    changes = stored["change of the logits"] * factor**2 if on == "logits" else stored["change of the probabilities"]
    flips = stored["decisions changed"][:, None]
    shares = np.where(above[:, None], np.hstack([flips, 1 - flips]), np.hstack([1 - flips, flips]))
    if on == "decisions":
        kappa = CohensKappa.of(above.astype(np.int64), shares)
        truth = float(kappa.kappa((chance @ kappa.columns)[None])[0])
    else:
        variance = float(chance @ ((outputs - chance @ outputs) ** 2).sum(1))
        truth = float(chance @ changes) / (2 * variance)

    def draw(n: int, random: np.random.Generator) -> IntervalEstimate | None:
        groups, members = clustered(n, random) if sources else independent(n)
        u = uniform_of(members, random, CORRELATION if sources else 0.0)
        rows = np.minimum(np.searchsorted(chance.cumsum(), u), size - 1)
        if on == "decisions":
            kappa = CohensKappa.of(above[rows].astype(np.int64), shares[rows])
            return kappa.interval(groups, confidence=LEVELS[0], generator=random)
        index = TotalEffectIndex.of(changes[rows], outputs[rows], WeightedRows.equal(n, groups))
        return None if index is None else index.interval(confidence=LEVELS[0], generator=random)

    name = "Cohen's κ" if on == "decisions" else f"total effect, {on}"
    return Scenario(name + (", sources of 1 to 8" if sources else ""), shape, draw, lambda n: truth)


def of_ranking(shape: str, information: Sequence[float], attention: Sequence[float]) -> Scenario:
    """Return the scenario of the information ranking.

    The true value is the statistic for the true order of the strengths in `information`.

    Args:
        shape: The name of the scenario.
        information: For each attention rank, how strongly the states of this rank depend on the output.
        attention: For each attention rank, the expected attention weight of its states.
    """
    from attnaudit.checks.information_ranking import ranking_interval
    from attnaudit.metrics.ranked_information import information_ranking, ranking_agreement

    def weights_of(n: int, random: np.random.Generator) -> Floats:
        found: Floats = -np.sort(-random.dirichlet(40 * np.array(attention), n), axis=1)
        return found

    # Sorting the weights of each instance changes the mean weight of each rank, and therefore the weight of each pair.
    mean = weights_of(1_000_000, np.random.default_rng(0)).mean(0)
    truth = ranking_agreement(np.array(information, dtype=np.float64), mean)[0]

    def draw(n: int, random: np.random.Generator) -> IntervalEstimate | None:
        output = random.normal(size=n)
        states = random.normal(size=(n, len(information), 8))
        states[:, :, :2] += np.array(information)[None, :, None] * output[:, None, None]
        weights = weights_of(n, random)
        ranking = information_ranking(states, weights, output[:, None], seed=int(random.integers(1 << 30)))
        if np.isnan(ranking.weighted_tau):
            return None
        groups, _ = independent(n)
        return ranking_interval(ranking, weights, groups, confidence=LEVELS[0], generator=random, shuffling=random)

    return Scenario("MI ranking", shape, draw, lambda n: truth, slow=True)


def scenarios() -> list[Scenario]:
    """Return all scenarios in the order of the tables."""
    from benchmarks.balanced_coverage import balanced_scenarios

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
    for on in ("logits", "probabilities", "decisions"):
        found.append(of_total_effect(on, "as measured"))
        found.append(of_total_effect(on, "as measured", sources=True))
        rare = 0.2 if on == "decisions" else 0.05
        found.append(of_total_effect(on, f"{rare:.0%} positive", positive=rare))
    found.append(of_total_effect("logits", "1% of the logits threefold", outliers=3.0))
    found += [of_pointing("as measured", 1), of_pointing("few instances carry the weight", 4)]
    found.append(of_pointing("as measured", 1, sources=True))
    return found + balanced_scenarios()


# --- counting ---------------------------------------------------------------------------------------------------------


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
    rows = {
        f"{level:g}": {
            "coverage": 1 - (below + above) / intervals,
            "error": math.sqrt(
                max((below + above) / intervals * (1 - (below + above) / intervals), 0.25 / intervals) / intervals
            ),
            "truth below": below / intervals,
            "truth above": above / intervals,
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
            low, high = one["truth below"], one["truth above"]
            cells.append(f"{one['coverage']:.1%} ± {one['error']:.1%} ({low:.1%}, {high:.1%})")
        lines.append(f"| {pair[0]} | {pair[1]} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def page(rows: Sequence[dict[str, Any]], plans: Sequence[dict[str, Any]]) -> str:
    from benchmarks.planning import table as planning_table

    trials = sorted({row["trials"] for row in rows})
    return f"""# Coverage of the intervals, measured

`python -m benchmarks.coverage` writes this page; coverage.json has all numbers. Each cell shows the share of
samples whose interval contains the true value, ± its Monte Carlo standard error. The brackets show how often the
true value lay below and above the interval. Samples without an interval, which coverage.json counts, are left out:
they are many where the denominator of a ratio is uncertain, as with 5% positive. There are {trials[0]:,} (MI
ranking and balanced classes) to {trials[-1]:,} samples per cell. The distributions are those of the measures of the
demo model on the packaged reviews. "Sources of 1 to 8" means that the rows of one source have a correlation of
{CORRELATION:g}. "Balanced" means that every class has the same weight, by the argument `classes` of the checks. For the
MI ranking, the true value is that of the true order of the ranks.

## Nominal 95%

{table(rows, "0.95")}

## Nominal 99.75%, the level of a failure under 20 gated checks

{table(rows, "0.9975")}

## Planned sample sizes

An inconclusive verdict names the number of instances that would decide it. This table compares that number with the
one that is needed to decide in 80% of samples. It also shows how often the planned range contains the needed
number, and how often a fresh sample of the planned size (up to 20 n) leads to the correct verdict. If chance moved
the value away from the threshold, the planned number is too small: rely on the range rather than on the number.

{planning_table(plans)}
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
    """Return the results of every planning case.

    Args:
        pool: The processes that share the work.
        share: The number of trials, as a share of the usual number.
    """
    from benchmarks import planning

    work = [
        (shape, n, distance, int(planning.TRIALS * share))
        for shape in planning.SHAPES
        for n, distance in planning.CASES
    ]
    return list(pool.map(planning.run, *zip(*work, strict=True)))


if __name__ == "__main__":
    sys.exit(main())
