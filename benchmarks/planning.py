"""Measure how accurate planned sample sizes are. coverage.py runs this module.

An inconclusive verdict recommends a number of instances for a decision. Here, samples of n instances are drawn from
populations whose true value is at a known distance from the threshold. The number of instances that is really needed is
therefore known. Each inconclusive sample gives a planned number. A new sample of the planned size then shows whether
the verdict is no longer inconclusive.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnaudit.records import Requirement, VerdictName
from attnaudit.statistics.interval_estimate import IntervalEstimate
from attnaudit.statistics.intervals import mean_interval, proportion_interval
from attnaudit.statistics.sample_size import POWER, plan
from attnaudit.statistics.verdict import decide
from benchmarks import coverage_samples

SHAPES = ("tau of leave-one-out", "uniform TVD", "share 0.1")
#: (n, distance of the true value from the threshold). The distance is in standard errors of a sample of n instances.
CASES = ((100, 1.0), (100, 2.0), (300, 1.0), (300, 2.0))
TRIALS = 400
#: No new sample is drawn if the planned number is larger than this many times n.
FRESH = 20
Floats = NDArray[np.float64]


def population(shape: str) -> coverage_samples.Population:
    """Return the population of the shape with the given name."""
    if shape == "share 0.1":
        return coverage_samples.Population(np.linspace(0, 1, 201), lambda u: (u < 0.1).astype(np.float64))
    return coverage_samples.populations()[shape]


def interval_of(values: Floats, shape: str, random: np.random.Generator) -> IntervalEstimate | None:
    """Return the interval of a sample: that of the mean, or that of the proportion if the values are zeros and ones."""
    groups, _ = coverage_samples.independent(len(values))
    if shape.startswith("share"):
        return proportion_interval(values, groups, confidence=0.95)
    return mean_interval(values, groups, confidence=0.95, generator=random)


def verdict(values: Floats, estimate: IntervalEstimate | None, requirement: Requirement) -> VerdictName:
    """Return the verdict on a sample at 95% confidence.

    Args:
        values: The sample.
        estimate: The interval of its mean. None if it has no interval.
        requirement: The threshold that the mean must meet.
    """
    return decide(
        value=float(values.mean()),
        interval=None if estimate is None else estimate.at(0.95),
        requirement=requirement,
        n=len(values),
        n_defined=len(values),
    )[0]


def run(shape: str, n: int, distance: float, trials: int) -> dict[str, Any]:
    """Return the results of one case. The true value passes in even trials, and fails in odd trials.

    Args:
        shape: The name of the shape of the population.
        n: The sample size.
        distance: The distance of the true value from the threshold, in standard errors of a sample of n instances.
        trials: The number of samples.
    """
    from scipy.special import ndtri

    drawn = population(shape)
    grid = drawn.at((np.arange(400_000) + 0.5) / 400_000)
    truth, deviation = float(grid.mean()), float(grid.std())
    gap = distance * deviation / math.sqrt(n)
    needed = n * ((float(ndtri(0.975)) + float(ndtri(POWER))) / distance) ** 2
    figures, inside, bounded, inconclusive, tried, decided, wrong = [], 0, 0, 0, 0, 0, 0
    for trial in range(trials):
        random = np.random.default_rng([SHAPES.index(shape), n, int(10 * distance), trial])
        right: VerdictName = "pass" if trial % 2 == 0 else "fail"
        threshold = truth - gap if right == "pass" else truth + gap
        requirement = Requirement(direction="at_least", value=threshold)
        values = drawn.at(random.random(n))
        estimate = interval_of(values, shape, random)
        if estimate is None or verdict(values, estimate, requirement) != "inconclusive":
            continue
        inconclusive += 1
        planned = plan(
            value=float(values.mean()),
            estimate=estimate,
            requirement=requirement,
            confidence=0.95,
            fail_confidence=0.95,
            n=n,
        )
        bounded += planned.high is not None
        inside += (planned.low or math.inf) <= needed <= (planned.high or math.inf)
        if planned.instances is None:
            continue
        figures.append(planned.instances / needed)
        if planned.instances <= FRESH * n:
            fresh = drawn.at(random.random(planned.instances))
            fresh_verdict = verdict(fresh, interval_of(fresh, shape, random), requirement)
            tried, decided = tried + 1, decided + (fresh_verdict == right)
            wrong += fresh_verdict not in (right, "inconclusive")
    return {
        "shape": shape,
        "n": n,
        "distance": distance,
        "needed": round(needed),
        "trials": trials,
        "inconclusive": inconclusive,
        "with a figure": len(figures),
        "with an upper end": bounded,
        "range holds what is needed": inside,
        "figure over needed, quartiles": [float(q) for q in np.quantile(figures, [0.25, 0.5, 0.75])],
        "tried": tried,
        "decided rightly": decided,
        "decided wrongly": wrong,
    }


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Return a Markdown table with one line per case."""
    lines = [
        "| shape | n | distance from threshold | needed | inconclusive | planned ÷ needed, quartiles "
        "| range contains needed | range has an upper limit | decided correctly, of those tried |",
        "|---|---:|---:|---:|---:|---|---:|---:|---:|",
    ]
    for row in rows:
        few, middle, many = row["figure over needed, quartiles"]
        of = row["inconclusive"]
        lines.append(
            f"| {row['shape']} | {row['n']} | {row['distance']:g} s.e. | {row['needed']:,} | {of / row['trials']:.0%} "
            f"| {few:.2f}, {middle:.2f}, {many:.2f} | {row['range holds what is needed'] / of:.0%} "
            f"| {row['with an upper end'] / of:.0%} | {row['decided rightly'] / row['tried']:.0%} of {row['tried']} |"
        )
    return "\n".join(lines)
