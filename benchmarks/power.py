"""Measure the power of gates at the detectable change that they report.

    python -m benchmarks.power [--quick] [--jobs N]

A gate reports its detectable change: how far from the threshold the true value must be for a decision in 80% of
samples. Here, this distance comes from samples of n instances. The true value of their population is on the threshold,
or on its other side by one detectable change. Then a population whose true value has the reported distance is audited
many times, with the intervals and the decision rule of the checks. The share of correct verdicts is the power.

The populations are those of coverage.py. Populations with other true values come from exponential tilting: every row
keeps its numbers, but rows with high values become more frequent or rarer. The results are written to power.json and
power.md.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq

from attnaudit.records import Requirement
from attnaudit.statistics import bootstrap_samples
from attnaudit.statistics.balanced_rows import WeightedRows
from attnaudit.statistics.detectable_change import detectable_change
from attnaudit.statistics.groups import Groups
from attnaudit.statistics.interval_estimate import IntervalEstimate
from attnaudit.statistics.intervals import mean_interval, proportion_interval, ratio_interval
from attnaudit.statistics.total_effect_index import TotalEffectIndex
from attnaudit.statistics.verdict import decide, fail_confidence
from attnaudit.statistics.weighted_share import weighted_share_interval
from benchmarks import coverage_samples

HERE = Path(__file__).resolve().parent
SIZES = (50, 200, 2000)
CONFIDENCE = 0.95
GATES = 2
#: Bootstrap samples per interval: a quarter of those of an audit, which saves time.
RESAMPLES = 1000
#: Up to this sample size, populations beyond the threshold are included, and PILOTS samples give the detectable change.
#: For larger samples, it is FEW_PILOTS.
LARGEST_BEYOND = 200
#: The number of samples whose median is the detectable change.
PILOTS, FEW_PILOTS = 41, 15
#: The number of samples that are judged at the detectable change.
TRIALS = 400
AUDITED = ("on the threshold", "beyond", "as measured", "scaled")
Floats = NDArray[np.float64]
Rows = NDArray[np.int64]


@dataclass(frozen=True)
class Population:
    """Rows with measured numbers. Samples are drawn from them with probabilities that can be tilted.

    Attributes:
        name: The statistic and the shape.
        base: (K,) probabilities of the rows.
        scores: (K,) A tilt adds a multiple of these numbers to the logarithms of the probabilities.
        truth: Returns the statistic of the population with the given probabilities.
        judge: Returns the value and the interval of a sample of rows.
        bounds: The lowest and the highest possible value.
        threshold: The threshold of the gate; None for the statistic of the measured rows.
        scaled: Returns the population of rows that are scaled to have the given value; None if they cannot be scaled.
    """

    name: str
    base: Floats
    scores: Floats
    truth: Callable[[Floats], float]
    judge: Callable[[Rows, Groups, np.random.Generator], tuple[float, IntervalEstimate | None]]
    bounds: tuple[float, float]
    threshold: float | None = None
    scaled: Callable[[float], Population] | None = None

    def at(self, value: float) -> Floats:
        """Return the (K,) probabilities with which the statistic has the given value."""

        def tilted(factor: float) -> Floats:
            exponents = factor * self.scores
            weights = self.base * np.exp(exponents - exponents.max())
            result: Floats = weights / weights.sum()
            return result

        scale = 1 / float(np.sqrt(self.base @ self.scores**2))
        factor = brentq(lambda x: self.truth(tilted(x)) - value, -40 * scale, 40 * scale, xtol=1e-9)
        return tilted(float(factor))


def of_mean(shape: str, bounds: tuple[float, float]) -> Population:
    """Return the population of a mean of measured values."""
    values = coverage_samples.populations()[shape].at((np.arange(2000) + 0.5) / 2000)
    mean = float(values.mean())
    end = bounds[0] if ((values - mean) ** 3).mean() > 0 else bounds[1]

    def scaled(value: float) -> Population:
        return replace(_of_values(shape, end + (values - end) * (value - end) / (mean - end), bounds), scaled=scaled)

    return replace(_of_values(shape, values, bounds), scaled=scaled)


def _of_values(shape: str, values: Floats, bounds: tuple[float, float]) -> Population:
    def judge(rows: Rows, groups: Groups, random: np.random.Generator) -> tuple[float, IntervalEstimate | None]:
        drawn = values[rows]
        estimate = mean_interval(drawn, groups, confidence=CONFIDENCE, generator=random, bounds=bounds)
        return float(drawn.mean()), estimate

    base = np.full(len(values), 1 / len(values))
    return Population(f"mean, {shape}", base, values - values.mean(), lambda p: float(p @ values), judge, bounds)


def of_share(share: float, threshold: float | None = None) -> Population:
    """Return the population of a share of rows with equal weights."""

    def judge(rows: Rows, groups: Groups, random: np.random.Generator) -> tuple[float, IntervalEstimate | None]:
        drawn = rows.astype(np.float64)
        return float(drawn.mean()), proportion_interval(drawn, groups, confidence=CONFIDENCE)

    base, scores = np.array([1 - share, share]), np.array([-share, 1 - share])
    return Population(f"proportion, {share:g}", base, scores, lambda p: float(p[1]), judge, (0.0, 1.0), threshold)


def of_ratio(
    name: str, above: Floats, below: Floats, bounds: tuple[float, float], extremes: tuple[float, float]
) -> Population:
    """Return the population of a ratio of means."""

    def judge(rows: Rows, groups: Groups, random: np.random.Generator) -> tuple[float, IntervalEstimate | None]:
        a, b = above[rows], below[rows]
        estimate = ratio_interval(
            a, b, groups, confidence=CONFIDENCE, generator=random, bounds=bounds, extremes=extremes
        )
        return float(a.sum() / b.sum()), estimate

    base = np.full(len(above), 1 / len(above))
    ratio = float(above.sum() / below.sum())
    return Population(name, base, above - ratio * below, lambda p: float(p @ above / (p @ below)), judge, bounds)


def of_pointing(measure: str) -> Population:
    """Return the population of the pointing check: the cosine above uniform weights, or the share of the texts."""
    largest, cosine, uniform = (np.array(column) for column in coverage_samples.shapes()["pointing"].values())
    gain, room = largest * (cosine - uniform), largest * (1 - uniform)
    if measure == "cosine":
        return of_ratio("pointing, cosine", gain, room, (-math.inf, 1.0), (-1.0, 1.0))
    pointed = gain >= 0.25 * room
    above, below = np.where(pointed, room, 0.0), room
    share = float(above.sum() / below.sum())
    base = np.full(len(room), 1 / len(room))
    if measure == "share, any text":  # the weight of a text does not affect whether attention points
        above, below = np.concatenate([room, 0 * room]), np.concatenate([room, room])
        base = np.concatenate([share * base, (1 - share) * base])

    def judge(rows: Rows, groups: Groups, random: np.random.Generator) -> tuple[float, IntervalEstimate | None]:
        counted, weights = above[rows], below[rows]
        equal = WeightedRows.equal(len(rows), groups)
        value = float(counted.sum() / weights.sum())
        return value, weighted_share_interval(counted, weights, equal, confidence=CONFIDENCE)

    return Population(
        f"pointing, {measure}",
        base,
        (above > 0).astype(np.float64),
        lambda p: float(p @ above / (p @ below)),
        judge,
        (0.0, 1.0),
        threshold=0.63,
    )


def of_total_effect(factor: float = 1.0) -> Population:
    """Return the population of the total-effect index of the probabilities, with all effects times a factor."""
    stored = {name: np.array(values) for name, values in coverage_samples.shapes()["rearrangement"].items()}
    p = 1 / (1 + np.exp(-stored["logit"]))
    outputs, changes = np.stack([1 - p, p], axis=1), factor * stored["change of the probabilities"]
    base = np.full(len(p), 1 / len(p))

    def truth(weights: Floats) -> float:
        return float(weights @ changes) / (2 * float(weights @ ((outputs - weights @ outputs) ** 2).sum(1)))

    def judge(rows: Rows, groups: Groups, random: np.random.Generator) -> tuple[float, IntervalEstimate | None]:
        index = TotalEffectIndex.of(changes[rows], outputs[rows], WeightedRows.equal(len(rows), groups))
        if index is None:
            return math.nan, None
        return index.value, index.interval(confidence=CONFIDENCE, generator=random, largest_change=2.0)

    deviations = ((outputs - base @ outputs) ** 2).sum(1)
    scores = changes - 2 * truth(base) * deviations
    index = truth(base)
    found = Population("total effect, probabilities", base, scores, truth, judge, (0.0, math.inf))
    return replace(found, scaled=lambda value: of_total_effect(factor * value / index))


def populations() -> list[Population]:
    """Return the populations that are audited."""
    largest = coverage_samples.populations()["uniform TVD"].at((np.arange(2000) + 0.5) / 2000)
    gain = largest * np.clip(0.3 + 0.5 * np.random.default_rng(0).normal(size=2000), -1, 1)
    return [
        of_mean("tau of leave-one-out", (-1.0, 1.0)),
        of_mean("permutation TVD", (0.0, 1.0)),
        of_ratio("ratio of means, share of uniform TVD", gain, largest, (-math.inf, 1.0), (-1.0, 1.0)),
        of_total_effect(),
        of_pointing("cosine"),
        of_pointing("share, any text"),
        of_pointing("share, same texts"),
        of_share(0.95),
        of_share(0.98, threshold=0.9),
    ]


def sample(
    population: Population, probabilities: Floats, n: int, random: np.random.Generator
) -> tuple[float, IntervalEstimate | None]:
    """Return the value and the interval of a sample of n instances."""
    groups, _ = coverage_samples.independent(n)
    return population.judge(random.choice(len(probabilities), n, p=probabilities), groups, random)


def verdict(value: float, estimate: IntervalEstimate | None, requirement: Requirement, n: int) -> str:
    """Return the verdict of one of two gates on a sample."""
    return decide(
        value=value,
        interval=estimate.at(CONFIDENCE) if estimate else None,
        fail_interval=estimate.at(fail_confidence(CONFIDENCE, GATES)) if estimate else None,
        requirement=requirement,
        n=n,
        n_defined=n,
    )[0]


def reported(
    population: Population, probabilities: Floats, threshold: float, n: int, random: np.random.Generator
) -> tuple[float, float]:
    """Return the median detectable changes that samples report, to pass and to fail. NaN if a sample reports none."""
    found = []
    for _ in range(PILOTS if n <= LARGEST_BEYOND else FEW_PILOTS):
        value, estimate = sample(population, probabilities, n, random)
        if estimate is None:
            continue
        change = detectable_change(
            value=value,
            estimate=estimate,
            requirement=Requirement(direction="at_least", value=threshold),
            confidence=CONFIDENCE,
            fail_confidence=fail_confidence(CONFIDENCE, GATES),
            bounds=population.bounds,
        )
        found.append([math.nan if x is None else x for x in (change.to_pass, change.to_fail)])
    median = np.median(np.array(found), axis=0)
    return (float(median[0]), float(median[1]))


def run(number: int, n: int, audited: str, share: float) -> list[dict[str, Any]]:
    """Return the power of one population and size at the reported detectable changes, to pass and to fail.

    Args:
        number: The position of the population in `populations`.
        n: The sample size.
        audited: The true value of the population that reports the detectable change: "on the threshold", "beyond" (on
            its other side, by one detectable change) or "as measured". "scaled" is "on the threshold" too, but the
            judged population then has scaled rows instead of tilted probabilities.
        share: The share of `TRIALS` to draw.
    """
    bootstrap_samples.RESAMPLES = RESAMPLES
    population = populations()[number]
    threshold = population.threshold or population.truth(population.base)
    random = np.random.default_rng([number, n, AUDITED.index(audited)])
    base = population.base if audited == "as measured" else population.at(threshold)
    first = reported(population, base, threshold, n, random)
    results = []
    for position, right in enumerate(("pass", "fail")):
        side = 1.0 if right == "pass" else -1.0
        row: dict[str, Any] = {"population": population.name, "n": n, "audited": audited, "verdict": right}
        results.append(row | {"threshold": threshold, "change": None, "trials": 0, "power": None})
        try:
            change = first[position]
            if audited == "beyond":
                change = reported(population, population.at(threshold - side * change), threshold, n, random)[position]
            if audited == "scaled" and population.scaled is not None:
                judged = population.scaled(threshold + side * change)
                changed = judged.base
            else:
                judged, changed = population, population.at(threshold + side * change)
        except ValueError:  # No probabilities of these rows give this value.
            continue
        if math.isnan(change):  # The samples report no detectable change.
            continue
        trials = max(20, int(TRIALS * share))
        requirement = Requirement(direction="at_least", value=threshold)
        decided = sum(verdict(*sample(judged, changed, n, random), requirement, n) == right for _ in range(trials))
        results[-1] |= {"change": change, "trials": trials, "power": decided / trials}
    return results


def page(rows: Sequence[dict[str, Any]]) -> str:
    """Return the Markdown page of the results."""
    lines = [
        "# Power at the detectable change, measured",
        "",
        "`python -m benchmarks.power` writes this page. Every gate reports how far from its threshold the true value",
        "must be for a decision in 80% of samples ([verdicts.md](../docs/verdicts.md#detectable-change)). The table",
        "shows how often samples of n instances were decided correctly at that distance. Every gate in the table",
        "takes at_least, has 95% confidence, and is one of two gates.",
        "",
        "This distance is the median of the detectable changes that samples of the audited population report. The",
        'column *audited* names the true value of this population: "on the threshold", "as measured" on the demo',
        'model, or "beyond": on the other side of the threshold, one detectable change away from it. The spread at the',
        "new value is then extrapolated. The population with the changed value has the same rows with",
        'different frequencies. "Scaled" means instead that the distance of every row from one end of the range',
        'changes by the same factor. With "any text", the texts to which attention does not point are drawn from all',
        'texts. With "same texts", they are the few such texts of the demo model, whose weights are small.',
        "",
        f"Each power comes from {TRIALS} samples, so its standard error is 2 percentage points near 80%. It should",
        "be at least 80%. It may be more, because a gate reports the upper limit of a change that it can only",
        "estimate. An em dash means that no such population has a value that far from the threshold.",
        "",
        "| population | threshold | n | audited | change to pass | power | change to fail | power |",
        "|---|---:|---:|---|---:|---:|---:|---:|",
    ]
    for passing, failing in zip(rows[::2], rows[1::2], strict=True):
        cells = [passing["population"], f"{passing['threshold']:.3f}", str(passing["n"]), passing["audited"]]
        for row in (passing, failing):
            cells += ["—", "—"] if row["power"] is None else [f"{row['change']:.4f}", f"{row['power']:.0%}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def cases() -> list[tuple[int, int, str]]:
    """Return the position of the population, the size, and what is audited, for every case."""
    found = []
    for number, population in enumerate(populations()):
        for n in SIZES:
            if population.threshold is not None:
                found.append((number, n, "as measured"))
                continue
            found += [(number, n, audited) for audited in (AUDITED[:2] if n <= LARGEST_BEYOND else AUDITED[:1])]
            found += [(number, n, "scaled")] if population.scaled is not None else []
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark. The return value is the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="draw a tenth of the samples, and write nothing")
    parser.add_argument("--jobs", type=int, default=1, help="number of processes (default: 1)")
    options = parser.parse_args(arguments)
    share = 0.1 if options.quick else 1.0
    with ProcessPoolExecutor(options.jobs) as pool:
        work = [(*case, share) for case in cases()]
        rows = [row for results in pool.map(run, *zip(*work, strict=True)) for row in results]
    if options.quick:
        print(page(rows))
    else:
        (HERE / "power.md").write_text(page(rows), encoding="utf-8")
        (HERE / "power.json").write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
