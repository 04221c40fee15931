"""Measure confidence sequences that stop as soon as they settle: how often they err, and how many rows they need.

Simulated sequences have their true value exactly on the threshold, so every verdict is an error. The gates of a run are
judged on its stored measurements in many random orders. Both results are written to stopping_early.md.
"""

from __future__ import annotations

import argparse
import json
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from attnaudit.arrays import Floats, Integers
from attnaudit.records import Requirement
from attnaudit.statistics.balanced_rows import WeightedRows
from attnaudit.statistics.confidence_sequence import ConfidenceSequence
from attnaudit.statistics.groups import Groups
from attnaudit.statistics.independent_units import balanced_units, keyed_order
from attnaudit.statistics.standardised_logits import StandardisedLogits
from attnaudit.statistics.statistic_sequences import (
    limited_ratio_sequence,
    mean_sequence,
    total_effect_sequence,
    unbet_units,
)
from attnaudit.statistics.verdict import MINIMUM_DEFINED, fail_confidence
from benchmarks.coverage import CLUSTERS, grouped, populations, shapes

HERE = Path(__file__).parent
CONFIDENCE = 0.95
SEQUENCES = 10_000
#: Rows or sources of a simulated sequence.
LENGTH = 1000
ORDERS = 100
#: The peeking z-test starts after this many values.
FIRST_PEEK = 30
#: Attention points at the tokens with an effect if its gain is at least this share of the possible one.
POINTS = 0.25

#: Draws one sequence, and returns it with the true value of its statistic.
Draw = Callable[[np.random.Generator], tuple[ConfidenceSequence, float]]


@dataclass(frozen=True)
class Gate:
    """A gate of a run, and its sequence in the random order of a seed.

    Attributes:
        name: The check and its threshold.
        requirement: The threshold.
        gated: The number of gates, for which failures are corrected.
        value: The statistic on all rows.
        verdict: The verdict on all rows.
        of: (random order of all rows) -> the sequence, the rows of each of its pairs, and the statistic on all rows
            with the scale and the limits that the sequence uses.
    """

    name: str
    requirement: Requirement
    gated: int
    value: float
    verdict: str
    of: Callable[[list[int]], tuple[ConfidenceSequence, Integers, float]]


def of_mean(values: Callable[[np.random.Generator], Floats], truth: float) -> Draw:
    """Return how to draw a sequence of a mean of independent values between 0 and 1."""

    groups, order = grouped(np.arange(LENGTH)), np.arange(LENGTH)

    def draw(random: np.random.Generator) -> tuple[ConfidenceSequence, float]:
        return mean_sequence(values(random), groups, order, bounds=(0.0, 1.0), confidence=CONFIDENCE), truth

    return draw


def draw_clustered(random: np.random.Generator) -> tuple[ConfidenceSequence, float]:
    """Draw sources of 1, 2, 4 or 8 rows, whose values are alike and larger in larger sources."""
    sizes = random.choice(CLUSTERS, LENGTH)
    mean = 0.1 + 0.08 * sizes
    rates = np.repeat(random.beta(2 * mean, 2 * (1 - mean)), sizes)
    values = (random.random(len(rates)) < rates).astype(np.float64)
    groups = Groups(rows=np.arange(len(rates)), starts=np.cumsum(sizes) - sizes)
    truth = float(sum(size * (0.1 + 0.08 * size) for size in CLUSTERS) / sum(CLUSTERS))
    return mean_sequence(values, groups, np.arange(LENGTH), bounds=(0.0, 1.0), confidence=CONFIDENCE), truth


def drawn_rows(classes: Integers, positive: float, random: np.random.Generator) -> Integers:
    """Return 2,000 rows drawn with replacement, of which a share of `positive` is expected to have the class 1."""
    first, second = (random.choice(np.flatnonzero(classes == one), 2 * LENGTH) for one in (0, 1))
    found: Integers = np.where(random.random(2 * LENGTH) < positive, second, first)
    return found


def of_share(positive: float) -> Draw:
    """Return how to draw a sequence of the share of rows on which attention points, weighted by what is at stake."""
    largest, cosine, uniform = (np.array(column) for column in shapes()["pointing"].values())
    weights = largest * (1 - uniform)
    chosen = (largest * (cosine - uniform) >= 0.5 * weights).astype(np.float64)
    classes = (cosine > np.median(cosine)).astype(np.int64)
    population = WeightedRows.balanced(classes, grouped(np.arange(len(classes))))

    def draw(random: np.random.Generator) -> tuple[ConfidenceSequence, float]:
        rows = drawn_rows(classes, positive, random)
        units = balanced_units(classes[rows], range(len(rows)), 1)
        one = limited_ratio_sequence(
            chosen[rows] * weights[rows], weights[rows], weights[rows], units, confidence=CONFIDENCE, high=1.0
        )
        limited = np.minimum(weights, one.bounds.most_below)
        return one, float(population.mean(limited * chosen) / population.mean(limited))

    return draw


def of_total_effect(positive: float) -> Draw:
    """Return how to draw a sequence of the total-effect index of standardised probabilities."""
    stored = {name: np.array(values) for name, values in shapes()["rearrangement"].items()}
    before = stored["logit"]
    after = before - np.sign(before) * np.sqrt(2 * stored["change of the logits"])
    logits, others = (np.stack([-z / 2, z / 2], axis=1) for z in (before, after))
    classes = (before > 0).astype(np.int64)
    population = WeightedRows.balanced(classes, grouped(np.arange(len(classes))))

    def draw(random: np.random.Generator) -> tuple[ConfidenceSequence, float]:
        rows = drawn_rows(classes, positive, random)
        units = balanced_units(classes[rows], range(len(rows)), 2)
        outputs, changes = standardised(logits, others[:, None], classes, rows[units[: unbet_units(units)]])
        one = total_effect_sequence(changes[rows], outputs[rows], units, confidence=CONFIDENCE)
        limited = np.minimum(changes, one.bounds.most_above)
        return one, float(population.mean(limited)) / (2 * variance(outputs, population))

    return draw


def standardised(logits: Floats, others: Floats, classes: Integers, first: Integers) -> tuple[Floats, Floats]:
    """Return the outputs of all rows, standardised with the mean and the scale of some, and their changes.

    Args:
        logits: (n, C) centred logits.
        others: (n, K, C) the same after K rearrangements; NaN where there are fewer.
        classes: (n,) classes.
        first: The rows that decide the mean and the scale. A row can occur several times.

    Returns:
        (n, C) probabilities, and the (n,) mean squared distances of those after rearrangements.
    """
    flat = first.ravel()
    rows = WeightedRows.balanced(classes[flat], grouped(np.arange(len(flat))))
    standard = StandardisedLogits.of(logits[flat], rows)
    if standard is None:
        raise ValueError("The logits of the first rows do not vary.")
    outputs = standard.probabilities(logits)
    squares = ((standard.probabilities(others) - outputs[:, None]) ** 2).sum(-1)
    return outputs, np.nanmean(squares, axis=1)


def variance(outputs: Floats, rows: WeightedRows) -> float:
    """Return the weighted variance of outputs, summed over the classes."""
    return float(rows.mean(((outputs - rows.mean(outputs)) ** 2).sum(1)))


def scenarios() -> dict[str, Draw]:
    """Return the simulated sequences by name."""
    tvd = populations()["permutation TVD"]
    grid = np.linspace(0, 1, 100_001)
    return {
        "Bernoulli, 0.3": of_mean(lambda random: (random.random(LENGTH) < 0.3).astype(np.float64), 0.3),
        "Bernoulli, 0.02": of_mean(lambda random: (random.random(LENGTH) < 0.02).astype(np.float64), 0.02),
        "Beta(5, 2)": of_mean(lambda random: random.beta(5, 2, LENGTH), 5 / 7),
        "Beta(0.2, 6), skewed": of_mean(lambda random: random.beta(0.2, 6, LENGTH), 0.2 / 6.2),
        "permutation TVD, as measured": of_mean(
            lambda random: tvd.at(random.random(LENGTH)), float(np.trapezoid(tvd.at(grid), grid))
        ),
        "sources of 1 to 8 rows, alike": draw_clustered,
        "share, weighted, balanced classes": of_share(0.5),
        "share, weighted, 10% of one class": of_share(0.1),
        "total effect, standardised, balanced classes": of_total_effect(0.5),
        "total effect, standardised, 10% of one class": of_total_effect(0.1),
    }


def peeked(one: ConfidenceSequence, truth: float) -> tuple[bool, bool]:
    """Return whether a z-test of 95% confidence after each value would ever have erred, and on which side first."""
    differences = one.above - truth * one.below
    count = np.arange(1, len(differences) + 1)
    total, squares = differences.cumsum(), (differences**2).cumsum()
    spread = np.sqrt(np.maximum(squares - total**2 / count, 1e-300) * count / np.maximum(count - 1, 1))
    z = (total / spread)[FIRST_PEEK:]
    reached = np.flatnonzero(np.abs(z) > 1.96)
    if not len(reached):
        return False, False
    return bool(z[reached[0]] > 0), bool(z[reached[0]] < 0)


def simulate(draw: Draw, trials: int, seed: int) -> dict[str, Any]:
    """Return how often a sequence with the truth on the threshold settles, on either side, and so errs."""
    random, verdicts, peeks = np.random.default_rng(seed), Counter[str](), np.zeros(2)
    for _ in range(trials):
        one, truth = draw(random)
        verdicts[one.settle(Requirement(direction="at_least", value=truth)).verdict] += 1
        peeks += peeked(one, truth)
    return {
        "above": verdicts["pass"] / trials,
        "below": verdicts["fail"] / trials,
        "peeking": (peeks / trials).tolist(),
    }


class Run:
    """The stored measurements of a run of the default policy on one model and data set with two labels.

    Args:
        folder: The folder of the run.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / "measurements.parquet"
        self.audit = json.loads((folder / "audit.json").read_text(encoding="utf-8"))
        self.ids = self.column("logits", "instance")
        labels = self.column("logits", "label")
        self.classes = np.unique(labels, return_inverse=True)[1].astype(np.int64)
        if len(set(labels)) != 2 or len(set(self.ids)) != len(self.ids):
            raise ValueError(f"{folder}: expected one model on one data set with two labels.")
        self.weighted = WeightedRows.balanced(self.classes, self.groups)

    @property
    def groups(self) -> Groups:
        """All rows. In the packaged reviews, every row is a source of its own."""
        return Groups.of(self.ids, self.ids, np.ones(len(self.ids), dtype=np.bool_))

    def column(self, measure: str, field: str) -> list[Any]:
        """Return a field of every row of a measure, sorted by instance."""
        table = pq.read_table(self.path, filters=[("measure", "=", measure)]).sort_by("instance")
        found: list[Any] = table.column(field).to_pylist()
        return found

    def scalar(self, measure: str) -> Floats:
        """Return the (n,) values of a measure; all must be defined."""
        return np.array(self.column(measure, "value"), dtype=np.float64)

    def record(self, check: str) -> dict[str, Any]:
        """Return the record of a check."""
        return next(one for one in self.audit["checks"] if one["check"] == check)


def gates(run: Run) -> list[Gate]:
    """Return the two gates of the default policy, and other checks with thresholds that are examples."""
    return [
        total_effect_gate(run),
        pointing_gate(run),
        cosine_gate(run, 0.7),
        mean_gate(run, "agreement.leave_one_out.inputs", "agreement.leave_one_out.inputs.tau", (-1.0, 1.0), 0.3),
        mean_gate(run, "permutation_fragility.tvd", "permutation.tvd", (0.0, 1.0), 0.08),
        mean_gate(run, "permutation_fragility.tvd", "permutation.tvd", (0.0, 1.0), 0.07),
    ]


def policy_gate(run: Run, check: str) -> dict[str, Any]:
    """Return the arguments of a `Gate` that are in the record of a check of the policy."""
    record = run.record(check)
    limit = record["requirement"]
    return {
        "name": f"`{check}` ≥ {limit['value']:g}",
        "requirement": Requirement(direction=limit["direction"], value=limit["value"]),
        "gated": record["gated"],
        "value": record["value"],
        "verdict": record["verdict"],
    }


def total_effect_gate(run: Run) -> Gate:
    """Return the first gate of the default policy."""
    logit = np.array(run.column("logits", "values"), dtype=np.float64)[:, 0]
    logits = np.stack([-logit / 2, logit / 2], axis=1)
    others = np.array(run.column("rearrangement.centred_logits", "values"), dtype=np.float64).reshape(len(logit), -1, 2)

    def of(order: list[int]) -> tuple[ConfidenceSequence, Integers, float]:
        units = balanced_units(run.classes, order, 2)
        outputs, changes = standardised(logits, others, run.classes, units[: unbet_units(units)])
        one = total_effect_sequence(changes, outputs, units, confidence=CONFIDENCE)
        limited = np.minimum(changes, one.bounds.most_above)
        value = float(run.weighted.mean(limited)) / (2 * variance(outputs, run.weighted))
        return one, units.reshape(len(units), -1), value

    return Gate(**policy_gate(run, "total_effect.standardised"), of=of)


def pointing_gate(run: Run) -> Gate:
    """Return the second gate of the default policy."""
    largest, cosine, uniform = (
        run.scalar(f"pointing.held.logits.{name}") for name in ("largest", "cosine", "uniform_cosine")
    )
    weights = largest * (1 - uniform)
    chosen = (largest * (cosine - uniform) >= POINTS * weights).astype(np.float64)

    def of(order: list[int]) -> tuple[ConfidenceSequence, Integers, float]:
        units = balanced_units(run.classes, order, 1)
        one = limited_ratio_sequence(chosen * weights, weights, weights, units, confidence=CONFIDENCE, high=1.0)
        limited = np.minimum(weights, one.bounds.most_below)
        value = float(run.weighted.mean(limited * chosen) / run.weighted.mean(limited))
        return one, units.reshape(len(units), -1), value

    return Gate(**policy_gate(run, "pointing.logits.share"), of=of)


def cosine_gate(run: Run, threshold: float) -> Gate:
    """Return a gate on the cosine of attention and effects, above uniform weights, as the only gate of a policy.

    The cosine is 1 minus the ratio of two mean distances, which the sequence tests against 1 minus the threshold.
    """
    largest, cosine, uniform = (
        run.scalar(f"pointing.held.logits.{name}") for name in ("largest", "cosine", "uniform_cosine")
    )
    above, below = (largest * np.maximum(1 - one, 0.0) for one in (cosine, uniform))
    record = run.record("pointing.logits")

    def of(order: list[int]) -> tuple[ConfidenceSequence, Integers, float]:
        units = balanced_units(run.classes, order, 1)
        one = limited_ratio_sequence(above, below, largest, units, confidence=CONFIDENCE)
        scale = np.minimum(1.0, one.bounds.most_below / largest)
        value = 1 - float(run.weighted.mean(above * scale) / run.weighted.mean(below * scale))
        return one, units.reshape(len(units), -1), value

    return Gate(
        name=f"`pointing.logits` ≥ {threshold:g}",
        requirement=Requirement(direction="at_most", value=1 - threshold),
        gated=1,
        value=record["value"],
        verdict=verdict_of(record["interval"], threshold),
        of=of,
    )


def verdict_of(interval: dict[str, float], threshold: float) -> str:
    """Return the verdict of an interval on a lower threshold."""
    return "pass" if interval["low"] >= threshold else "fail" if interval["high"] < threshold else "inconclusive"


def mean_gate(run: Run, check: str, measure: str, bounds: tuple[float, float], threshold: float) -> Gate:
    """Return a gate on a mean, as the only gate of a policy. Its verdict on all rows follows from the interval."""
    values, record = run.scalar(measure), run.record(check)

    def of(order: list[int]) -> tuple[ConfidenceSequence, Integers, float]:
        one = mean_sequence(values, run.groups, np.array(order), bounds=bounds, confidence=CONFIDENCE)
        return one, np.array(order)[:, None], float(values.mean())

    return Gate(
        name=f"`{check}` ≥ {threshold:g}",
        requirement=Requirement(direction="at_least", value=threshold),
        gated=1,
        value=record["value"],
        verdict=verdict_of(record["interval"], threshold),
        of=of,
    )


def judged(gate: Gate, ids: Sequence[str], orders: int) -> dict[str, Any]:
    """Judge a gate in several random orders, and compare with its verdict on all rows."""
    verdicts, rows, values = Counter[str](), [], []
    for seed in range(orders):
        order = keyed_order(ids, seed)
        rank = np.empty(len(order), dtype=np.int64)
        rank[order] = np.arange(len(order))
        one, members, value = gate.of(order)
        least = math.ceil(MINIMUM_DEFINED / members.shape[1])
        settled = one.settle(gate.requirement, fail_confidence=fail_confidence(CONFIDENCE, gate.gated), least=least)
        verdicts[settled.verdict] += 1
        undecided = settled.verdict == "inconclusive"
        rows.append(len(ids) if undecided else int(rank[members[: settled.count]].max()) + 1)
        values.append(value)
    opposite = {"pass": "fail", "fail": "pass"}.get(gate.verdict, "")
    return {
        "same": verdicts[gate.verdict],
        "opposite": verdicts[opposite],
        "inconclusive": verdicts["inconclusive"],
        "rows": np.quantile(rows, [0.5, 0.9, 1.0]).astype(int).tolist(),
        "values": np.quantile(values, [0.05, 0.95]).tolist(),
    }


def error_table(trials: int) -> list[str]:
    """Return the table of errors of simulated sequences."""
    lines = [
        "| values | settles above | settles below | z-test, above | z-test, below |",
        "|---|---:|---:|---:|---:|",
    ]
    for seed, (name, draw) in enumerate(scenarios().items()):
        found = simulate(draw, trials, seed)
        above, below = found["peeking"]
        lines.append(f"| {name} | {found['above']:.2%} | {found['below']:.2%} | {above:.1%} | {below:.1%} |")
        print(lines[-1], flush=True)
    return lines


def gate_table(run: Run, orders: int) -> list[str]:
    """Return the table of the gates of a run."""
    lines = [
        "| gate | value | with limits, 5% to 95% of the orders | on all rows | same | opposite | inconclusive | rows, "
        "median | share of all | 90% | most |",
        "|---|---:|---|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for gate in gates(run):
        found = judged(gate, run.ids, orders)
        median, most_of_them, most = found["rows"]
        low, high = found["values"]
        limited = "—" if low == high else f"{low:.4f} to {high:.4f}"
        lines.append(
            f"| {gate.name} | {gate.value:.4f} | {limited} | {gate.verdict} | {found['same']} | "
            f"{found['opposite']} | {found['inconclusive']} | {median:,} | {median / len(run.ids):.0%} | "
            f"{most_of_them:,} | {most:,} |"
        )
        print(lines[-1], flush=True)
    return lines


def write(section: str, lines: Sequence[str]) -> None:
    """Replace one generated table in stopping_early.md."""
    path = HERE / "stopping_early.md"
    text = path.read_text(encoding="utf-8")
    before, start, rest = text.partition(f"<!-- {section} -->\n")
    _, end, after = rest.partition(f"<!-- end of {section} -->")
    if not start or not end:
        raise ValueError(f"{path}: expected the marks <!-- {section} --> and <!-- end of {section} -->.")
    path.write_text(before + start + "\n" + "\n".join(lines) + "\n\n" + end + after, encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--run", type=Path, metavar="FOLDER", help="run of `pytest audits/ --model demo`, for the gates"
    )
    parser.add_argument("--quick", action="store_true", help="200 sequences and 5 orders; print and write nothing")
    options = parser.parse_args(arguments)
    tables: dict[str, list[str]] = {"errors": error_table(200 if options.quick else SEQUENCES)}
    if options.run is not None:
        tables["gates"] = gate_table(Run(options.run), 5 if options.quick else ORDERS)
    if not options.quick:
        for section, lines in tables.items():
            write(section, lines)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
